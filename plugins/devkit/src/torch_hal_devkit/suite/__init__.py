"""The suites as pytest collects them without code: ``pytest --pyargs torch_hal_devkit.suite --backend KIND:NAME``."""
