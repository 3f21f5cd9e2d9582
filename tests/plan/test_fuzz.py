"""Any values of devices and names, drawn by hypothesis: an answer, or an error of ours that can be printed."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy
from drawing import TEXTS, drawn
from hypothesis import given
from hypothesis import strategies as st

from core.accelerators import parse_devices
from core.discovery.registry import Registry
from core.errors import BackendError, CoreError, DeviceError
from core.kinds import KINDS
from core.plan.request import ARGUMENTS, Request
from core.specs import BackendSpec

SIMPLE = st.one_of(
    st.integers(-3, 9),
    st.integers(),
    st.booleans(),
    st.none(),
    st.floats(),
    TEXTS,
    st.text("0123456789,-+ auto\n٣²", max_size=8),
    st.sampled_from([numpy.int64(2), numpy.uint8(1), numpy.float32(2), 2 + 0j, b"1", object(), int]),
)
DEVICES = st.one_of(
    SIMPLE, st.lists(SIMPLE, max_size=4), st.lists(SIMPLE, max_size=3).map(tuple), st.sets(st.integers(0, 3))
)


def printed(question: Callable[[], Any]) -> Any:
    try:
        answer = question()
    except CoreError as error:
        answer = error
    assert not isinstance(answer, CoreError) or len(str(answer).encode(errors="surrogatepass")) < 5000
    return answer


@drawn(2)
@given(DEVICES, st.integers(0, 8), st.booleans())
def test_any_devices(devices: Any, number: int, is_limited: bool) -> None:
    """Distinct devices that are there, or DeviceError."""
    found = printed(
        lambda: parse_devices(
            devices, all_devices=number if is_limited else 1, limit=number if is_limited else None, accelerator="acme"
        )
    )
    if isinstance(found, CoreError):
        assert isinstance(found, DeviceError)
        return
    assert found
    assert len(set(found)) == len(found)
    assert all(type(index) is int and 0 <= index < (number if is_limited else 4096) for index in found)


@drawn()
@given(st.sampled_from(sorted(KINDS)), TEXTS)
def test_any_name_of_a_backend(kind: str, name: str) -> None:
    """The specs of a name that there is, or an error that is no traceback of something else."""
    found = printed(lambda: Registry.read(os.environ).find(kind, name))
    assert isinstance(found, BackendError | CoreError) or all(isinstance(spec, BackendSpec) for spec in found)


@drawn()
@given(
    st.dictionaries(st.sampled_from([*ARGUMENTS, "device"]), DEVICES, max_size=4),
    st.dictionaries(st.sampled_from([f"CORE_{name.upper()}" for name in ARGUMENTS]), TEXTS, max_size=4),
)
def test_any_arguments(arguments: dict[str, Any], environ: dict[str, str]) -> None:
    """A Request, or an error."""
    assert isinstance(printed(lambda: Request.read(environ=environ, **arguments)), Request | CoreError)
