"""The suites as classes, to be derived from; see :mod:`torch_hal_devkit`."""
