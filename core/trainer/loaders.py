"""The user's loaders as a run reads them."""

from __future__ import annotations

from typing import Any

from core.data import CombinedLoader, DataSettings, PreparedCombined, PreparedLoader, in_order, is_collection
from core.data import prepare_loader as prepare
from core.trainer.run import Run

__all__ = ["AnyLoader", "prepared_loaders", "training_loader", "why_empty"]

AnyLoader = PreparedLoader | PreparedCombined


def _prepared(run: Run, loader: Any, evaluation: bool) -> PreparedLoader:
    in_fit = run.stage == "train"
    return prepare(
        in_order(loader) if in_fit and run.settings.overfit_batches else loader,
        run.runtime.strategy,
        evaluation=evaluation,
        sharded=not run.settings.use_distributed_sampler,
        settings=DataSettings(even_batches=not evaluation),
        device_placement=not run.batch_hooks.moves,
        active=run.runtime._active,
    )


def training_loader(run: Run, loader: Any) -> AnyLoader:
    """The loader of ``fit``; several are one, whose batches have one of each. ``None`` stands for no batches."""
    if loader is None:
        nothing: Any = ()
        return prepare(nothing, run.runtime.strategy, sharded=True)
    if is_collection(loader):
        loader = CombinedLoader(loader, "max_size_cycle")
    if isinstance(loader, CombinedLoader):
        return PreparedCombined(loader, lambda part: _prepared(run, part, False))
    return _prepared(run, loader, False)


def prepared_loaders(run: Run, loader: Any, *, evaluation: bool) -> tuple[Any, list[AnyLoader]]:
    """The loaders of an evaluation in the user's structure, and as those that are read one after another."""
    if is_collection(loader):
        loader = CombinedLoader(loader, "sequential")
    if not isinstance(loader, CombinedLoader):
        one = _prepared(run, loader, evaluation)
        return one, [one]
    combined = PreparedCombined(loader, lambda part: _prepared(run, part, evaluation))
    return combined.iterables, list(combined.flattened) if loader.mode == "sequential" else [combined]


def why_empty(loader: Any) -> str:
    """Why a loader has yielded nothing, and what to do."""
    try:
        items = len(loader.dataset)
    except (AttributeError, TypeError):
        return "It must yield batches each time it is iterated; a generator does so only once."
    if items == 0:
        return "Its data set has no items: check the path or the filter that they come from."
    if getattr(loader, "drop_last", False):
        return (
            f"Its data set has {items} items, fewer than a batch of every process needs, and drop_last=True leaves "
            f"them out. Lower batch_size={loader.batch_size}, or set drop_last=False."
        )
    return f"Its data set has {items} items, but its sampler yields none of them."
