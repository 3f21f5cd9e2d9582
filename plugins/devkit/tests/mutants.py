"""Plugins with one rule broken each, the test of the kit that is meant to notice, and what it says.

What a mutant breaks in a class stands in ``tests/simulated/torch_hal_mutants``; what it breaks in metadata, in a hook
module, by being imported or in ``detect`` is written here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import attrs

from torch_hal.kinds import KINDS

from .kit import SIMULATED, declare

__all__ = ["MUTANTS", "Mutant", "lay_down"]

_ACCELERATORS = "core.accelerators"
_HOOKS = """\
from core.hookspecs import hookimpl
from core.specs import AcceleratorSpec


@hookimpl
def core_accelerators():
    return {specs}


"""
_TARGET = """\
import os, signal, torch
from torch_hal_simx.accelerator import SimxAccelerator

"""
SESSION = """
try:
    import starting
except ModuleNotFoundError:
    pass
"""
"""What a session of tests has in its own ``sitecustomize``, if it has one."""


@attrs.frozen
class Mutant:
    """One broken rule."""

    name: str
    """The backend's name; of a class of ``torch_hal_mutants`` its own in small letters."""
    test: str
    """The test that must notice, without its suite."""
    says: str
    """What its message has, a regular expression."""
    kind: str = "accelerator"
    spec: dict[str, object] = attrs.field(factory=dict)
    """What its spec has besides."""
    hooks: str = ""
    """What its hook module does when it is imported."""
    target: str = ""
    """What the module of its class does when it is imported."""
    detect: str = "return 2"
    """The body of its ``detect``."""
    requires: str = "torch-hal>=0.1,<1"
    claimed_twice: bool = False
    startup: str = ""
    """What every process does that has it installed."""

    @property
    def id(self) -> str:
        """The id of the test that must notice."""
        return f"{self.kind}:{self.name}::{self.test}"

    @property
    def node(self) -> str:
        """The same as pytest names it, with the backend as its first parameter."""
        base = KINDS[self.kind].base.rpartition(":")[2]
        name, bracket, parameters = self.test.partition("[")
        parameters = f"{self.name}-{parameters}" if bracket else f"{self.name}]"
        return f"torch_hal_devkit.suite.test_{self.kind}::Test{base}::{name}[{parameters}"

    @property
    def is_class(self) -> bool:
        """Whether it is one of the classes in ``torch_hal_mutants``."""
        return self == Mutant(self.name, self.test, self.says, self.kind)


def changes(aspect: str) -> str:
    """The test of what an import changes."""
    return f"test_importing_the_class_changes_nothing[{aspect}]"


METADATA = [
    Mutant(
        "nameless",
        "test_names_in_metadata_are_those_of_the_hooks",
        "returns nothing",
        hooks="core_accelerators = hookimpl(lambda: [])",
    ),
    Mutant("heavy", "test_the_hook_module_imports_no_torch", "imports torch", hooks="import torch"),
    Mutant("chatty", "test_the_hook_module_prints_nothing", "prints 'hello'", hooks="print('hello')"),
    Mutant(
        "chatty_below",
        "test_the_hook_module_prints_nothing",
        "prints 'driver 1.2'",
        hooks="import os; os.write(2, b'driver 1.2')",
    ),
    Mutant("slow", "test_the_hook_module_is_quick", "takes 2", hooks="import time; time.sleep(2.1)"),
    Mutant("unbound", "test_it_requires_torch_hal", "does not declare which torch-hal", requires=""),
    Mutant("outdated", "test_it_is_usable", "is incompatible: needs torch-hal<0.1", requires="torch-hal<0.1"),
    Mutant("contested", "test_it_is_usable", "is conflict: .* claim 'contested'", claimed_twice=True),
    Mutant(
        "eager_to_start",
        "test_listing_imports_nothing",
        "imports .*torch_hal_eager_to_start",
        startup="import torch_hal_eager_to_start",
    ),
    Mutant("undescribed", "test_the_description", "description=''", spec={"description": ""}),
    Mutant("narcissist", "test_the_aliases", "its own name", spec={"aliases": ("narcissist",)}),
    Mutant("stutterer", "test_the_aliases", "duplicate alias", spec={"aliases": ("st", "st")}),
    Mutant("lost", "test_the_target_can_be_named", "no module", spec={"target": "torch_hal_nowhere:Lost"}),
    Mutant("detects_yes", "test_detection_counts_devices", "returned True", detect="return True"),
    Mutant("detects_with_torch", "test_detection_counts_devices", "imports torch", detect="import torch; return 2"),
    Mutant("detects_aloud", "test_detection_counts_devices", "prints 'looking'", detect="print('looking'); return 2"),
    Mutant(
        "detects_nothing",
        "test_detection_counts_devices",
        "^OSError: no driver, raised",
        detect="raise OSError('no driver')",
    ),
    Mutant("detects_fatally", "test_detection_counts_devices", "killed by SIG", detect="import os; os.abort()"),
    Mutant("detects_others", "test_detection_and_class_agree", "counts 7 .*the class 2", detect="return 7"),
]

IMPORTS = [
    Mutant("sets_variables", changes("environment variables"), "DRIVER", target="os.environ['DRIVER'] = '1'"),
    Mutant("moves", changes("working directory"), "->", target="os.chdir(os.sep)"),
    Mutant("takes_signals", changes("signal handlers"), "SIGTERM", target="signal.signal(signal.SIGTERM, print)"),
    Mutant("sets_dtype", changes("default dtype"), "float64", target="torch.set_default_dtype(torch.float64)"),
    Mutant("sets_device", changes("default device"), "meta", target="torch.set_default_device('meta')"),
    Mutant("seeds", changes("random state"), "torch: ", target="torch.manual_seed(5)"),
    Mutant("takes_threads", changes("number of threads"), "intra-op", target="torch.set_num_threads(7)"),
    Mutant(
        "sets_precision",
        changes("settings of torch"),
        "float32 matmul precision",
        target="torch.set_float32_matmul_precision('medium')",
    ),
    Mutant("takes_a_device", changes("devices in use"), "simx", target="import simx; torch.ones(1, device='simx')"),
    Mutant("talks", "test_importing_the_class_prints_nothing", "prints 'welcome'", target="print('welcome')"),
]

HARDWARE = [
    Mutant("raising", "test_is_available", "OSError: no driver"),
    Mutant("raisingwithoutdevices", "test_without_devices", "OSError: no device file"),
    Mutant("undecided", "test_is_available", "returned True and then False"),
    Mutant("truthy", "test_is_available", "returned 2. Expected: True or False"),
    Mutant("crashing", "test_is_available", "killed by SIG"),
    Mutant("greedy", "test_counting_initializes_no_device", "initialize simx"),
    Mutant("countsinwords", "test_devices_are_counted", "returned 'two'"),
    Mutant("countsonemore", "test_detection_and_class_agree", "counts 2 .*the class 3"),
    Mutant("onlyinitsfirstprocess", "test_is_available_after_fork", "forked afterwards: False"),
    Mutant("unsupportedwithoutreason", "test_unsupported_has_reasons", "is ' '"),
    Mutant("fallsback", "test_parse_devices_refuses_other_values['abc']", r"returned \[0\]"),
    Mutant("raisesanothererror", "test_parse_devices_refuses_other_values['abc']", "raises ValueError"),
    Mutant("wantsanargument", "test_it_is_made_from_the_spec", "driver"),
]

DEVICE = [
    Mutant("alwaysthefirst", "test_each_index_is_a_device_of_its_own", r"indices \[0, 1\] select"),
    Mutant("onetoofew", "test_all_devices_are_chosen['auto']", "Expected: auto_device_count"),
    Mutant("nolimit", "test_devices_that_are_not_there_are_refused", "selects .*Expected: core.errors.DeviceError"),
    Mutant("thehost", "test_its_devices_are_not_the_hosts", "the first one is cpu"),
    Mutant("picksnothing", "test_one_device_is_chosen[1]", "DeviceError"),
    Mutant("setsupanother", "test_a_device_is_made_current", "is on simx:1"),
    Mutant("cannotbewaitedfor", "test_synchronize_and_empty_cache", "no such call"),
    Mutant("tearsdownonce", "test_accelerator_teardown_twice", "handle"),
    Mutant("forksunharmed", "test_forking_after_use", "returned None, but a forked process"),
    Mutant("forgetsrandomstate", "test_random_state_is_restored", "draw different numbers|draws different numbers"),
    Mutant("stateofthehost", "test_random_state_is_restored", "draw different numbers|draws different numbers"),
    Mutant("stateonthedevice", "test_random_state_is_restored", "Expected: torch.uint8 on the CPU"),
    Mutant("forgetsrandomstate", "test_all_random_state_is_restored", "draw different numbers|draws different numbers"),
    Mutant("autocaststhehost", "test_autocast[bfloat16]", "returned torch.float32"),
    Mutant("statisticsinwords", "test_statistics_are_numbers_with_units", "is '12 MiB'"),
    Mutant("statisticswithoutunit", "test_statistics_are_numbers_with_units", "does not end with a unit"),
    Mutant("statisticsofonespelling", "test_statistics_are_numbers_with_units", r"has \[\]"),
    Mutant("countsnomemory", "test_memory_is_counted", "counts as 0"),
    Mutant("countsthepeak", "test_memory_is_counted", "counts as 0"),
    Mutant("hasnomemorystatistics", "test_memory_is_counted", "Expected: memory_allocated_bytes"),
]

TRAINING = [
    Mutant("leaks", "test_memory_is_freed", "leave 96 bytes in use"),
    Mutant("imprecise", "test_training_equals_the_cpu[32-true]", "loss of step 0 .*Expected: the CPU's"),
    Mutant("impreciseindouble", "test_training_equals_the_cpu[64-true]", r"\+- 1e-09"),
    Mutant("imprecise", "test_custom_loop_equals_the_cpu", "Expected: the CPU's"),
    Mutant("autocaststhehost", "test_mixed_precision_computes_in_16_bits[bf16-mixed]", "returned torch.float32"),
    Mutant("imprecise", "test_prediction_equals_the_cpu", "off by"),
    Mutant("imprecise", "test_validation_equals_the_cpu", "off by"),
    Mutant("roundscheckpoints", "test_resuming_on_another_accelerator[to the cpu]", "Expected: the CPU's"),
    Mutant("roundscheckpoints", "test_a_checkpoint_is_exact", "different values"),
    Mutant("alwaysthefirst", "test_a_device_by_its_index", r"devices=\[1\] and devices=\[0\] both select simx:0"),
    Mutant("leavesadtype", "test_two_runtimes_one_after_another", "float64"),
]

MUTANTS = [*METADATA, *IMPORTS, *HARDWARE, *DEVICE, *TRAINING]


def lay_down(site: Path, mutants: Iterable[Mutant]) -> None:
    """Install ``mutants`` in ``site``, and each class of ``torch_hal_mutants`` that is no cluster environment.

    Those would be asked for every run, in a process that imports torch, whether they have started it.
    """
    folder = SIMULATED / "torch_hal_mutants"
    entry_points = {}
    for kind in KINDS.values():
        if kind.name == "cluster_environment":
            continue
        files = folder.glob(f"{kind.group.removeprefix('core.')}*.py")
        text = "\n".join(file.read_text("utf-8") for file in files)
        classes = re.findall(r"^class ([A-Z]\w*)", text, re.MULTILINE)
        entry_points[kind.group] = {name.lower(): "torch_hal_mutants.plugin" for name in classes}
    declare(site, "torch-hal-mutants", entry_points)
    written = [mutant for mutant in mutants if not mutant.is_class]
    for mutant in written:
        _install(site, mutant)
    (site / "sitecustomize.py").write_text("\n".join([*(mutant.startup for mutant in written), SESSION]))


def _install(site: Path, mutant: Mutant) -> None:
    package = f"torch_hal_{mutant.name}"
    spec = {
        "name": mutant.name,
        "target": f"{package}.accelerator:SimxAccelerator",
        "description": "a mutant",
        "detect": f"{package}.detect:count",
        **mutant.spec,
    }
    folder = site / package
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "plugin.py").write_text(_HOOKS.format(specs=f"[AcceleratorSpec(**{spec!r})]") + mutant.hooks)
    (folder / "detect.py").write_text(f"def count():\n    {mutant.detect}\n")
    (folder / "accelerator.py").write_text(_TARGET + mutant.target)
    distribution = package.replace("_", "-")
    for name in (distribution, f"{distribution}-again")[: 2 if mutant.claimed_twice else 1]:
        declare(site, name, {_ACCELERATORS: {mutant.name: f"{package}.plugin"}}, mutant.requires)
