"""Helpers of all rooms: lazy names, nested tensors, separate processes, the user's modules, variables."""
