"""What each interpreter of a test session begins with: a quarter of ``import torch`` would be collecting garbage."""

import gc

gc.set_threshold(100_000, 50, 50)
