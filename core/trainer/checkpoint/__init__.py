"""The state of a fit in a checkpoint."""
