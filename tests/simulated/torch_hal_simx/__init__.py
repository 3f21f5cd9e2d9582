"""The simulated device of ``tests/simulated`` as a vendor's plugin, written only of what the documents say."""
