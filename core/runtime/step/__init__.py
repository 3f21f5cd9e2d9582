"""Steps of a loop: backward, clipping, gradient accumulation and synchronization."""
