"""The table of kinds: everything that enumerates the kinds of backend is derived from it or compared with it."""

from __future__ import annotations

import importlib
import inspect
import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import attrs
import pytest
import torch_hal_devkit

import core
from core import hookspecs, registration, specs
from core.kinds import CLASS_KINDS, KINDS, Kind
from core.plan import ARGUMENTS, Plan
from core.strategies.inputs import StrategyParts

ROOT = Path(__file__).parents[2]

ADDITIONS = {
    "kinds.py": """
KINDS["tracker"] = Kind(
    "tracker", group="core.trackers", base="torch_hal_sixth:Tracker", title="tracker", description="where values go",
    variable="CORE_TRACKER", default="file",
)
""",
    "specs.py": """

@attrs.frozen(kw_only=True)
class TrackerSpec(BackendSpec):
    kind: ClassVar[str] = "tracker"
""",
    "hookspecs.py": """

@hookspec
def core_trackers() -> Sequence[TrackerSpec]:
    raise NotImplementedError
""",
    "registration.py": """
REGISTRIES["tracker"] = TrackerRegistry = CodeRegistry("tracker")
""",
}
"""What a sixth kind adds to the end of files of core: enough to discover, list, probe and register its backends."""

FIELDS = {
    "plan/request.py": ("    environ: Mapping[str, str] = ", '    tracker: Any = "auto"\n'),
    "plan/model.py": ("    devices: tuple", "    tracker: Choice\n"),
    "strategies/base.py": ("        plan: ProcessPlan,\n", "        tracker: object,\n"),
}
"""The typed fields that a sixth kind adds: the file, the text that they precede, the fields. With them, a backend of
the kind is requested, resolved, sent to started processes, and given to the strategy."""

PLUGIN = """
from core.hookspecs import hookimpl
from core.specs import TrackerSpec

class Tracker:
    pass

class FileTracker(Tracker):
    pass

@hookimpl
def core_trackers():
    return [TrackerSpec(name="file", target="torch_hal_sixth:FileTracker")]
"""


@pytest.fixture(scope="module")
def sixth(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of processes with a copy of core that has a sixth kind, and one plugin with a backend of it."""
    folder = tmp_path_factory.mktemp("sixth")
    shutil.copytree(ROOT / "core", folder / "core", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "torch_hal").symlink_to("core")
    for name, addition in ADDITIONS.items():
        with (folder / "core" / name).open("a", encoding="utf-8") as file:
            file.write(addition)
    for name, (following, field) in FIELDS.items():
        file_of_core = folder / "core" / name
        text = file_of_core.read_text("utf-8")
        assert text.count(following) == 1
        file_of_core.write_text(text.replace(following, field + following), "utf-8")
    info = folder / "torch_hal_sixth-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: torch-hal-sixth\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[core.trackers]\nfile = torch_hal_sixth\n")
    (folder / "torch_hal_sixth.py").write_text(PLUGIN)
    environ = {name: value for name, value in os.environ.items() if not name.startswith("CORE_")}
    return {**environ, "PYTHONPATH": str(folder)}


def run(environ: dict[str, str], *command: str) -> str:
    """The output of Python with these arguments."""
    done = subprocess.run(
        [sys.executable, "-P", *command], env=environ, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_sixth_kind_is_listed_and_probed(sixth: dict[str, str]) -> None:
    """A row in the table, a spec class, a hook and a registry are all that discovery, probing and the listing need."""
    assert run(sixth, "-m", "core.list", "--kind", "tracker").splitlines() == [
        "TRACKER  DISTRIBUTION         STATE",
        "file     torch-hal-sixth 1.0  installed",
    ]
    (row,) = json.loads(run(sixth, "-m", "core.list", "--kind", "tracker", "--probe", "--json"))["backends"]
    assert (row["name"], row["state"], row["detail"]) == ("file", "available", "")


def test_a_sixth_kind_is_found_and_registered(sixth: dict[str, str]) -> None:
    """The registry finds its names; its in-process registry and the command's arguments exist."""
    code = """
import torch_hal_devkit

import core
from core.discovery.registry import Registry
from torch_hal_sixth import FileTracker

(spec,) = Registry.read({}).find("tracker", "file")
assert Registry.read({}).load(spec) is FileTracker
core.TrackerRegistry.register("mine", FileTracker, aliases=("my",))
assert Registry.read({}).names("tracker") == ["file", "mine"]
assert Registry.read({}).find("tracker", "my")[0].name == "mine"
"""
    run(sixth, "-c", code)
    assert "--tracker" in run(sixth, "-m", "core.explain", "--help")


def test_a_sixth_kind_is_resolved(sixth: dict[str, str]) -> None:
    """Its argument, variable and default choose a backend, also in a started process; the strategy receives it."""
    code = """
from core.environments.local import LAUNCHED
from core.plan import Request, assemble, resolve
from torch_hal_sixth import FileTracker

def tracker(environ, **arguments):
    plan = resolve(Request.read(environ=environ, **arguments))
    assert type(plan.parts["tracker"]) is FileTracker
    return plan, plan.tracker.reason

cpu = {"accelerator": "cpu", "devices": 1}
plan, reason = tracker({}, **cpu)
assert reason == "the default", reason
assert tracker({}, tracker="file", **cpu)[1] == "requested by tracker='file'"
assert "CORE_TRACKER" in tracker({"CORE_TRACKER": "file"}, **cpu)[1]
tracker({}, tracker=FileTracker(), **cpu)
assert tracker({LAUNCHED: plan.for_ranks().to_json()}, **cpu)[1] == ""
assemble(plan)
"""
    run(sixth, "-c", code)
    assert "CORE_TRACKER" in run(sixth, "-m", "core.explain", "--help")


def test_typed_fields_and_signatures_name_every_kind() -> None:
    """What is written out for type checkers agrees with the table."""
    arguments = [*ARGUMENTS]
    parts = KINDS.keys() - {"strategy"}
    assert set(arguments) == {*KINDS, "devices", "num_nodes"}
    assert [field.name for field in attrs.fields(Plan) if str(field.type) == "Choice"] == [*KINDS]
    assert [*inspect.signature(core.Runtime).parameters][: len(arguments)] == arguments
    assert [*inspect.signature(core.Trainer).parameters][: len(arguments)] == arguments
    assert inspect.signature(core.Strategy.connect).parameters.keys() - {"self", "plan"} == parts
    assert StrategyParts.__annotations__.keys() - {"precision_plugin"} == parts


def test_the_project_declares_entry_points_of_every_kind_and_no_other() -> None:
    """The groups of pyproject.toml are those of the table."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    groups = {group for group in project["entry-points"] if group.startswith("core.")}
    assert groups == {kind.group for kind in (*KINDS.values(), *CLASS_KINDS.values())}


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.name)
def test_each_kind_has_all_its_parts(kind: Kind) -> None:
    """Base class, spec, hook, registry and public names of a kind exist under the names in the table."""
    module, _, name = kind.base.partition(":")
    base = getattr(importlib.import_module(module), name)
    assert getattr(core, kind.base_name) is base
    assert getattr(specs, kind.spec).kind == kind.name
    assert kind.hook in hookspecs.__all__
    assert getattr(hookspecs, kind.hook).__annotations__["return"] == f"Sequence[{kind.spec}]"
    assert getattr(core, kind.registry) is registration.REGISTRIES[kind.name]
    assert getattr(registration, kind.registry) is registration.REGISTRIES[kind.name]
    assert {kind.base_name, kind.registry} <= {*core.__all__}
    assert (Path(torch_hal_devkit.__file__).parent / "new_plugin" / "templates" / kind.name / "README.md.txt").is_file()
