"""Failures of a run: the first one, where the other processes are, and exit codes."""
