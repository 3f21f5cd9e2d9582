"""Errors about names and signatures that a Trainer, a Module or a callback does not have."""
