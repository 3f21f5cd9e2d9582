"""Callbacks that show progress and the layers of a module."""
