"""One thread for torch in this process."""

from threads import one_thread

__all__ = ["one_thread"]
