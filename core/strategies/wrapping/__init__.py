"""Wrappers that a strategy puts around modules and optimizers, and their placement on devices."""
