"""The training step of a strategy, composed once before the loop."""
