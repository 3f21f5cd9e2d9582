"""The suites as classes, to be derived from; see :mod:`core.testing`."""
