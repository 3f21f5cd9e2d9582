"""Names whose plugin is not installed: the error says what to install."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from installing import files_of, lay_down

from core.discovery.registry import Registry
from core.errors import UnknownNameError
from core.hints.remedies import known_names, providers
from core.kinds import COMMAND, COMMANDS, KINDS

ROOT = Path(__file__).parents[2]


def refused(kind: str, name: str, environ: dict[str, str] | None = None) -> str:
    with pytest.raises(UnknownNameError) as caught:
        Registry.read(environ or {}).find(kind, name)
    return str(caught.value)


@pytest.mark.parametrize(
    ("kind", "name", "distributions"),
    [
        ("accelerator", "cuda", "pip install torch-hal-cuda."),
        ("accelerator", "gpu", "pip install torch-hal-cuda or pip install torch-hal-mps or pip install torch-hal-xpu."),
        ("accelerator", "tpu", "pip install torch-hal-xla."),
        ("strategy", "deepspeed", "pip install torch-hal-deepspeed."),
        ("strategy", "fsdp", "pip install torch-hal-fsdp."),
        ("strategy", "deepspeed_stage_3_offload", "pip install torch-hal-deepspeed."),
        ("cluster_environment", "horovod", "pip install torch-hal-horovod."),
        ("checkpoint_io", "xla", "pip install torch-hal-xla."),
    ],
)
def test_missing_plugin_names_its_package(kind: str, name: str, distributions: str) -> None:
    """A known name whose plugin is not installed gives the line that installs it, and suggests no other name."""
    message = refused(kind, name)
    assert message.startswith(f"{kind}={name!r}: the plugin is not installed. Run: {distributions}")
    assert "Did you mean" not in message


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
