"""Collectives of a strategy: reductions, dtypes that cannot be sent, objects and communication hooks."""
