"""Parts that the commands share: the verbs, their parser and terminal output."""
