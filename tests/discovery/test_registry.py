"""The registry: which backends a name means, and why it may mean none."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from installing import environment, files_of, lay_down

from core import registration
from core.accelerators import Accelerator
from core.discovery.registry import Registry
from core.errors import BackendError, ConfigurationError, UnknownNameError
from core.specs import AcceleratorSpec

PLUGIN = """\
import pathlib
from core.hookspecs import hookimpl
from core.specs import AcceleratorSpec

pathlib.Path(__file__).with_suffix(".asked").touch()

@hookimpl
def core_accelerators():
    return [AcceleratorSpec(name={name!r}, target={target!r}, aliases=("gpu", {alias!r}), priority={priority})]
"""

TARGETS = """\
import torch
from core.accelerators import Accelerator

class SimAccelerator(Accelerator):
    def is_available(self):
        return True

    def auto_device_count(self):
        return 1

    def get_parallel_devices(self, devices):
        return [torch.device("cpu") for _ in devices]

class Unfinished(Accelerator):
    def is_available(self):
        return True

class Stranger:
    pass

class Outer:
    Inner = SimAccelerator

def function():
    pass
"""

PRIORITIES = {"sim_a": 10, "sim_b": 90, "sim_c": 10}


def add_plugin(site: Path, name: str, *, code: str | None = None, priority: int = 50, **metadata: str) -> None:
    distribution = metadata.pop("distribution", f"torch-hal-{name.replace('_', '-')}")
    package = distribution.replace("-", "_")
    target = f"{package}.targets:SimAccelerator"
    code = code or PLUGIN.format(name=name, target=target, alias=f"{name}!", priority=priority)
    requires = [metadata.pop("requires", "torch-hal")]
    entry_points = f"[core.accelerators]\n{name} = {package}.plugin\n"
    lay_down(site, files_of(distribution, "1.2", entry_points, requires))
    lay_down(site, {f"{package}/__init__.py": "", f"{package}/plugin.py": code, f"{package}/targets.py": TARGETS})


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory on sys.path with three good plugins; forgotten with all that was imported from it."""
    for name, priority in PRIORITIES.items():
        add_plugin(tmp_path, name, priority=priority)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for module in [module for module in sys.modules if module.startswith("torch_hal_")]:
        del sys.modules[module]


def names(registry: Registry, name: str) -> list[str]:
    return [spec.name for spec in registry.find("accelerator", name)]


def imported(site: Path) -> set[str]:
    """The packages of ``site`` that are imported here."""
    files = {name: getattr(module, "__file__", None) or "" for name, module in sys.modules.items()}
    return {name.split(".")[0] for name, file in files.items() if file.startswith(str(site))}


def asked(site: Path) -> set[str]:
    """The packages whose hook module has run in any process."""
    return {path.parent.name for path in site.glob("*/plugin.asked")}


def test_name_activates_only_its_plugin(site: Path) -> None:
    """Asking for a name asks the plugin that has it and no other, and imports none here."""
    assert names(Registry.read({}), "sim_a") == ["sim_a"]
    assert asked(site) == {"torch_hal_sim_a"}
    assert imported(site) == set()


def test_reading_and_listing_activate_nothing(site: Path) -> None:
    """Reading the registry and asking for its rows and names imports no plugin."""
    registry = Registry.read({})
    assert {"sim_a", "sim_b", "sim_c", "cpu"} <= set(registry.names("accelerator"))
    assert {row.state for row in registry.rows()} == {"installed"}
    assert imported(site) == asked(site) == set()


def test_shared_alias_means_all_by_priority(site: Path) -> None:
    """A name that no backend has means all that claim it as an alias, best priority first, then by name."""
    registry = Registry.read({})
    assert names(registry, "gpu") == ["sim_b", "sim_a", "sim_c"]
    assert names(registry, "sim_c!") == ["sim_c"]


def test_name_goes_before_alias(site: Path) -> None:
    """A backend's name means that backend alone, whichever others claim it as an alias."""
    add_plugin(site, "gpu")
    assert names(Registry.read({}), "gpu") == ["gpu"]
    assert asked(site) == {"torch_hal_gpu"}


def test_unknown_name_names_the_nearest(site: Path) -> None:
    """A name that no backend claims is refused with the argument, the name, the valid names and the nearest."""
    with pytest.raises(UnknownNameError) as caught:
        Registry.read({}).find("accelerator", "sim-a", argument="CORE_ACCELERATOR")
    assert "CORE_ACCELERATOR='sim-a'" in str(caught.value)
    assert "Valid: 'cpu', 'sim_a', 'sim_b', 'sim_c', 'torch', or an alias: 'gpu'" in str(caught.value)
    assert "Did you mean 'sim_a'" in str(caught.value)


def test_unknown_name_that_is_similar_to_none(site: Path) -> None:
    """Its plugin may not be installed: the error says how to install one."""
    with pytest.raises(UnknownNameError, match=r"run: pip install torch-hal-PLUGIN$"):
        Registry.read({}).find("accelerator", "quantum")


def test_unknown_name_among_a_thousand(site: Path, in_code: registration.CodeRegistry) -> None:
    """The error lists the ten most similar names of many, how many others there are, and the command for all."""
    for number in range(1_000):
        in_code.register(f"acme{number}", "torch_hal_sim_a.targets:SimAccelerator")
    with pytest.raises(UnknownNameError) as caught:
        Registry.read({}).find("accelerator", "acme_77")
    message = str(caught.value)
    valid = message.partition("Valid: ")[2].partition(" and ")[0].split(", ")
    assert len(valid) == len({*valid}) == 10
    assert valid[0] == "'acme77'"
    assert "and 995 more (all of them: torch-hal list)" in message
    assert "Did you mean 'acme77'" in message
    assert len(message) < 500


def test_denied_name(site: Path) -> None:
    """A denied name is refused with the setting, without importing its plugin."""
    with pytest.raises(
        BackendError, match=r"accelerator='sim_a': denied .torch-hal-sim-a 1.2.: CORE_PLUGINS has -sim_a"
    ):
        Registry.read({"CORE_PLUGINS": "-sim_a"}).find("accelerator", "sim_a")
    assert imported(site) == set()


def test_incompatible_name(site: Path) -> None:
    """A plugin for another core is refused with what it needs and what this is, without importing it."""
    add_plugin(site, "newer", requires="torch-hal>=99")
    with pytest.raises(
        BackendError, match=r"incompatible .torch-hal-newer 1.2.: needs torch-hal>=99; this is torch-hal"
    ):
        Registry.read({}).find("accelerator", "newer")
    assert imported(site) == set()


def test_conflict_and_its_decision(site: Path) -> None:
    """A name that two claim is refused with both and the setting, and works under that setting."""
    add_plugin(site, "sim_a", distribution="torch-hal-rival")
    with pytest.raises(BackendError) as caught:
        Registry.read({}).find("accelerator", "sim_a")
    assert "torch-hal-rival 1.2 and torch-hal-sim-a 1.2 claim 'sim_a'" in str(caught.value)
    assert "CORE_PLUGINS=sim_a@torch-hal-rival" in str(caught.value)
    assert imported(site) == set()
    decided = Registry.read({"CORE_PLUGINS": "sim_a@torch-hal-rival"})
    assert decided.origin(decided.find("accelerator", "sim_a")[0]) == "torch-hal-rival 1.2"
    assert asked(site) == {"torch_hal_rival"}


def test_cores_own_name_stays(site: Path) -> None:
    """A stranger that claims cpu is not even imported; core's works."""
    add_plugin(site, "cpu", distribution="torch-hal-thief")
    registry = Registry.read({})
    (spec,) = registry.find("accelerator", "cpu")
    assert registry.origin(spec).startswith("torch-hal ")
    assert imported(site) == set()


def test_broken_plugin_shows_its_cause(site: Path) -> None:
    """Asking for a broken name raises an error that says why and carries the cause."""
    add_plugin(site, "broken", code="raise RuntimeError('no driver')")
    registry = Registry.read({})
    with pytest.raises(BackendError, match=r"failed .torch-hal-broken 1.2.: RuntimeError: no driver") as caught:
        registry.find("accelerator", "broken")
    assert "raise RuntimeError('no driver')" in str(caught.value.__cause__)
    assert [row.name for row in registry.failures("accelerator")] == ["broken"]
    assert "broken" not in registry.names("accelerator")


def test_broken_plugin_harms_no_other(site: Path, caplog: pytest.LogCaptureFixture) -> None:
    """All usable backends are had next to broken ones, which are recorded and logged."""
    add_plugin(site, "broken", code="raise SystemExit(1)")
    registry = Registry.read({})
    assert [spec.name for spec in registry.specs("accelerator")] == ["cpu", "sim_a", "sim_b", "sim_c", "torch"]
    assert names(registry, "gpu") == ["sim_b", "sim_a", "sim_c"]
    assert [row.reason for row in registry.failures("accelerator")] == ["SystemExit: 1"]
    assert "torch-hal-broken 1.2 is broken: SystemExit: 1" in caplog.text
    with pytest.raises(UnknownNameError, match=r"because broken: 'torch-hal-broken 1.2'"):
        registry.find("accelerator", "br")


@pytest.mark.parametrize(
    "raising", ["raise OSError({text!r})", "{plugin}\n    raise OSError({text!r})"], ids=["import", "hook"]
)
def test_long_error_is_cut_in_the_log(site: Path, caplog: pytest.LogCaptureFixture, raising: str) -> None:
    """An error of 150,000 characters is logged short, with the command for all of it; its row keeps the whole."""
    text = "no driver " + 150_000 * "x"
    hook = PLUGIN.partition("    return")[0].rstrip()
    add_plugin(site, "long", code=raising.format(text=text, plugin=hook))
    registry = Registry.read({})
    registry.specs("accelerator")
    (message,) = (record.getMessage() for record in caplog.records if "torch-hal-long" in record.getMessage())
    assert "no driver xxx" in message
    assert "python -m core.list --probe --verbose" in message
    assert len(message) < 400
    (row,) = registry.failures("accelerator")
    assert text in row.reason


def test_undeclared_name_says_what_is_missing(site: Path) -> None:
    """A name that a plugin returns without declaring it raises an error with what it has to declare."""
    code = PLUGIN.format(name="other", target="a:B", alias="x", priority=1)
    add_plugin(site, "sim_d", code=code)
    with pytest.raises(BackendError, match="its metadata does not declare"):
        Registry.read({}).find("accelerator", "other")


def test_registries_are_independent(site: Path) -> None:
    """Two registries with different settings live side by side."""
    denying, allowing = Registry.read({"CORE_PLUGINS": "-sim_a"}), Registry.read({})
    assert names(allowing, "sim_a") == ["sim_a"]
    with pytest.raises(BackendError, match="denied"):
        denying.find("accelerator", "sim_a")


def test_misspelt_setting_is_told(site: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A name in CORE_PLUGINS that belongs to no plugin is logged; a malformed one is refused."""
    Registry.read({"CORE_PLUGINS": "-sim_z"})
    assert "'-sim_z' does not name an installed backend or distribution" in caplog.text
    with pytest.raises(ConfigurationError, match="CORE_PLUGINS"):
        Registry.read({"CORE_PLUGINS": "sim_a@"})


# -- registered in code -----------------------------------------------------------------------------------------------


class InCode(Accelerator):
    """Registered by the tests below."""

    def is_available(self) -> bool:
        return True

    def auto_device_count(self) -> int:
        return 1

    def get_parallel_devices(self, devices: list[int]) -> list[object]:  # type: ignore[override]
        return []


@pytest.fixture
def in_code() -> Iterator[registration.CodeRegistry]:
    """The registry of accelerators, with what a test adds taken out again."""
    registry = registration.REGISTRIES["accelerator"]
    before = set(registry)
    yield registry
    for name in set(registry) - before:
        registry.remove(name)


def test_registered_in_code(site: Path, in_code: registration.CodeRegistry) -> None:
    """What was registered in code is found by name and alias, is listed, and is of this process."""
    in_code.register("mine", InCode, aliases=("gpu",), priority=100)
    registry = Registry.read({})
    (spec,) = registry.find("accelerator", "mine")
    assert registry.load(spec) is InCode
    assert registry.origin(spec) == "this process"
    assert names(registry, "gpu") == ["mine", "sim_b", "sim_a", "sim_c"]
    assert [row.distribution for row in registry.rows("accelerator") if row.name == "mine"] == ["this process"]


def test_registered_with_an_installed_class_under_its_own_name(site: Path, in_code: registration.CodeRegistry) -> None:
    """A new name registered for a class of a plugin is of this process, not of the plugin."""
    in_code.register("mine", "torch_hal_sim_a.targets:SimAccelerator")
    registry = Registry.read({})
    assert [registry.origin(registry.find("accelerator", name)[0]) for name in ("sim_a", "mine")] == [
        "torch-hal-sim-a 1.2",
        "this process",
    ]


def test_registered_as_another_class_than_installed(site: Path, in_code: registration.CodeRegistry) -> None:
    """One name for two classes, installed and registered, is refused with both."""
    in_code.register("sim_a", InCode)
    registry = Registry.read({})
    with pytest.raises(BackendError) as caught:
        registry.find("accelerator", "sim_a")
    assert f"{__name__}:InCode is registered in this process" in str(caught.value)
    assert "torch_hal_sim_a.targets:SimAccelerator of torch-hal-sim-a 1.2" in str(caught.value)
    assert "sim_a" not in [spec.name for spec in registry.specs("accelerator")]


def test_registered_as_the_installed_class(site: Path, in_code: registration.CodeRegistry) -> None:
    """A class that registers itself when its plugin's target is imported is the installed backend still."""
    registry = Registry.read({})
    in_code.register("sim_a", registry.load(registry.find("accelerator", "sim_a")[0]))
    again = Registry.read({})
    (spec,) = again.find("accelerator", "sim_a")
    assert again.origin(spec) == "torch-hal-sim-a 1.2"


def test_registered_name_replaces_an_unusable_one(site: Path, in_code: registration.CodeRegistry) -> None:
    """A name whose installed plugin is denied or broken is free for a class registered in code."""
    add_plugin(site, "broken", code="1 / 0")
    in_code.register("broken", InCode)
    in_code.register("sim_a", InCode)
    registry = Registry.read({"CORE_PLUGINS": "-sim_a"})
    assert [registry.load(registry.find("accelerator", name)[0]) for name in ("broken", "sim_a")] == [InCode, InCode]


# -- loading targets --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        (
            "nowhere.at_all:Thing",
            "'nowhere.at_all:Thing' cannot be imported: ModuleNotFoundError: No module named 'nowhere'",
        ),
        ("torch_hal_sim_a.targets:SimAcelerator", "has no attribute 'SimAcelerator'. Did you mean 'SimAccelerator'"),
        ("torch_hal_sim_a.targets:Stranger", "Stranger' is not a subclass of torch_hal.accelerators"),
        ("torch_hal_sim_a.targets:function", "but an object of type function"),
        ("torch_hal_sim_a.targets:Unfinished", "does not define auto_device_count, get_parallel_devices"),
        ("torch_hal_sim_a.exits:Thing", "cannot be imported: SystemExit: 7"),
    ],
)
def test_target_that_cannot_be_used(target: str, reason: str, site: Path) -> None:
    """Loading a target that is not a usable class raises an error with the backend, the target and the true cause."""
    lay_down(site, {"torch_hal_sim_a/exits.py": "raise SystemExit(7)"})
    with pytest.raises(BackendError) as caught:
        Registry.read({}).load(AcceleratorSpec(name="mine", target=target))
    assert "accelerator 'mine' of this process is broken: its target" in str(caught.value)
    assert reason in str(caught.value)


def test_target_that_fails_carries_its_cause(site: Path) -> None:
    """The exception that a target's module raised is the cause of the error."""
    lay_down(site, {"torch_hal_sim_a/divides.py": "1 / 0"})
    with pytest.raises(BackendError) as caught:
        Registry.read({}).load(AcceleratorSpec(name="mine", target="torch_hal_sim_a.divides:Thing"))
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_load_gives_the_class(site: Path) -> None:
    """Loading imports the target, nested attributes too."""
    registry = Registry.read({})
    cls = registry.load(registry.find("accelerator", "sim_a")[0])
    assert cls.__name__ == "SimAccelerator"
    assert issubclass(cls, Accelerator)
    assert registry.load(AcceleratorSpec(name="x", target="torch_hal_sim_a.targets:Outer.Inner")) is cls


def test_origin_of_a_spec_made_from_another(site: Path) -> None:
    """A spec that was made from an installed one under another name is of the same distribution."""
    registry = Registry.read({})
    (spec,) = registry.find("accelerator", "sim_a")
    assert registry.origin(AcceleratorSpec(name="served", target=spec.target)) == "torch-hal-sim-a 1.2"


def test_finding_imports_no_torch(site: Path) -> None:
    """From the scan to the spec no torch is imported."""
    code = "import sys; from core.discovery.registry import Registry; "
    code += "assert Registry.read({}).find('accelerator', 'gpu')[0].name == 'sim_b'; sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], env=environment(site), timeout=60, check=False)
    assert done.returncode == 0
