"""The user's loaders as a run reads them."""

from __future__ import annotations

from typing import Any

from core.data import CombinedLoader, DataSettings, PreparedCombined, PreparedLoader, in_order, is_collection
from core.data import prepare_loader as prepare
from core.trainer.run import Run

__all__ = ["AnyLoader", "prepared_loaders", "training_loader"]

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
