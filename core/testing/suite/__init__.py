"""The suites as pytest collects them without any code: ``pytest --pyargs core.testing.suite --backend KIND:NAME``."""
