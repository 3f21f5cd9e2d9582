"""The store of a run, and further connections to it."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from torch.distributed.distributed_c10d import PrefixStore, Store

if TYPE_CHECKING:
    from torch._C._distributed_c10d import TCPStore  # torch.distributed.TCPStore is not typed
else:
    from torch.distributed import TCPStore

__all__ = ["RunStore", "another_connection"]


class RunStore(PrefixStore):
    """A part of a store, for one run.

    Args:
        prefix: What its keys begin with.
        store: The whole.
    """

    def __init__(self, prefix: str, store: Store) -> None:
        super().__init__(prefix, store)
        self.prefix = prefix


def another_connection(store: Store) -> Store:
    """Another connection to ``store``, for a thread: while one waits, nothing else can use its connection."""
    clone: Any = getattr(store, "clone", None)
    if clone is not None:
        connected: Store = clone()
        return connected
    # torch 2.6 cannot clone
    if isinstance(store, RunStore):
        return PrefixStore(store.prefix, another_connection(store.underlying_store))
    if isinstance(store, TCPStore):
        timeout: timedelta = store.timeout  # type: ignore[attr-defined]  # torch does not declare it
        return TCPStore(store.host, store.port, None, False, timeout, wait_for_workers=False)
    raise TypeError(f"store={store!r}: a second connection to it cannot be made")
