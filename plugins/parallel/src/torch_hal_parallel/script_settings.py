"""How processes share the work, in the names of scripts for Accelerate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["ParallelismConfig"]


@dataclass(frozen=True, kw_only=True)
class ParallelismConfig:
    """The processes of each dimension under Accelerate's names, for ``Runtime(parallelism_config=...)``.

    The Runtime's strategy is ``ddp``, one of this package, or one of torch-hal-fsdp if ``dp_shard_size`` is not 1.
    Combinations that no strategy has, and fields without a counterpart, are refused when the Runtime is made.
    """

    dp_replicate_size: int = 1
    """Replicas: ``data`` of :class:`ModelParallelStrategy`, ``replicas`` of ``FSDPStrategy``."""
    dp_shard_size: int = 1
    """Processes that the parameters are sharded over."""
    tp_size: int = 1
    """``tensor``; ``tensor_parallel_size`` of ``FSDPStrategy``."""
    cp_size: int = 1
    """``context``."""
    cp_backend: str | None = None
    """``"torch"``."""
    sp_size: int = 1
    """Refused: ``cp_size`` divides sequences."""
    sp_backend: str | None = None
    """Refused."""
    tp_handler: Any = None
    """An object of Accelerate's without a setting."""
    cp_handler: Any = None
    """An object of Accelerate's with ``cp_comm_strategy="allgather"``."""
    sp_handler: Any = None
    """Refused."""

    @property
    def total_size(self) -> int:
        """The number of processes."""
        return self.dp_replicate_size * self.dp_shard_size * self.tp_size * self.cp_size * self.sp_size

    @property
    def data_parallel_size(self) -> int:
        """The number of processes that have batches of their own."""
        return self.dp_replicate_size * self.dp_shard_size

    @property
    def non_data_parallel_size(self) -> int:
        """The number of processes that share a batch."""
        return self.tp_size * self.cp_size * self.sp_size

    @property
    def dp_replicate_enabled(self) -> bool:
        """Whether there are replicas."""
        return self.dp_replicate_size > 1

    @property
    def dp_shard_enabled(self) -> bool:
        """Whether parameters are sharded."""
        return self.dp_shard_size > 1

    @property
    def tp_enabled(self) -> bool:
        """Whether layers are divided."""
        return self.tp_size > 1

    @property
    def cp_enabled(self) -> bool:
        """Whether sequences are divided."""
        return self.cp_size > 1

    @property
    def sp_enabled(self) -> bool:
        """False in a run: ``sp_size`` is refused."""
        return self.sp_size > 1
