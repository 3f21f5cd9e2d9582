"""Python imports this module at start. A sitecustomize.py earlier on the path must import ``starting`` itself."""

import starting  # noqa: F401
