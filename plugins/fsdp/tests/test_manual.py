"""Modules that call backward and step their optimizers themselves."""

from __future__ import annotations

from typing import Any

import pytest

from .conftest import run_script


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What ``manual.py`` says."""
    return run_script(tmp_path_factory.mktemp("manual"), "manual.py")


@pytest.mark.parametrize(("form", "reference", "rel"), [("fsdp", "ddp", 1e-5), ("mixed", "ddp mixed", 2e-2)])
def test_a_gan_is_that_of_ddp(said: dict[str, Any], form: str, reference: str, rel: float) -> None:
    """Two optimizers, toggled, several backward passes in a step, one of them not exchanged, and clipping."""
    found, expected = said[form], said[reference]
    assert found["steps"] == expected["steps"] == 12
    assert found["metrics"] == pytest.approx(expected["metrics"], rel=rel)
    assert found["parameters"] == pytest.approx(expected["parameters"], rel=rel, abs=rel)


def test_it_is_evaluated_afterwards(said: dict[str, Any]) -> None:
    """A later run takes the sharded layers up."""
    assert said["later"]["score_epoch"] == said["fsdp"]["metrics"]["score_epoch"]


@pytest.mark.parametrize(
    ("case", "says"),
    [
        ("own", "'scale' belong to OwnParameter itself. Put them in a layer"),
        ("released", "reshard_after_forward=False: strategy 'fsdp' does not support it with manual optimization"),
    ],
)
def test_what_cannot_be_gathered_layer_by_layer_is_refused(said: dict[str, Any], case: str, says: str) -> None:
    """The message says what to change."""
    assert says in said[f"refused {case}"]
