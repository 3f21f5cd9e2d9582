"""What is asked of every strategy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import attrs
import pytest
import torch

from core import Accelerator, Precision, Request, Runtime, resolve
from core.errors import ConfigurationError
from core.strategies import Strategy
from core.testing.backend import BackendUnderTest
from core.testing.suites.accelerator import counted, present_accelerator
from core.testing.suites.base import Suite
from core.testing.suites.collectives import CollectiveTests
from core.testing.suites.failing import FailureTests
from core.testing.suites.importing import ImportTests
from core.testing.suites.joint_training import JointTrainingTests
from core.testing.suites.metadata import MetadataTests
from core.testing.suites.several import SEVERAL, Runs, StartCommand
from core.testing.tiers import not_run, skip_by_declaration, tier

__all__ = ["Declared", "StrategySuite"]


@attrs.frozen
class Declared:
    """What a strategy serves, by its spec and by its class together."""

    accelerators: tuple[str, ...] | None
    precisions: tuple[str, ...] | None
    least: int
    most: int | None
    one_process_per_node: bool
    serves_own_loop: bool
    launcher: str | None
    started_by: str

    @classmethod
    def of(cls, backend: BackendUnderTest) -> Declared:
        """What ``backend`` declares."""
        spec, made = backend.spec, backend.create()
        highest = [limit for limit in (spec.max_processes, made.max_processes) if limit is not None]
        return cls(
            accelerators=_both(spec.accelerators, made.accelerators),
            precisions=_both(spec.precisions, made.precisions),
            least=max(spec.min_processes, made.min_processes),
            most=min(highest, default=None),
            one_process_per_node=made.one_process_per_node,
            serves_own_loop=made.serves_own_loop,
            launcher=made.launcher,
            started_by=made.started_by,
        )

    @property
    def is_started_by_torchrun(self) -> bool:
        """Whether the processes of torchrun are such as it takes."""
        return self.started_by == Strategy.started_by


class StrategySuite(MetadataTests, ImportTests, CollectiveTests, JointTrainingTests, FailureTests, Suite):
    """The conformance suite of strategies: on one device, and on as many as the least that is several."""

    kind: ClassVar[str] = "strategy"
    sizes: ClassVar[tuple[str, ...]] = ("one", "several")

    @pytest.fixture
    def declared(self, backend: BackendUnderTest) -> Declared:
        """What the strategy says that it serves."""
        return Declared.of(backend)

    @pytest.fixture
    def accelerator(self, backend: BackendUnderTest, declared: Declared) -> BackendUnderTest:
        """What the strategy is run on: the first that it serves and that is here, or what ``"auto"`` means here."""
        if declared.accelerators is None:
            return present_accelerator(backend)
        served = (BackendUnderTest.find("accelerator", name, backend.environ) for name in declared.accelerators)
        found = next((accelerator for accelerator in served if counted(accelerator) != 0), None)
        if found is None:
            not_run(f"of the accelerators that it serves ({', '.join(declared.accelerators)}) none is here")
        return found

    @pytest.fixture
    def lacks(self, accelerator: BackendUnderTest, declared: Declared) -> Mapping[str, str]:
        """What the accelerator declares that it lacks, as far as the strategy needs it."""
        unneeded = {"collectives"} if declared.one_process_per_node else set()
        return {word: reason for word, reason in accelerator.load().lacks.items() if word not in unneeded}

    @pytest.fixture
    def devices(self, accelerator: BackendUnderTest) -> int | None:
        """How many the accelerator counts."""
        return counted(accelerator)

    @pytest.fixture
    def words(self, backend: BackendUnderTest, accelerator: BackendUnderTest) -> Mapping[str, Any]:
        """The strategy and the accelerator that it is run on."""
        return {"accelerator": accelerator.name, "strategy": backend.name}

    @pytest.fixture
    def counts(
        self, declared: Declared, starts_itself: bool, start_command: StartCommand | None
    ) -> Mapping[str, int | str]:
        """One process, and the least number that is several, if the strategy serves them and they can be started."""
        several: int | str = max(2, declared.least)
        if not (starts_itself or start_command or declared.is_started_by_torchrun):
            several = f"started_by={declared.started_by!r}, and the fixture start_command of the suite gives no command"
        if declared.most is not None and declared.most < 2 and not declared.one_process_per_node:
            several = f"max_processes={declared.most}: it serves one process"
        return {
            "one": 1 if declared.least <= 1 else f"min_processes={declared.least}: it serves several processes only",
            "several": several,
        }

    @pytest.fixture
    def starts_itself(self, declared: Declared) -> bool:
        """As its launcher says."""
        return declared.launcher is not None or declared.one_process_per_node

    # -- what it declares ----------------------------------------------------------------------------------------

    @tier("T1")
    def test_some_number_of_processes_is_served(self, declared: Declared) -> None:
        """The least number of processes that is served is at least 1, and not above the most."""
        low, high = declared.least, declared.most
        fits = low >= 1 and (high is None or high >= low)
        assert fits, f"spec and class serve {low} to {high} processes. Expected: 1 or more, and some number"

    @tier("T1")
    @pytest.mark.parametrize("what", ["accelerators", "precisions"])
    def test_some_name_is_served(self, declared: Declared, what: str) -> None:
        """Of the names that spec and class say are served, some is in both."""
        served = getattr(declared, what)
        assert served is None or served, f"spec and class have none of their {what} in common. Expected: one at least"

    @tier("T1")
    def test_the_launcher_can_be_named(self, declared: Declared) -> None:
        """``launcher`` is a word, or ``None`` where the strategy starts no processes."""
        launcher = declared.launcher
        assert launcher is None or (isinstance(launcher, str) and launcher.isidentifier()), (
            f"launcher={launcher!r}. Expected: a word such as 'script' or 'spawn', or None"
        )

    # -- what it refuses -----------------------------------------------------------------------------------------

    @tier("T2")
    def test_another_accelerator_is_refused(self, backend: BackendUnderTest, declared: Declared) -> None:
        """An accelerator that is not served is refused by name, before any process starts."""
        if declared.accelerators is None:
            skip_by_declaration("accelerators is None: it serves them all")
        message = _refused(backend, accelerator=_Elsewhere(), devices=declared.least)
        _check_named(message, "elsewhere", *declared.accelerators)

    @tier("T2")
    def test_another_precision_is_refused(
        self, backend: BackendUnderTest, accelerator: BackendUnderTest, declared: Declared
    ) -> None:
        """A precision that is not served is refused by name, before any process starts."""
        if declared.precisions is None:
            skip_by_declaration("precisions is None: it serves them all")
        pretended = _pretended(accelerator)
        message = _refused(backend, accelerator=pretended, devices=declared.least, precision=_Odd())
        _check_named(message, "odd", *declared.precisions)

    @tier("T2")
    @pytest.mark.parametrize("which", ["fewer", "more"])
    def test_another_number_of_processes_is_refused(
        self, backend: BackendUnderTest, accelerator: BackendUnderTest, declared: Declared, which: str
    ) -> None:
        """One process fewer than are served, and one more, are refused, before any process starts."""
        if declared.one_process_per_node:
            skip_by_declaration("one_process_per_node is True: any number of devices is one process")
        if which == "fewer" and declared.least == 1:
            skip_by_declaration("min_processes=1: there are no fewer")
        if which == "more" and declared.most is None:
            skip_by_declaration("max_processes is None: it serves any number")
        count = declared.least - 1 if which == "fewer" else (declared.most or 0) + 1
        _check_named(_refused(backend, accelerator=_pretended(accelerator), devices=count), backend.name, str(count))

    @tier("T2")
    def test_an_own_loop_is_refused(
        self, backend: BackendUnderTest, accelerator: BackendUnderTest, declared: Declared
    ) -> None:
        """A Runtime refuses a strategy by name that runs whole training steps only."""
        if declared.serves_own_loop:
            skip_by_declaration("serves_own_loop is True")
        try:
            Runtime(accelerator=accelerator.name, strategy=backend.name, devices=declared.least)
        except ConfigurationError as error:
            _check_named(str(error), backend.name)
        else:
            pytest.fail(f"Runtime(strategy={backend.name!r}) is made. Expected: core.errors.ConfigurationError")

    # -- processes that were started already ---------------------------------------------------------------------

    @SEVERAL
    def test_processes_that_were_started_already(
        self, several: Runs, declared: Declared, tolerances: Mapping[str, float]
    ) -> None:
        """In processes that torchrun started the strategy starts none, and trains as in those of its own."""
        if declared.one_process_per_node:
            skip_by_declaration("one_process_per_node is True: one process drives all devices")
        if not declared.is_started_by_torchrun:
            skip_by_declaration(f"started_by={declared.started_by!r}: it takes no processes of torchrun's")
        outcome = several.run("started", dict(several.words), started_here=several.devices)
        said = [(who["rank"], who["world_size"]) for who in outcome.values("who")]
        expected = [(rank, several.devices) for rank in range(several.devices)]
        assert said == expected, (
            f"processes started as torchrun does are (rank, world size) {said}. Expected: {expected}"
        )
        own = [found["losses"] for found in several.everything.values("fit")]
        for rank, found in enumerate(outcome.values("fit")):
            pairs = zip(found["losses"], own[rank], strict=True)
            error = max(abs(loss - other) for loss, other in pairs)
            assert error <= tolerances["32-true"], (
                f"losses of rank {rank} are {error:.3g} off those of its own processes"
            )
        assert outcome.code == 0, f"{outcome.end}. Expected: exit code 0\n{outcome.output[-4000:]}"
        assert not outcome.left, f"still there {outcome.left}. Expected: no process of the run"


def _both(one: tuple[str, ...] | None, other: tuple[str, ...] | None) -> tuple[str, ...] | None:
    if one is None or other is None:
        return other if one is None else one
    return tuple(name for name in one if name in other)


class _Odd(Precision):
    """A precision that no strategy knows."""

    name = "odd"


class _Elsewhere(Accelerator):
    """An accelerator that no strategy knows."""

    name = "elsewhere"

    def is_available(self) -> bool:
        return True

    def auto_device_count(self) -> int:
        return 64

    def get_parallel_devices(self, devices: list[int]) -> list[torch.device]:
        return [torch.device("cpu") for _ in devices]


def _pretended(accelerator: BackendUnderTest) -> Any:
    """The accelerator with any number of devices, of which nobody asks more than their names."""
    cls = accelerator.load()
    pretended = {
        "name": accelerator.name,
        "device_limit": lambda self: None,
        "pick_devices": lambda self, n: [*range(n)],
    }
    return type(cls.__name__, (cls,), pretended)(**accelerator.spec.init_args)


def _refused(backend: BackendUnderTest, **words: Any) -> str:
    try:
        plan = resolve(Request.read(environ=backend.environ, strategy=backend.name, **words), backend.registry)
    except ConfigurationError as error:
        return str(error)
    except Exception as error:
        raise AssertionError(f"{words} raises {error!r}. Expected: core.errors.ConfigurationError") from error
    raise AssertionError(f"{words} gives {plan.world_size} process(es). Expected: core.errors.ConfigurationError")


def _check_named(message: str, *words: str) -> None:
    for word in words:
        assert word in message, f"the error does not name {word!r}: {message}"
