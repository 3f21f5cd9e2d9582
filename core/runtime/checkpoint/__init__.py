"""Checkpoints of a Runtime: the whole state of a run, its parts, and files of weights."""
