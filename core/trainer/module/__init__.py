"""The Module and the DataModule, their hooks and hyperparameters."""
