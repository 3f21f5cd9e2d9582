"""What Python runs first in each process of a test session; one that stands before it on the path imports the same."""

import starting  # noqa: F401
