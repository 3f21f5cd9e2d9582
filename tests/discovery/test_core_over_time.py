"""A plugin and a core that were written for different versions of the plugin interface."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any, ClassVar

import pytest
from installing import environment, files_of, lay_down

from core.utilities.renamed import Renaming

ROOT = Path(__file__).parents[2]

# -- former names --------------------------------------------------------------------------------------------------


class Base(Renaming, renamed={"old": "new", "flag": "switch"}):
    """A base class in which a method and an attribute have been renamed."""

    switch: ClassVar[bool] = False

    def new(self) -> str:
        return "base"


class Middle(Base):
    """A class of core that knows the new name."""

    def new(self) -> str:
        return "middle of " + super().new()


def test_a_class_written_with_former_names_works() -> None:
    """What it defines is used by the new names, and ``super()`` reaches the next class; a definition is a warning."""
    with pytest.warns(FutureWarning) as found:

        class Plugin(Middle):
            flag = True

            def old(self) -> str:
                return f"plugin of {super().old()}"  # type: ignore[misc]

    assert [re.sub(".*Plugin ", "", str(one.message).partition(":")[0]) for one in found] == [
        "defines old, which is now called new",
        "defines flag, which is now called switch",
    ]
    assert found[0].filename == __file__
    with pytest.warns(FutureWarning, match="Plugin.old is now called new: use this name"):
        assert Plugin().new() == "plugin of middle of base"
    assert Plugin().switch is Plugin.switch is True


def test_callers_may_use_former_names() -> None:
    """A read, a call and an assignment by a former name mean the new one, with a warning."""
    middle: Any = Middle()
    with pytest.warns(FutureWarning, match="Middle.old is now called new"):
        assert middle.old() == "middle of base"
    with pytest.warns(FutureWarning, match="Middle.flag is now called switch"):
        middle.flag = True
    assert middle.switch is True
    with pytest.warns(FutureWarning):
        assert middle.flag is True


def test_a_class_with_both_names_gets_no_warning() -> None:
    """So one version of a plugin works with two versions of core."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")

        class Both(Middle):
            def new(self) -> str:
                return "both of " + super().new()

            old = new

        assert Both().new() == "both of middle of base"


# -- core 0.2 ------------------------------------------------------------------------------------------------------

METHOD = ("remove_checkpoint", "delete_checkpoint")
FIELD = ("init_args", "target_arguments")
FORMER_FIELD = """
    init_args: Mapping[str, Any] | None = None

    def _take_former_names(self) -> None:
        if self.init_args is not None:
            warnings.warn("init_args is now called target_arguments: rename it.", FutureWarning, stacklevel=4)
            object.__setattr__(self, "target_arguments", _frozen_mapping(self.init_args))
            object.__setattr__(self, "init_args", None)
"""


def replace(file: Path, old: str, new: str) -> None:
    """Replace what stands once in a file."""
    text = file.read_text("utf-8")
    assert text.count(old) == 1, (file, old)
    file.write_text(text.replace(old, new), "utf-8")


def make_core(folder: Path, which: str) -> Path:
    """A copy of this core, in which 0.2 has renamed a method and a field of specs, and has a new abstract method."""
    shutil.copytree(ROOT / "core", folder / "core", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "torch_hal").symlink_to("core")
    project = (ROOT / "pyproject.toml").read_text("utf-8")
    groups = re.findall(r'^\[project\.entry-points\."(core\.\w+)"\]\n((?:\S+ = .*\n)+)', project, re.MULTILINE)
    points = "\n".join(f"[{group}]\n{entries}" for group, entries in groups).replace('"', "")
    lay_down(folder, files_of("torch-hal", f"{which[:3]}.0", points, requires=()))
    if which == "0.1":
        return folder
    for file in (folder / "core").rglob("*.py"):
        text = file.read_text("utf-8")
        for old, new in (METHOD, FIELD):
            text = re.sub(rf"\b{old}\b", new, text)
        file.write_text(text, "utf-8")
    kinds, specs = folder / "core/kinds.py", folder / "core/specs.py"
    replace(kinds, "\nINTERFACE = 1", "\nINTERFACE = 2")
    base = folder / "core/checkpoints/base.py"
    if "without" in which:
        replace(kinds, "OLDEST_INTERFACE = 1", "OLDEST_INTERFACE = 2")
        method = "\n    @abstractmethod\n    def size_of_checkpoint(self, path: str) -> int: ...\n"
        replace(base, "(Renaming, ABC):\n", f"(Renaming, ABC):\n{method}")
        own = "    def size_of_checkpoint(self, path: str) -> int:\n        return 0\n\n"
        replace(folder / "core/checkpoints/torch_io.py", "(CheckpointIO):\n", f"(CheckpointIO):\n{own}")
    else:
        replace(base, "(Renaming, ABC):\n", f"(Renaming, ABC, renamed={dict([METHOD])}):\n")
        field = "    target_arguments: Mapping[str, Any] = attrs.field(factory=dict, converter=_frozen_mapping)\n"
        replace(specs, field, FORMER_FIELD + field)
        replace(specs, "import re\n", "import re\nimport warnings\n")
        place = "        # In one place, since core's own"
        replace(specs, place, f"        self._take_former_names()\n{place}")
    return folder


HOOKS = """\
from core.hookspecs import hookimpl
from core.specs import CheckpointIOSpec

@hookimpl
def core_checkpoint_ios():
    return [CheckpointIOSpec(name="acme", target="acme_io:AcmeIO", {field}={{"greeting": "acme"}})]
"""
CLASS = """\
from core.checkpoints import TorchCheckpointIO

class AcmeIO(TorchCheckpointIO):
    def __init__(self, greeting):
        self.greeting = greeting

    def {method}(self, path):
        print(self.greeting, "removes", flush=True)
        super().{method}(path)
"""
BOTH_HOOKS = """\
from core import kinds
from core.hookspecs import hookimpl
from core.specs import CheckpointIOSpec

FIELD = "target_arguments" if kinds.INTERFACE > 1 else "init_args"

@hookimpl
def core_checkpoint_ios():
    return [CheckpointIOSpec(name="acme", target="acme_io:AcmeIO", **{FIELD: {"greeting": "acme"}})]
"""
BOTH_CLASS = """\
from core import kinds
from core.checkpoints import TorchCheckpointIO

class AcmeIO(TorchCheckpointIO):
    def __init__(self, greeting):
        self.greeting = greeting

    def delete_checkpoint(self, path):
        print(self.greeting, "removes", flush=True)
        super().delete_checkpoint(path) if kinds.INTERFACE > 1 else super().remove_checkpoint(path)

    remove_checkpoint = delete_checkpoint
"""
TRAINING = """\
import sys, torch
from core import Module, Trainer

class Line(Module):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(1, 1)
    def training_step(self, batch, batch_idx):
        return self.net(batch).sum()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

loader = torch.utils.data.DataLoader(torch.ones(4, 1), batch_size=2)
options = dict(accelerator="cpu", devices=1, logger=False, enable_progress_bar=False, default_root_dir=sys.argv[1])
Trainer(max_epochs=2, checkpoint_io="acme", **options).fit(Line(), loader)
print("trained")
"""


def make_plugin(folder: Path, which: str) -> Path:
    """The plugin of 0.1, that of 0.2, one that works with both, or one that says it is for 1 and uses names of 2."""
    field, method = FIELD[which != "for 1"], METHOD[which != "for 1"]
    versions = {"for 1": "1", "for 2": "2", "for 1 and 2": "12", "for 2, says 1": "1"}[which]
    interfaces = "".join(f"{version} = acme_io\n" for version in versions)
    points = f"[core.checkpoint_ios]\nacme = acme_hooks\n\n[core.interface]\n{interfaces}"
    if which == "for 1 and 2":
        sources = {"acme_hooks.py": BOTH_HOOKS, "acme_io.py": BOTH_CLASS}
    else:
        sources = {"acme_hooks.py": HOOKS.format(field=field), "acme_io.py": CLASS.format(method=method)}
    return lay_down(folder, {**files_of("torch-hal-acme", "1.0", points, requires=()), **sources})


WORKS, WARNS = "trains", "trains, with warnings"
UPDATE = "written for version {} of the plugin interface; this torch-hal {}. Run: pip install --upgrade {}"
UPDATE_CORE = UPDATE.format(2, "0.1.0 has 1", "torch-hal")
UPDATE_PLUGIN = UPDATE.format(1, "0.2.0 has 2", "torch-hal-acme")
NO_FIELD = "unexpected keyword argument 'target_arguments'"


@pytest.mark.parametrize(
    ("core", "plugin", "state", "result"),
    [
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                ("0.2 with former names", "for 1", "installed", WARNS),
                ("0.2 without former names", "for 1", "incompatible", UPDATE_PLUGIN),
                ("0.1", "for 2", "incompatible", UPDATE_CORE),
                ("0.2 without former names", "for 1 and 2", "installed", WORKS),
                ("0.1", "for 2, says 1", "installed", NO_FIELD),
            )
        ),
        *(
            pytest.param(*case, marks=pytest.mark.exhaustive)
            for case in (
                ("0.1", "for 1", "installed", WORKS),
                ("0.2 with former names", "for 2", "installed", WORKS),
                ("0.2 without former names", "for 2", "installed", WORKS),
                ("0.1", "for 1 and 2", "installed", WORKS),
                ("0.2 with former names", "for 1 and 2", "installed", WORKS),
            )
        ),
    ],
)
def test_plugins_and_cores_of_two_versions(core: str, plugin: str, state: str, result: str, tmp_path: Path) -> None:
    """A pair trains, or is refused before the run with a sentence that says what to update; see docs/plugins.md."""
    environ = environment(make_core(tmp_path / "site", core), make_plugin(tmp_path / "plugin", plugin))

    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, *map(str, arguments)]
        return subprocess.run(
            command, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False
        )

    listed = json.loads(run("-m", "core.list", "--json").stdout)
    (row,) = (row for row in listed["backends"] if row["name"] == "acme")
    assert (listed["version"], row["state"]) == (f"{core[:3]}.0", state)
    done = run("-c", TRAINING, tmp_path / "runs")
    if result in (WORKS, WARNS):
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines() == ["acme removes", "trained"]
        warned = "acme_io.AcmeIO defines remove_checkpoint, which is now called delete_checkpoint: rename it."
        assert (warned in done.stderr) == (result == WARNS)
        assert ("FutureWarning" in done.stderr) == (result == WARNS)
    else:
        last = done.stderr.splitlines()[-1]
        assert done.returncode == 1
        assert last.startswith("torch_hal.errors.BackendError: checkpoint_io='acme': "), done.stderr
        assert result in last
        assert row["reason"] in last
