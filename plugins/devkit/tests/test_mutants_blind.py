"""Mutants of authors who have not read the kit are noticed: each by a test, whose message says what is wrong."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from torch_hal import builtin
from torch_hal.environments import SlurmEnvironment
from torch_hal.kinds import KINDS
from torch_hal.strategies import SingleDeviceStrategy

from . import mutants_blind, mutants_blind_strategies
from .kit import HERE, declare, run_kit
from .mutants import Mutant

_CLASSES: Mapping[str, Mapping[str, type[Any]]] = {
    "accelerator": mutants_blind.ACCELERATORS,
    "precision": mutants_blind.PRECISIONS,
    "checkpoint_io": mutants_blind.CHECKPOINT_IOS,
    "strategy": mutants_blind_strategies.STRATEGIES,
    "cluster_environment": mutants_blind_strategies.ENVIRONMENTS,
}

_NOTICED: Mapping[str, tuple[str, str]] = {
    "SortsDevices": ("test_requests_are_left_as_they_are", "Expected: the order of the request"),
    "DrawsForState": (
        "test_generators_in_any_order[0]",
        "get_rng_state\\(\\) (changes the random state|after set_rng_state)|draws",
    ),
    "RestoresSeedOnly": ("test_generators_in_any_order[0]", "set_rng_state\\(\\)"),
    "KeepsOneThread": ("test_using_a_device_changes_nothing_else[number of threads]", "intra-op: 3 -> 1"),
    "TearsDownOnce": ("test_accelerator_teardown_twice", "_device"),
    "ProbesByAlarm": ("test_other_threads_ask_it", "signal only works in main thread"),
    "CountsInKiB": ("test_bytes_are_bytes", "Expected: one of them by its bytes"),
    "NeedsDeviceObject": ("test_statistics_are_numbers_with_units", "'str' object has no attribute 'type'"),
    "TakesAllForMemory": (
        "test_other_exceptions_of_memory",
        "is_out_of_memory\\(RuntimeError\\(''\\)\\) returned True",
    ),
    "ServesOneRun": ("test_values_stay_through_its_life", "the driver is open already"),
    "TakesInterrupt": ("test_values_stay_through_its_life", "setup_device\\(\\) changes the signal handlers: SIGINT"),
    "LosesLock": ("test_a_copy_uses_a_device[pickled]", "a pickled instance raised .*_lock"),
    "ConvertsMasks": ("test_drawn_inputs_and_outputs[0]", "changes what is no floating point tensor"),
    "FlattensNamedTuples": ("test_drawn_inputs_and_outputs[0]", "it is a tuple. Expected: _Pair"),
    "SharesAutocast": ("test_forward_contexts_end_as_they_began[usual]", "autocast"),
    "KeepsFastProducts": ("test_an_unusual_process_is_kept", "float32 matmul precision"),
    "UnscalesTwice": ("test_gradients_are_unscaled_once", "unscaled gradients: "),
    "ForgetsGrowth": ("test_its_state_is_its_own", "_growth_tracker': 1"),
    "ConvertsCopy": ("test_an_optimizer_made_before", "optimizer made before"),
    "Unfreezes": ("test_a_converted_module_is_whole", "frozen parameters are"),
    "ClipsByNorm2": ("test_other_norms[1.0]", "norm_type=1.0 the norm is"),
    "ConvertsAllBuffers": ("test_buffers_are_of_the_declared_dtype", "an integer buffer is torch.bfloat16"),
    "BackwardForgetsArguments": ("test_backward_takes_torchs_arguments", "LossError: backward: it was called before"),
    "UpdatesAfterEachStep": ("test_each_optimizer_is_told_apart", "a step of the second makes"),
    "RemovesOldFirst": ("test_a_failed_save_leaves_what_was_there[over another]", "loaded: CheckpointError"),
    "KeysBecomeText": ("test_a_drawn_checkpoint_comes_back[0]", "has the keys"),
    "DropsEmpty": ("test_values_keep_their_type_and_order[empty ones]", "empty ones: loaded"),
    "BoolsBecomeBytes": ("test_tensors_come_back[bool]", "torch.uint8"),
    "IgnoresMapLocation": ("test_map_location_is_heeded[meta]", "loaded a tensor on cpu"),
    "StaysInFolder": ("test_after_an_error_it_goes_on", "changes the working directory"),
    "ReplacesSuffix": ("test_a_drawn_order_of_calls[0]", "a.ckpt"),
    "WritesLiveTensors": ("test_later_changes_are_not_saved", "is in the checkpoint"),
    "HidesFailedWrites": ("test_a_path_that_cannot_be_written", "raised nothing"),
    "LoadsSharedObject": ("test_each_load_is_independent", "after a change of what was loaded"),
    "RemovesSiblings": ("test_a_drawn_order_of_calls[0]", "remove a .1. there are"),
    "LoadsDamage": ("test_a_damaged_checkpoint_is_refused[a byte changed]", "checkpoint.* a byte"),
    "ReducesInPlace": ("test_reduce_leaves_its_input[multi_device]", "changes `tensor` in rank 0"),
    "GathersMemory": ("test_all_gather[multi_device-transposed]", "all_gather .transposed. in rank 0 returned"),
    "NoneIsNotReceived": ("test_drawn_objects[multi_device-6]", "broadcast of rank 1: False. Expected: None"),
    "IntegersAsFloat32": (
        "test_reduce_of_an_unusual_tensor[multi_device-large whole numbers]",
        "large whole numbers. in rank 0 returned",
    ),
    "SavesAlone": ("test_a_checkpoint_that_cannot_be_written[multi_device]", "gives no exception in rank 1"),
    "NoSyncAfterError": ("test_no_sync_ends_with_an_exception[multi_device]", ""),
    "NoSyncOfLastModule": ("test_no_sync_is_of_one_module[multi_device]", "of the one within no_sync"),
    "KeepsLearningRate": ("test_resuming_is_exact[one_device]", "rank 0 resumes with losses"),
    "ClipsAllButFirst": ("test_clipping_equals_torch[multi_device-fit-norm]", "clipping by norm"),
    "LeavesRanks": ("test_the_process_is_as_it_was[one_device-after teardown]", "environment variables.*MASTER_ADDR"),
    "ForgetsTimeout": ("test_arguments_of_its_base_arrive", "timeout=.*Expected: the argument arrives"),
    "DividesByNodes": ("test_clusters_of_other_shapes", "ranks must be consecutive|machine. "),
    "SharesRank": ("test_instances_are_independent", ""),
    "DetectRaises": (
        "test_detection_never_raises[everything 'abc']",
        "DetectRaises.detect with everything 'abc' raised ValueError",
    ),
    "ForgetsAtTeardown": ("test_teardown_can_be_called_twice", "WORLD_SIZE is not set"),
    "HashesJob": ("test_other_processes_answer_the_same", "two processes with the same variables report .*main_port"),
    "StripsZeros": ("test_clusters_of_other_shapes", "main_address is 'gpu7'. Expected: 'gpu007'"),
    "FollowsCaller": ("test_properties_are_stable", "is 'no number'"),
    "PicklesNothing": ("test_a_copy_of_it_works[pickled]", "a pickled instance reports .*'global_rank': 77"),
    "SilencesRanks": ("test_the_process_stays_as_it_was", "disabled to"),
    "CutsAddress": ("test_clusters_of_other_shapes", "main_address is 'fe80'. Expected: 'fe80::1'"),
    "ChecksInRankZero": ("test_drawn_numbers_are_refused[0]", "accepts in a cluster of"),
    "TrustsText": ("test_text_that_says_no[False]", "with TORCHELASTIC_USE_AGENT_STORE='False'"),
}
"""By class: the test, and what its message has, a regular expression."""

_SOME: Mapping[str, str] = {
    "accelerator": "CountsInKiB SortsDevices DrawsForState TearsDownOnce TakesAllForMemory LosesLock TakesInterrupt",
    "precision": "ConvertsAllBuffers FlattensNamedTuples SharesAutocast UnscalesTwice UpdatesAfterEachStep",
    "checkpoint_io": "BoolsBecomeBytes LoadsSharedObject ReplacesSuffix LoadsDamage StaysInFolder KeysBecomeText",
    "strategy": "ForgetsTimeout",
    "cluster_environment": "TrustsText FollowsCaller SharesRank ChecksInRankZero PicklesNothing SilencesRanks",
}
"""By kind, those that CI runs: of each property one that is noticed fast."""

_HOOKS = """\
from core import specs
from core.hookspecs import hookimpl


@hookimpl
def {hook}():
    return [specs.{spec}(**fields) for fields in {fields!r}]
"""


def _mutants(kind: str) -> list[Mutant]:
    return [Mutant(name.lower(), *_NOTICED[name], kind=kind) for name in _CLASSES[kind]]


@pytest.mark.exhaustive
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", _CLASSES)
def test_each_is_noticed(kind: str, tmp_path: Path) -> None:
    """The test that is named for a mutant fails, and its message says what is wrong."""
    _check(kind, _mutants(kind), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("kind", _CLASSES)
def test_some_are_noticed(kind: str, tmp_path: Path) -> None:
    """So it is for one of each kind and property; of strategies for one that takes no run."""
    _check(kind, [mutant for mutant in _mutants(kind) if mutant.name in _SOME[kind].lower().split()], tmp_path)


def test_each_is_in_the_table() -> None:
    """Each is noticed by a test."""
    assert {*_NOTICED} == {name for classes in _CLASSES.values() for name in classes}


def _check(kind: str, mutants: Sequence[Mutant], tmp_path: Path) -> None:
    site = tmp_path / "site"
    _install(site, kind)
    backends = [f"--backend={kind}:{mutant.name}" for mutant in mutants]
    run = run_kit(tmp_path, *backends, site=[site], suite=[mutant.node for mutant in mutants], timeout=1750)
    assert run.ids("failed") == {mutant.id for mutant in mutants}, run.output
    reasons = {mutant.id: (mutant.says, run.tests[mutant.id]["reason"]) for mutant in mutants}
    wrong = {name: pair for name, pair in reasons.items() if not re.search(*pair, re.DOTALL)}
    assert not wrong, "\n".join(f"{name}: {reason!r}. Expected: {says!r}" for name, (says, reason) in wrong.items())


def _install(site: Path, kind: str) -> None:
    """Install the mutants of one kind, as a vendor's distribution."""
    folder = site / "torch_hal_blind"
    folder.mkdir(parents=True)
    for module in (mutants_blind, mutants_blind_strategies):
        name = module.__name__.rpartition(".")[2]
        shutil.copy(HERE / f"{name}.py", site)
    group = KINDS[kind].group
    fields = [_fields(kind, cls) for cls in _CLASSES[kind].values()]
    (folder / "__init__.py").touch()
    (folder / "plugin.py").write_text(
        _HOOKS.format(hook=group.replace(".", "_"), spec=KINDS[kind].spec, fields=fields), "utf-8"
    )
    declare(site, "torch-hal-blind", {group: dict.fromkeys((one["name"] for one in fields), "torch_hal_blind.plugin")})


def _fields(kind: str, cls: type[Any]) -> dict[str, Any]:
    """The fields of a mutant's spec; an environment's are those of the launcher whose variables it reads."""
    target = f"{cls.__module__.rpartition('.')[2]}:{cls.__name__}"
    fields: dict[str, Any] = {"name": cls.__name__.lower(), "target": target, "description": "a mutant"}
    if kind == "strategy" and issubclass(cls, SingleDeviceStrategy):
        fields["max_processes"] = 1
    if kind == "cluster_environment":
        name = "slurm" if issubclass(cls, SlurmEnvironment) else "torchelastic"
        (spec,) = (spec for spec in builtin.core_cluster_environments() if spec.name == name)
        kept = ("rank", "size", "requires", "excludes", "min_processes", "variables", "priority")
        fields |= {"detect": f"{target}.detect", **{one: getattr(spec, one) for one in kept}}
    return fields
