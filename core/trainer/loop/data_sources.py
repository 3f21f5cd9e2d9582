"""Sources of a run's loaders: arguments, a DataModule or the Module. Limits on their batches, and reloading."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import attrs

from ...data import CombinedLoader, DataSettings, PreparedCombined, PreparedLoader, in_order, is_collection
from ...data import prepare_loader as prepare
from ...errors import ConfigurationError, WrongTypeError, quoted
from ...hints.argument_checks import instead_of_class
from ...hints.remedies import change_import
from ...logging import get_logger
from ...strategies.base import Strategy
from ..checks import check_hooks, check_loader, described
from ..module.datamodule import DataHooks, DataModule
from ..module.hooks import overridden
from ..run_context import RunContext
from ..settings import Limit
from ..trainer_state import STAGES

logger = get_logger(__name__)


@attrs.frozen(kw_only=True)
class DataSource:
    """Where the loaders of one run come from."""

    stage: str
    given: Mapping[str, Any]
    """Loaders by kind, as the user passed them."""
    datamodule: DataModule | None
    module: DataHooks

    @classmethod
    def read(cls, stage: str, module: DataHooks, datamodule: Any, **given: Any) -> DataSource:
        """Check the arguments of ``fit``, ``validate``, ``test`` or ``predict``.

        Args:
            stage: The name of the method.
            module: The Module, which is asked for loaders that neither the arguments nor the DataModule have.
            datamodule: The argument of this name.
            **given: The arguments for loaders: by the argument's name, the kind and the loader.

        Raises:
            ConfigurationError: Loaders and a DataModule were given, or nothing has the loader that the stage needs.
            WrongTypeError: A loader is not iterable, or the DataModule is not a :class:`core.DataModule`.
        """
        given = {name: pair for name, pair in given.items() if pair[1] is not None}
        for name, (_, loader) in given.items():
            if isinstance(loader, DataModule):
                if datamodule is not None:
                    raise ConfigurationError(f"{name} and datamodule are both a DataModule. Pass one of them.")
                datamodule = loader
        if datamodule is not None:
            if not isinstance(datamodule, DataModule):
                hint = instead_of_class(datamodule).lstrip() or change_import(datamodule)
                hint = hint or "Pass loaders as train_dataloaders and val_dataloaders."
                raise WrongTypeError(f"datamodule: must be a core.DataModule, not {described(datamodule)}. {hint}")
            check_hooks("datamodule", datamodule, DataModule)
            loaders = [name for name, (_, loader) in given.items() if loader is not datamodule]
            if loaders:
                raise ConfigurationError(f"{quoted(loaders)} and a DataModule were given. Pass one of the two.")
            given = {}
        for name, (_, loader) in given.items():
            if foreign := change_import(loader):
                raise WrongTypeError(
                    f"{name}: must be a core.DataModule or loaders, not {described(loader)}. {foreign}"
                )
            check_loader(name, loader)
        source = cls(
            stage=stage,
            given=dict(given.values()),
            datamodule=datamodule,
            module=module,
        )
        kind = STAGES[stage].kind
        if kind not in source.given and source._owner(kind) is None:
            method = f"{kind}_dataloader"
            and_given = "" if datamodule is None else f", and {type(datamodule).__name__} does not define {method}"
            raise ConfigurationError(
                f"{stage}: there is no loader{and_given}. Pass {STAGES[stage].argument}, or define {method} in a "
                "core.DataModule or in the module."
            )
        return source

    def _owner(self, kind: str) -> DataHooks | None:
        name = f"{kind}_dataloader"
        return next((owner for owner in self._owners() if overridden(owner, DataHooks, name) is not None), None)

    def _owners(self) -> tuple[DataHooks, ...]:
        return (self.module,) if self.datamodule is None else (self.datamodule, self.module)

    def prepare(self, strategy: Strategy) -> None:
        """Call ``prepare_data`` where it is due; no process goes on before it is done. Every process calls this."""
        owners = [owner for owner in self._owners() if overridden(owner, DataHooks, "prepare_data") is not None]
        for owner in owners:
            if (strategy.local_rank if owner.prepare_data_per_node else strategy.global_rank) == 0:
                before = dict(vars(owner))
                owner.prepare_data()
                assigned = [name for name, value in vars(owner).items() if value is not before.get(name, owner)]
                if assigned and strategy.world_size > 1:
                    logger.warning(
                        "%s.prepare_data has assigned %s of self in process %d, and not in the others: it is called in "
                        "one process of each machine. Assign what every process needs in setup(stage)",
                        type(owner).__name__,
                        quoted(assigned),
                        strategy.global_rank,
                    )
        if owners:
            strategy.barrier("prepare_data")

    def setup(self, of: str) -> None:
        """Call ``setup`` of the DataModule or of the Module; ``of`` is ``"datamodule"`` or ``"module"``."""
        owner: DataHooks | None = getattr(self, of)
        if owner is not None:
            owner.setup(self.stage)

    def teardown(self, of: str) -> None:
        """Call ``teardown`` of the DataModule or of the Module; ``of`` as in :meth:`setup`."""
        owner: DataHooks | None = getattr(self, of)
        if owner is not None:
            owner.teardown(self.stage)

    def creates(self, kind: str) -> bool:
        """Whether a method creates the loader of ``kind``, so that it can be called again."""
        return kind not in self.given and self._owner(kind) is not None

    def loader(self, kind: str) -> Any:
        """The user's loader of ``kind``; ``None`` if there is none.

        Raises:
            WrongTypeError: What ``<kind>_dataloader`` returned is not a loader.
        """
        if kind in self.given:
            return self.given[kind]
        owner = self._owner(kind)
        if owner is None:
            return None
        loader = getattr(owner, f"{kind}_dataloader")()
        if loader is None and kind == "val":
            return None
        check_loader(f"{type(owner).__name__}.{kind}_dataloader", loader)
        return loader


AnyLoader = PreparedLoader | PreparedCombined


def _prepared(context: RunContext, loader: Any, evaluation: bool) -> PreparedLoader:
    in_fit = context.stage == "train"
    return prepare(
        in_order(loader) if in_fit and context.settings.overfit_batches else loader,
        context.runtime.strategy,
        evaluation=evaluation,
        sharded=not context.settings.use_distributed_sampler,
        settings=DataSettings(even_batches=not evaluation),
        device_placement=not context.batch_hooks.moves,
        active=context.runtime.gradient_state.passes,
    )


def training_loader(context: RunContext, loader: Any) -> AnyLoader:
    """The loader of ``fit``; several are one, whose batches have one of each. ``None`` stands for no batches."""
    if loader is None:
        nothing: Any = ()
        return prepare(nothing, context.runtime.strategy, sharded=True)
    if is_collection(loader):
        loader = CombinedLoader(loader, "max_size_cycle")
    if isinstance(loader, CombinedLoader):
        return PreparedCombined(loader, lambda part: _prepared(context, part, False))
    return _prepared(context, loader, False)


def prepared_loaders(context: RunContext, loader: Any, *, evaluation: bool) -> tuple[Any, list[AnyLoader]]:
    """The loaders of an evaluation in the user's structure, and as those that are read one after another."""
    if is_collection(loader):
        loader = CombinedLoader(loader, "sequential")
    if not isinstance(loader, CombinedLoader):
        one = _prepared(context, loader, evaluation)
        return one, [one]
    combined = PreparedCombined(loader, lambda part: _prepared(context, part, evaluation))
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


def length_of(loader: Any) -> float:
    """The number of batches of ``loader``; infinite if it is not known."""
    try:
        return len(loader)
    except TypeError:  # a stream
        return math.inf


def agreed_length(strategy: Strategy, own: float, *, smallest: bool) -> float:
    """The smallest or largest of what the processes give; every process calls it."""
    if strategy.world_size == 1:
        return own
    lengths = strategy.all_gather_object(own)
    return min(lengths) if smallest else max(lengths)


def limited(length: float, limit: Limit | None, argument: str) -> float:
    """How many of ``length`` batches a stage takes.

    Args:
        length: The number of batches; infinite if it is not known.
        limit: A number of batches as an integer, or a fraction as a float; ``None`` for all.
        argument: The name of the argument that gave it.

    Raises:
        ConfigurationError: A fraction of an unknown number, or of so few batches that none is left.
    """
    if limit is None or (limit == 1.0 and isinstance(limit, float)):
        return length
    if isinstance(limit, int):
        return min(length, limit)
    if limit and math.isinf(length):
        raise ConfigurationError(
            f"{argument}={limit}: the loader has no length, so there is no fraction of it. Give a number of batches as "
            "an integer."
        )
    if limit and length and not int(length * limit):
        raise ConfigurationError(
            f"{argument}={limit}: less than one of {length} batches. Give a number of batches as an integer, a larger "
            "fraction, or 0 for none."
        )
    return int(length * limit) if limit else 0


KINDS = ("train", "val")


class Reloading:
    """Says when ``reload_dataloaders_every_n_epochs`` is due, and creates the loaders. Every process asks it alike."""

    def __init__(self, context: RunContext, source: DataSource) -> None:
        self._context, self._source = context, source
        self._every = context.settings.reload_dataloaders_every_n_epochs

    def is_due(self, kind: str) -> bool:
        """Whether the loader of ``kind`` is to be created again before it is read in the running epoch."""
        epoch, every = self._context.progress.epoch, self._every
        return self._creates(kind) and epoch // every > self._loaded(kind) // every

    def was_due(self, kind: str) -> bool:
        """Whether the run that is resumed has created the loader of ``kind`` again, and reads it now."""
        return self._creates(kind) and self._loaded(kind) > 0 and not self.is_due(kind)

    def _creates(self, kind: str) -> bool:
        return bool(self._every) and self._source.creates(kind)

    def _loaded(self, kind: str) -> int:
        loaded: int = getattr(self._context.progress, f"{kind}_loaded")
        return loaded

    def load(self, kind: str) -> Any:
        """A new loader of ``kind``.

        Raises:
            WrongTypeError: What the method returned is not a loader.
            ConfigurationError: It returned ``None`` this time.
        """
        progress = self._context.progress
        running, epoch = progress.epoch, self._loaded(kind) if self.was_due(kind) else progress.epoch
        setattr(progress, f"{kind}_loaded", epoch)
        progress.epoch = epoch  # a resumed run creates it as it was created, by an epoch that is over
        try:
            loader = self._source.loader(kind)
        finally:
            progress.epoch = running
        if loader is None:
            raise ConfigurationError(
                f"{kind}_dataloader: returned a loader at first, and None in epoch {epoch}. Return a loader each time; "
                "to leave out validation, set trainer.limit_val_batches = 0."
            )
        return loader


def check_reloading(every: int, source: DataSource) -> None:
    """Reject ``reload_dataloaders_every_n_epochs`` where there is nothing to call again.

    Raises:
        ConfigurationError: All loaders were passed to ``fit``.
    """
    if every and not any(source.creates(kind) for kind in KINDS):
        raise ConfigurationError(
            f"reload_dataloaders_every_n_epochs={every}: loaders that are passed to fit cannot be created again. "
            "Define train_dataloader or val_dataloader in a core.DataModule or in the module, and do not pass loaders."
        )
