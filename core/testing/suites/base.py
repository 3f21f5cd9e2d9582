"""What every suite has: the backend it is about, what that declares, and which devices are here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import pytest
import torch

from core.discovery.loading import target_name
from core.testing.backend import BackendUnderTest
from core.testing.tiers import LACKED, Needs, facts, not_run, skip_by_declaration

__all__ = ["Suite", "reference"]

_PLAIN = (str, int, float, bool, type(None))
_LEAST = {"T2": 1, "T3": 2}


class Suite:
    """Base of the suites. Fixtures that a derived class may override are those without an underscore.

    A derived class that does not override :meth:`backend` is run for each ``--backend`` of its kind.
    """

    kind: ClassVar[str]
    """The kind of backend, a key of :data:`core.kinds.KINDS`."""

    @pytest.fixture
    def backend(self, request: pytest.FixtureRequest) -> BackendUnderTest:
        """The backend; an override returns ``BackendUnderTest.find(kind, name, os.environ)``."""
        backend: BackendUnderTest = request.param
        return backend

    @pytest.fixture
    def lacks(self, backend: BackendUnderTest) -> Mapping[str, str]:
        """What the hardware that the suite runs on declares that it lacks: capability -> reason."""
        del backend
        return {}

    @pytest.fixture
    def devices(self, backend: BackendUnderTest) -> int | None:
        """How many devices the suite's accelerator has here; ``None`` where any number of processes shares it."""
        del backend
        return None

    @pytest.fixture
    def hardware(self, pytestconfig: pytest.Config) -> str:
        """What the suite runs on, in the vendor's words, for the report: ``--hardware``."""
        stated: str = pytestconfig.getoption("--hardware", default="")
        return stated

    @pytest.fixture
    def hidden(self, pytestconfig: pytest.Config) -> Mapping[str, str]:
        """Environment variables with which a process sees no device of this hardware: ``--hide-devices``."""
        words: list[str] = pytestconfig.getoption("--hide-devices", default=[])
        return dict(word.split("=", 1) for word in words)

    @pytest.fixture(autouse=True)
    def _one_thread(self) -> Iterator[None]:
        """On problems this small, more threads only wait for one another."""
        before = torch.get_num_threads()
        torch.set_num_threads(1)
        yield
        torch.set_num_threads(before)

    @pytest.fixture(autouse=True)
    def _declared(self, request: pytest.FixtureRequest, backend: BackendUnderTest, hardware: str) -> None:
        """Skip what the backend declares that it does not do, and what this machine has no device for."""
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


def _check_declaration(request: pytest.FixtureRequest, needs: Needs, known: dict[str, Any]) -> None:
    lacks: Mapping[str, str] = request.getfixturevalue("lacks")
    known["lacks"] = dict(lacks)
    declaration = "; ".join(f"lacks {word}: {lacks[word]}" for word in needs.capabilities if word in lacks)
    if declaration and not needs.tried:
        skip_by_declaration(declaration)
    if declaration:
        request.node.stash[LACKED] = declaration


def _check_devices(request: pytest.FixtureRequest, least: int, known: dict[str, Any]) -> None:
    there: int | None = request.getfixturevalue("devices")
    stated: int | None = request.config.getoption("--backend-devices", default=None)
    known["devices"] = there
    if there is None or there >= least:
        return
    what = f"{there or 'no'} device{'s' * (there > 1)} of it here"
    if stated is not None and stated >= least:
        pytest.fail(f"--backend-devices says that there are {stated}, but there is {what}", pytrace=False)
    not_run(f"{what}; it takes {least}")


def reference(backend: BackendUnderTest) -> dict[str, Any]:
    """What a process of its own needs to make this backend; leaves the test where it cannot."""
    spec = backend.spec
    target = target_name(spec.target)
    if "<locals>" in target or not _is_plain(dict(spec.init_args)):
        not_run(f"{target} was registered in code, and cannot be made in another process")
    return {"target": target, "init_args": dict(spec.init_args), "name": spec.name}


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(isinstance(key, str) for key in value) and all(map(_is_plain, value.values()))
    return isinstance(value, _PLAIN) or (isinstance(value, list) and all(map(_is_plain, value)))
