"""Logged metrics: their values, reduction, exchange and loggers."""
