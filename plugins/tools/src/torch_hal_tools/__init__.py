"""Commands around a training: ``torch-hal estimate`` and others, each a module of this package."""
