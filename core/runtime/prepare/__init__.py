"""Preparing modules, optimizers, schedulers and loaders."""
