"""The loops of a run: fit, validate, test and predict."""
