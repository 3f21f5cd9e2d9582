"""The number of threads in processes that share a machine."""

from __future__ import annotations

import torch

__all__ = ["ThreadLimit", "thread_limit"]


class ThreadLimit:
    """One thread in each process while any run is live that shares its machine, as torchrun sets it.

    So the processes do not each take all of its cores.
    """

    runs = 0
    before = 1

    def enter(self) -> None:
        """A run begins."""
        if self.runs == 0:
            self.before = torch.get_num_threads()
            torch.set_num_threads(1)
        self.runs += 1

    def leave(self) -> None:
        """A run ends."""
        self.runs -= 1
        if self.runs == 0:
            torch.set_num_threads(self.before)


thread_limit = ThreadLimit()
