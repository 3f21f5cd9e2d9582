"""The base of every suite: the backend, its declarations, and the available devices."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from typing import Any, ClassVar

import pytest
import torch

from torch_hal.discovery.loading import target_name
from torch_hal.errors import CoreError
from torch_hal_devkit.backend import BackendUnderTest
from torch_hal_devkit.marks import UNSUPPORTED, Needs, facts, not_run, skip_by_declaration
from torch_hal_devkit.watch import watched

__all__ = ["CHANGED", "Suite", "check_watch", "copied", "reference"]

CHANGED = pytest.StashKey[list[str]]()
"""On a test: what calls of the backend have changed, and may not."""

_PLAIN = (str, int, float, bool, type(None))
_LEAST = {"T2": 1, "T3": 2}


class Suite:
    """Base of the suites. A derived class can override fixtures without a leading underscore.

    A derived class that does not override :meth:`backend` runs for each ``--backend`` of its kind.
    """

    kind: ClassVar[str]
    """The kind of backend, a key of :data:`core.kinds.KINDS`."""

    @pytest.fixture
    def backend(self, request: pytest.FixtureRequest) -> BackendUnderTest:
        """The backend; an override returns ``BackendUnderTest.find(kind, name, os.environ)``."""
        backend: BackendUnderTest = request.param
        return backend

    @pytest.fixture
    def unsupported(self, backend: BackendUnderTest) -> Mapping[str, str]:
        """What the suite's hardware declares as unsupported: capability -> reason."""
        del backend
        return {}

    @pytest.fixture
    def devices(self, backend: BackendUnderTest) -> int | None:
        """The number of devices of the suite's accelerator; ``None`` if any number of processes shares it."""
        del backend
        return None

    @pytest.fixture
    def hardware(self, pytestconfig: pytest.Config) -> str:
        """What the suite runs on, in the vendor's own description, for the report: ``--hardware``."""
        stated: str = pytestconfig.getoption("--hardware", default="")
        return stated

    @pytest.fixture
    def hide_devices(self, pytestconfig: pytest.Config) -> Mapping[str, str]:
        """Environment variables with which a process sees no device of this hardware: ``--hide-devices``."""
        options: list[str] = pytestconfig.getoption("--hide-devices", default=[])
        return dict(option.split("=", 1) for option in options)

    @pytest.fixture(autouse=True)
    def _one_thread(self) -> Iterator[None]:
        """Use one thread: on such small problems, more threads only wait for each other."""
        before = torch.get_num_threads()
        torch.set_num_threads(1)
        yield
        torch.set_num_threads(before)

    @pytest.fixture(autouse=True)
    def _watch(self, request: pytest.FixtureRequest, backend: BackendUnderTest) -> Iterator[None]:
        """Watch all calls of the backend in this process, in fixtures too: each changes only what it may."""
        needs = Needs.of(request.node)
        with ExitStack() as stack:
            found: list[str] = []
            if needs is None or needs.tier != "T0":
                with suppress(CoreError):  # the test itself says that it cannot be loaded
                    found = stack.enter_context(watched(backend.kind, backend.load()))
            request.node.stash[CHANGED] = found
            yield
            check_watch(request.node)

    @pytest.fixture(autouse=True)
    def _declared(self, request: pytest.FixtureRequest, backend: BackendUnderTest, hardware: str) -> None:
        """Skip what the backend declares as unsupported, and what this machine has too few devices for."""
        known = facts(request.node)
        known["backend"] = backend.facts()
        known["hardware"] = hardware
        needs = Needs.of(request.node)
        if needs is None:
            return
        if needs.capabilities:
            _check_declaration(request, needs, known)
        if needs.tier in _LEAST:
            _check_devices(request, _LEAST[needs.tier], known)


def copied(given: Any, how: str) -> Any:
    """A copy of an object, ``"pickled"`` as for a process that is started, or ``"copied"`` deeply."""
    return pickle.loads(pickle.dumps(given)) if how == "pickled" else copy.deepcopy(given)


def check_watch(item: pytest.Item) -> None:
    """Fail if a call has changed what it may not, since the last check."""
    found = item.stash.get(CHANGED, [])
    said, found[:] = "; ".join(found), []
    assert not said, f"{said}. Expected: no change"


def _check_declaration(request: pytest.FixtureRequest, needs: Needs, known: dict[str, Any]) -> None:
    unsupported: Mapping[str, str] = request.getfixturevalue("unsupported")
    known["unsupported"] = dict(unsupported)
    declaration = "; ".join(
        f"{name} is not supported: {unsupported[name]}" for name in needs.capabilities if name in unsupported
    )
    if declaration and not needs.tried:
        skip_by_declaration(declaration)
    if declaration:
        request.node.stash[UNSUPPORTED] = declaration


def _check_devices(request: pytest.FixtureRequest, least: int, known: dict[str, Any]) -> None:
    available: int | None = request.getfixturevalue("devices")
    stated: int | None = request.config.getoption("--backend-devices", default=None)
    known["devices"] = available
    if available is None or available >= least:
        return
    found = f"{available or 'no'} device{'s' * (available > 1)} found"
    if stated is not None and stated >= least:
        pytest.fail(f"--backend-devices={stated}, but {found}", pytrace=False)
    not_run(f"{found}; the test needs {least}")


def reference(backend: BackendUnderTest) -> dict[str, Any]:
    """What a separate process needs to create this backend; skips the test if it cannot."""
    spec = backend.spec
    target = target_name(spec.target)
    if "<locals>" in target or not _is_plain(dict(spec.init_args)):
        not_run(f"{target} was registered in code, and cannot be created in another process")
    return {"target": target, "init_args": dict(spec.init_args), "name": spec.name}


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(isinstance(key, str) for key in value) and all(map(_is_plain, value.values()))
    return isinstance(value, _PLAIN) or (isinstance(value, list) and all(map(_is_plain, value)))
