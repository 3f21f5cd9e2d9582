"""The simulated device's plugin with one rule broken in each class."""
