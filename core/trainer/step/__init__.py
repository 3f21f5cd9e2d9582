"""The steps of a Module as the Trainer runs them: optimizers, schedulers, compilation."""
