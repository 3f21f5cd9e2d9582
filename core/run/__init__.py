"""``torch-hal run``: starts a script on several processes and machines, with torchrun's agent."""
