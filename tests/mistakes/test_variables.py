"""Environment variables of torch-hal: misspelt ones are refused, and others' are left alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from core.discovery.states import survey
from core.errors import ConfigurationError
from core.list import main
from core.plan import Request, resolve
from core.variables import INTERNAL, VARIABLES


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("CORE_DEVICE", "CORE_DEVICES"),
        ("CORE_ACCELERATORS", "CORE_ACCELERATOR"),
        ("CORE_STRATEGIE", "CORE_STRATEGY"),
        ("CORE_PLUGIN", "CORE_PLUGINS"),
        ("CORE_PRECISON", "CORE_PRECISION"),
        ("CORE_NUM_NODE", "CORE_NUM_NODES"),
        ("CORE_DEBUGG", "CORE_DEBUG"),
    ],
)
def test_misspelt_variable(name: str, meant: str) -> None:
    """A misspelt variable is refused with its value and the nearest name, before anything is resolved."""
    with pytest.raises(ConfigurationError) as caught:
        resolve(Request.read(environ={name: "2"}))
    assert f"environment variable {name}='2'" in str(caught.value)
    assert f"Did you mean '{meant}'" in str(caught.value)


def test_listing_refuses_it_too(capsys: pytest.CaptureFixture[str]) -> None:
    """The listing exits with 2 and the same message."""
    assert main([], environ={"CORE_PLUGIN": "-acme"}) == 2
    assert "Did you mean 'CORE_PLUGINS'" in capsys.readouterr().err


@pytest.mark.parametrize(
    "name",
    [
        *VARIABLES,
        *INTERNAL,
        "CORE_PEER_ADDRESS",
        "CORE_SERVICE_HOST",
        "CORE_PORT",
        "CORE_PORT_80_TCP",
        "CORE",
        "DEVICE",
    ],
)
def test_other_variables_are_left_alone(name: str) -> None:
    """torch-hal's own variables, and other programs' that begin alike, are no misspellings."""
    value = {"CORE_PLUGINS": ""}.get(name, "1")
    survey({name: value})


def test_the_page_has_the_table() -> None:
    """The page of the documentation has each variable with its meaning."""
    page = (Path(__file__).parents[2] / "docs" / "environment-variables.md").read_text("utf-8")
    for name, meaning in VARIABLES.items():
        assert f"| `{name}` | {meaning} |" in page
