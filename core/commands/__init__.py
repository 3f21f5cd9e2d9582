"""What the commands share: the verbs, their parser and terminal output."""
