"""States from metadata and CORE_PLUGINS alone."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from installing import files_of, lay_down

from core.discovery import selection
from core.discovery.registry import Registry
from core.discovery.selection import Survey, survey
from core.errors import BackendError, ConfigurationError

PLUGINS = {
    "torch-hal-acme": "[core.accelerators]\nacme = acme\n[core.strategies]\nacme_ring = acme\n",
    "torch-hal-acme2": "[core.accelerators]\nacme = acme2\n",
    "torch-hal-beta": "[core.accelerators]\nbeta = beta\n",
}

ACME, ACME2, RING, BETA = (
    "acme@torch-hal-acme",
    "acme@torch-hal-acme2",
    "acme_ring@torch-hal-acme",
    "beta@torch-hal-beta",
)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for distribution, entry_points in PLUGINS.items():
        lay_down(tmp_path, files_of(distribution, "1.0", entry_points))
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def states(found: Survey) -> dict[str, str]:
    return {f"{row.name}@{row.distribution}": row.state for row in found.rows if not row.is_core}


def changed(value: str) -> dict[str, str]:
    """The states that ``value`` in CORE_PLUGINS changes."""
    return dict(states(survey({"CORE_PLUGINS": value})).items() - states(survey({})).items())


def test_without_a_setting(installed: Path) -> None:
    """What one claims is installed; what two claim is a conflict that names both and the setting that decides."""
    found = survey({})
    assert states(found) == {
        ACME: "conflict",
        ACME2: "conflict",
        RING: "installed",
        BETA: "installed",
    }
    for row in found.rows:
        if row.name == "acme":
            assert "torch-hal-acme 1.0 and torch-hal-acme2 1.0" in row.reason
            assert "CORE_PLUGINS=acme@torch-hal-acme2" in row.reason


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("beta", {ACME: "denied", ACME2: "denied", RING: "denied"}),
        ("cpu", {ACME: "denied", ACME2: "denied", RING: "denied", BETA: "denied"}),
        ("-beta", {BETA: "denied"}),
        ("-torch-hal-acme2", {ACME: "installed", ACME2: "denied"}),
        ("-Torch_HAL.acme2", {ACME: "installed", ACME2: "denied"}),
        ("-acme@torch-hal-acme", {ACME: "denied", ACME2: "installed"}),
        ("acme@torch-hal-acme2", {ACME: "denied", ACME2: "installed"}),
        ("acme@torch-hal-acme,beta", {ACME: "installed", ACME2: "denied", RING: "denied"}),
        ("torch-hal-acme", {ACME: "installed", ACME2: "denied", BETA: "denied"}),
        (" , ", {}),
        ("", {}),
    ],
)
def test_entries(value: str, expected: dict[str, str], installed: Path) -> None:
    """Each form of entry allows, denies or decides as documented, by backend or by distribution."""
    assert changed(value) == expected


def test_denial_says_why(installed: Path) -> None:
    """A denied row quotes the setting."""
    reasons = {row.name: row.reason for row in survey({"CORE_PLUGINS": "acme_ring,-acme"}).rows}
    assert reasons["beta"] == "CORE_PLUGINS allows only acme_ring"
    assert reasons["acme"] == "CORE_PLUGINS has -acme"


@pytest.mark.parametrize("value", ["-cpu", "-torch-hal", "beta"])
def test_cores_own_always_stay(value: str, installed: Path) -> None:
    """No entry denies one of core's own backends."""
    assert {row.state for row in survey({"CORE_PLUGINS": value}).rows if row.is_core} == {"installed"}


@pytest.mark.parametrize(
    ("value", "warning"),
    [
        ("-bota", "CORE_PLUGINS: '-bota' does not name an installed backend or distribution. Did you mean 'beta'?"),
        ("acme@torch-hal-beta", "'acme@torch-hal-beta' does not name an installed"),
        ("-cpu", "CORE_PLUGINS: '-cpu' has no effect, because torch-hal's own backends are always allowed."),
    ],
)
def test_an_entry_without_effect_is_a_warning(value: str, warning: str, installed: Path) -> None:
    """An entry that changes nothing, such as a misspelt one, is a warning."""
    assert warning in survey({"CORE_PLUGINS": value}).warnings[0]


@pytest.mark.parametrize("value", ["-", "--acme", "acme@", "@torch-hal-acme", "-@x", "acme beta", "beta,-"])
def test_a_malformed_entry_is_refused(value: str) -> None:
    """An entry of no valid form is an error that quotes it and the valid forms."""
    with pytest.raises(ConfigurationError, match=r"CORE_PLUGINS: invalid entry .*\. Valid, .*<name>@<distrib"):
        survey({"CORE_PLUGINS": value})


@pytest.mark.parametrize(
    ("requires", "state", "reason"),
    [
        ([], "installed", ""),
        (["torch-hal"], "installed", ""),
        (["torch-hal>=0.0.1,<99"], "installed", ""),
        (["torch-hal>=99"], "incompatible", "needs torch-hal>=99; this is torch-hal "),
        (["torch-hal>=0.0.1", "torch-hal<0.0.2"], "incompatible", "needs torch-hal<0.0.2"),
        (["torch-hal[testing]==99.*"], "incompatible", "needs torch-hal[testing]==99.*"),
        (["torch-hal>=99; extra == 'all'"], "installed", ""),
        (["torch-hal>=banana"], "incompatible", "its requirement 'torch-hal>=banana' cannot be read"),
    ],
)
def test_compatibility(
    requires: list[str], state: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a distribution requires of torch-hal decides, before anything of it is imported."""
    lay_down(tmp_path, files_of("torch-hal-acme", "1.0", "[core.accelerators]\nacme = acme\n", requires))
    monkeypatch.syspath_prepend(tmp_path)
    (row,) = (row for row in survey({}).rows if row.name == "acme")
    assert row.state == state
    assert reason in row.reason


@pytest.mark.parametrize(
    ("declared", "supported", "state", "reason"),
    [
        ("", (1, 1), "installed", ""),
        ("1 = acme", (1, 1), "installed", ""),
        (
            "2 = acme",
            (1, 1),
            "incompatible",
            "written for version 2 of the plugin interface; this torch-hal VERSION has 1."
            " Run: pip install --upgrade torch-hal",
        ),
        ("1 = acme", (1, 2), "installed", ""),
        (
            "1 = acme",
            (2, 3),
            "incompatible",
            "written for version 1 of the plugin interface; this torch-hal VERSION has 3"
            " and supports those from 2. Run: pip install --upgrade torch-hal-acme",
        ),
        (
            "",
            (2, 2),
            "incompatible",
            "written for version 1 of the plugin interface, because it declares none; this "
            "torch-hal VERSION has 2. Run: pip install --upgrade torch-hal-acme",
        ),
        ("1 = acme\n2 = acme", (1, 1), "installed", ""),
        ("10 = acme\n9 = acme", (10, 10), "installed", ""),
        (
            "2 = acme\n3 = acme",
            (1, 1),
            "incompatible",
            "written for version 2 and 3 of the plugin interface; this "
            "torch-hal VERSION has 1. Run: pip install --upgrade torch-hal",
        ),
        ("0.1 = acme", (1, 1), "failed", "entry_points.txt declares the interface '0.1'. Valid: 1 = <package>"),
        ("0 = acme", (1, 1), "failed", "entry_points.txt declares the interface '0'. Valid: 1 = <package>"),
    ],
)
def test_versions_of_the_interface(
    declared: str,
    supported: tuple[int, int],
    state: str,
    reason: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What a distribution was written for decides, of all its kinds, with the command that helps."""
    entry_points = (
        f"[core.accelerators]\nacme = no_module\n[core.loggers]\nacme = no_module:Class\n[core.interface]\n{declared}"
    )
    lay_down(tmp_path, files_of("torch-hal-acme", "1.0", entry_points))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(selection, "OLDEST_INTERFACE", supported[0])
    monkeypatch.setattr(selection, "INTERFACE", supported[1])
    found = survey({})
    rows = [row for row in (*found.rows, *found.classes) if row.name == "acme"]
    assert [row.kind for row in rows] == ["accelerator", "logger"]
    assert {(row.state, row.reason) for row in rows} == {(state, reason.replace("VERSION", found.version))}
    if state == "incompatible":
        with pytest.raises(BackendError, match=re.escape(rows[0].reason)):
            Registry.read({}).find("accelerator", "acme")


def test_incompatible_claimant_makes_no_conflict(installed: Path) -> None:
    """A distribution that cannot be used does not stand in the way of one that can."""
    entry_points = "[core.accelerators]\nbeta = newer\n"
    lay_down(installed, files_of("torch-hal-newer", "1.0", entry_points, ["torch-hal>=99"]))
    found = states(survey({}))
    assert found["beta@torch-hal-beta"] == "installed"
    assert found["beta@torch-hal-newer"] == "incompatible"


def test_name_of_cores_own_cannot_be_taken(installed: Path) -> None:
    """Only the stranger's row is in conflict; core's own stays installed."""
    lay_down(installed, files_of("torch-hal-thief", "1.0", "[core.strategies]\nddp = thief\n"))
    rows = [row for row in survey({}).rows if row.name == "ddp"]
    assert [(row.distribution, row.state) for row in rows] == [
        ("torch-hal", "installed"),
        ("torch-hal-thief", "conflict"),
    ]
