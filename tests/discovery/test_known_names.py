"""Names whose plugin is not installed: the error says what to install."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from installing import files_of, lay_down
from packaging.requirements import Requirement

from core.discovery.registry import Registry
from core.errors import UnknownNameError
from core.hints.remedies import _source, known_names, package, providers, with_sources
from core.kinds import COMMAND, COMMANDS, KINDS

ROOT = Path(__file__).parents[2]
CLONE = ROOT.as_uri()
"""From where core is installed in these tests."""


def refused(kind: str, name: str, environ: dict[str, str] | None = None) -> str:
    with pytest.raises(UnknownNameError) as caught:
        Registry.read(environ or {}).find(kind, name)
    return str(caught.value)


@pytest.mark.parametrize(
    ("kind", "name", "plugins"),
    [
        ("accelerator", "cuda", ["cuda"]),
        ("accelerator", "gpu", ["cuda", "mps", "xpu"]),
        ("accelerator", "tpu", ["xla"]),
        ("strategy", "deepspeed", ["deepspeed"]),
        ("strategy", "fsdp", ["fsdp"]),
        ("strategy", "deepspeed_stage_3_offload", ["deepspeed"]),
        ("cluster_environment", "horovod", ["horovod"]),
        ("checkpoint_io", "xla", ["xla"]),
    ],
)
def test_missing_plugin_names_its_package(kind: str, name: str, plugins: list[str]) -> None:
    """A known name whose plugin is not installed gives the line that installs it, and suggests no other name."""
    message = refused(kind, name)
    lines = " or ".join(f"pip install torch-hal-{plugin}@{CLONE}/plugins/{plugin}" for plugin in plugins)
    assert message.startswith(f"{kind}={name!r}: the plugin is not installed. Run: {lines}.")
    assert "Did you mean" not in message


@pytest.mark.parametrize(
    ("recorded", "plugin", "core"),
    [
        (None, "torch-hal-cuda", "torch-hal[cli]"),
        (
            {"url": "file:///a%20b/torch_hal-0.1.0-py3-none-any.whl", "archive_info": {}},
            "torch-hal-cuda",
            "torch-hal[cli]",
        ),
        (
            {"url": "file:///a%20b/clone", "dir_info": {}},
            "torch-hal-cuda@file:///a%20b/clone/plugins/cuda",
            "torch-hal[cli]@file:///a%20b/clone",
        ),
        (
            {"url": "https://git.test/hal", "vcs_info": {"vcs": "git", "commit_id": "1f3"}},
            "torch-hal-cuda@git+https://git.test/hal@1f3#subdirectory=plugins/cuda",
            "torch-hal[cli]@git+https://git.test/hal@1f3",
        ),
    ],
)
def test_packages_come_from_where_core_does(
    recorded: Any, plugin: str, core: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What pip has noted of core's origin (PEP 610) decides; pip reads both forms as what they name."""
    noted = SimpleNamespace(read_text=lambda name: recorded and json.dumps(recorded))
    monkeypatch.setattr("importlib.metadata.distribution", lambda name: noted)
    _source.cache_clear()
    try:
        assert [package("torch-hal-cuda"), package("torch-hal[cli]")] == [plugin, core]
        assert with_sources("(pip install torch-hal-cuda).") == f"(pip install {plugin})."
    finally:
        _source.cache_clear()
    for name, written in (("torch-hal-cuda", plugin), ("torch-hal", core)):
        assert Requirement(written).name == name
        assert (Requirement(written).url or "") == written.partition("@")[2]


def test_misspelt_name_of_a_missing_plugin() -> None:
    """The nearest name can be one of a plugin that is not installed, with its package."""
    message = refused("strategy", "deepseed")
    assert "Did you mean 'deepspeed'" in message
    assert "'deepspeed': pip install torch-hal-deepspeed" in message


def test_installed_and_denied_plugin_need_not_be_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An alias of an installed plugin that CORE_PLUGINS denies is refused with that setting, not with pip."""
    lay_down(tmp_path, files_of("torch-hal-cuda", "1.2", "[core.accelerators]\ncuda = x.plugin\n", ["torch-hal"]))
    monkeypatch.syspath_prepend(tmp_path)
    message = refused("accelerator", "gpu", {"CORE_PLUGINS": "-cuda"})
    assert "torch-hal-cuda 1.2, which provides it, is denied: CORE_PLUGINS has -cuda" in message


def test_table_is_what_the_plugins_declare() -> None:
    """The table has each backend and verb of each package of this repository, under its kind and distribution."""
    for file in sorted((ROOT / "plugins").glob("*/pyproject.toml")):
        project = tomllib.loads(file.read_text("utf-8"))["project"]
        for kind, group in [*((kind.name, kind.group) for kind in KINDS.values()), (COMMAND, COMMANDS)]:
            for name in project.get("entry-points", {}).get(group, {}):
                assert project["name"] in providers(kind, name), (kind, name)


def test_table_has_known_kinds_only() -> None:
    """A misspelt kind in the table would hide its names."""
    tables = tomllib.loads((ROOT / "core" / "hints" / "remedies.toml").read_text("utf-8"))
    assert {kind for kinds in tables["packages"].values() for kind in kinds} <= {*KINDS, COMMAND}
    assert sum(len(known_names(kind)) for kind in KINDS) > 30


def test_table_is_read_for_errors_only() -> None:
    """Reading what is installed does not read the table."""
    code = "import sys; from core.discovery.registry import Registry; Registry.read({}).names('accelerator'); "
    code += "from core.hints import remedies; sys.exit(remedies._tables.cache_info().currsize)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
