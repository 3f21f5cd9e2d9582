"""As :mod:`.mutants`: mutants that change one value, one device or one group of parameters, and leave all others."""

from __future__ import annotations

from functools import partial

from .mutants import Mutant

__all__ = [
    "CHECKPOINT_VALUES",
    "CLUSTER_VALUES",
    "EACH_DEVICE",
    "EVALUATION_AND_OUTPUTS",
    "PARTS",
    "PRECISION_STEPS",
    "SINGLE_STEPS",
]

_strategy = partial(Mutant, kind="strategy")
_precision = partial(Mutant, kind="precision")
_checkpoint_io = partial(Mutant, kind="checkpoint_io")
_cluster = partial(Mutant, kind="cluster_environment")


def _uses(aspect: str) -> str:
    return f"test_using_a_device_changes_nothing_else[{aspect}]"


def _keeps(what: str) -> str:
    return f"test_values_keep_their_type_and_order[{what}]"


EACH_DEVICE = [
    Mutant("reseedsthehost", _uses("random state"), "random state: torch"),
    Mutant("computesintf32", _uses("settings of torch"), "float32 matmul precision: 'highest' -> 'high'"),
    Mutant("staysonwatch", _uses("threads"), "watch: nothing -> 'running'"),
    Mutant("setsadrivervariable", _uses("environment variables"), "SIMX_VISIBLE"),
    Mutant("takestheinterrupt", _uses("signal handlers"), "SIGINT"),
    Mutant("isalwaysoutofmemory", "test_exceptions_of_too_little_memory", "shapes differ.* returned True"),
    Mutant("popstheindices", "test_devices_are_the_same_again", r"became \[\]"),
    Mutant("namesitsdevices", "test_devices_are_the_same_again", "returned .'simx:0'"),
    Mutant("sortsdevices", "test_devices_keep_their_order", "Expected: .'simx:1', 'simx:0'., in that order"),
    Mutant("sortswhatitparses", "test_devices_keep_their_order", "Expected: .'simx:1', 'simx:0'., in that order"),
    Mutant("restoresthefirst", "test_random_state_of_each_device", "change the state of simx:|draws different numbers"),
    Mutant("restoresthecurrent", "test_random_state_of_each_device", "draws different numbers"),
    Mutant("restoresall", "test_random_state_of_each_device", "change the state of simx:"),
    Mutant("countsthefirst", "test_statistics_of_each_device", "count as 0|on simx:1"),
    Mutant("countsthecurrent", "test_statistics_of_each_device", "on simx:0 count as 1048576 on simx:1"),
    Mutant("countsalltogether", "test_statistics_of_each_device", "count as 1048576 on simx:1"),
    Mutant("movestoask", "test_asking_for_another_device", "after get_device_stats of simx:1, the current device is"),
    Mutant("movestowait", "test_asking_for_another_device", "after synchronize of simx:1, the current device is"),
]

SINGLE_STEPS = [
    _strategy(
        "skipstheshortwindow",
        "test_accumulation_equals_the_big_batch[multi_device-fit]",
        "fit, accumulating: the loss of batch 6",
    ),
    _strategy(
        "dividesbythewindow",
        "test_accumulation_equals_the_big_batch[one_device-fit]",
        "fit, accumulating: ",
    ),
    _strategy("leavesbuffersout", "test_resuming_is_exact[multi_device]", "the module of rank 0 differs"),
    _strategy("forgetstherate", "test_resuming_is_exact[one_device]", "rank 0 resumes with losses"),
    _strategy(
        "staysoutofsync", "test_no_sync_ends_with_an_exception[multi_device]", "after an exception under no_sync"
    ),
    _strategy("keepsitsbuffers", "test_buffers_are_those_of_rank_0[multi_device]", "rank 1 begin with the buffer"),
    _strategy(
        "startswithitsown", "test_a_prepared_module_is_that_of_rank_0[multi_device]", "passes' of rank 1 differs"
    ),
]

EVALUATION_AND_OUTPUTS = [
    _strategy(
        "evaluatesinfullprecision",
        "test_evaluation_is_in_the_precision[multi_device]",
        r"returns \['torch.float32'\] in predict",
    ),
    _strategy("dropstheclosure", "test_a_step_with_a_closure[one_device]", "does not call the closure in rank 0"),
    _strategy("detachesthesecond", "test_outputs_of_a_prepared_module[multi_device]", "'second': False"),
    _strategy("takesnonames", "test_outputs_of_a_prepared_module[one_device]", "TypeError"),
    _strategy("stepsthefirstgroup", "test_training_equals_the_global_batch[one_device]", "fit: the loss of batch 1"),
    _strategy("unscalesthefirstgroup", "test_training_in[one_device-16-mixed]", "losses with precision='16-mixed'"),
]

PARTS = [
    _strategy("averagestwice", "test_training_equals_the_global_batch[multi_device]", "fit: the loss of batch 1"),
    _strategy("repeatsanepoch", "test_each_process_has_a_part_of_the_data[multi_device]", "processes take only .0."),
    _strategy("gathersoneshape", "test_all_gather[multi_device-scalar]", "all_gather .scalar. in rank 0 returned"),
    _strategy("roundswhilereducing", "test_reduce[multi_device-sum-int64]", "returned torch.float32"),
    _strategy("gathersinfloat", "test_all_gather[multi_device-whole numbers]", "all_gather .whole numbers. in rank 0"),
    _strategy("clipsbeforereducing", "test_clipping_equals_torch[multi_device-fit-value]", "fit, clipping by value"),
    _strategy("leavesathread", "test_no_thread_is_left[multi_device-after all]", "has the threads .'heartbeat'"),
    _strategy("disablesgradients", "test_the_process_group_is_gone[one_device-after teardown]", "'gradients': False"),
    _strategy("tearsdownonce", "test_teardown_can_be_called_twice[one_device]", "already gone"),
]

PRECISION_STEPS = [
    _precision("evaluatesinfull", "test_evaluation_is_in_the_declared_dtype", "in evaluation mode .* torch.float32"),
    _precision("evaluatesinfull", "test_a_stage_is_in_the_declared_dtype[predict]", "in predict.. a linear layer"),
    _precision("unscalesthefirstgroup", "test_each_group_is_unscaled", "unscaled gradient of 'second'"),
    _precision("dropstheclosure", "test_a_step_with_a_closure", "does not call the closure"),
    _precision("forgetstheloss", "test_a_step_with_a_closure", "returned None"),
    _precision("detachesthesecond", "test_each_output_has_gradients", "the second output is detached"),
    _precision("detachesinputs", "test_each_output_has_gradients", "does not reach the input"),
    _precision("convertstoptensors", "test_keyword_arguments_are_converted", "float|dtype"),
    _precision("convertstopoutputs", "test_each_output_has_gradients", "the second output is torch.bfloat16"),
    _precision("stepstherest", "test_an_overflow_in_any_group[second]", "infinite gradients of 'second'"),
    _precision("replacesparameters", "test_an_optimizer_made_before", "made before prepare.. leaves 'first'"),
    _precision("needsallgradients", "test_parameters_without_gradients", "NoneType"),
    _precision("updatesateachstep", "test_two_optimizers", "No inf checks were recorded"),
    _precision("roundsstochastically", "test_a_pass_draws_no_random_numbers", "changes the host's random state"),
    _precision("freezesafterwards", "test_a_pass_draws_no_random_numbers", "a forward pass leaves gradients disabled"),
    _precision("ignoresrates", "test_each_group_is_stepped", "the weights after a step: 'second'"),
]

CHECKPOINT_VALUES = [
    _checkpoint_io("countsindoubles", _keeps("large integers"), "9007199254740992"),
    _checkpoint_io(
        "countstensorsindoubles", "test_tensors_keep_their_values[large integers]", "large integers, at the"
    ),
    _checkpoint_io("dropsnothings", _keeps("nothing"), "Expected: .'at the top': None"),
    _checkpoint_io("readsnanasnone", _keeps("not a number"), r"loaded \[None"),
    _checkpoint_io("sortskeys", _keeps("order"), "loaded .'a': 2"),
    _checkpoint_io("roundsnumbers", _keeps("small differences"), r"loaded \[0.3,"),
    _checkpoint_io("hasnotruth", _keeps("alike"), r"loaded \[0, 0, 0.0"),
    _checkpoint_io("makeslistsoftuples", _keeps("nothing"), r"'in a tuple': \[None\]"),
    _checkpoint_io("nameskeys", _keeps("numbers as keys"), "loaded .'0': 'a'"),
    _checkpoint_io("tidieslines", _keeps("long texts"), "long texts: loaded"),
    _checkpoint_io("flushesthesmallest", "test_tensors_keep_their_values[subnormal]", "subnormal, at the top: loaded"),
    _checkpoint_io("cleanstensors", "test_tensors_keep_their_values[not a number]", "not a number, at the top: loaded"),
    _checkpoint_io("untiestensors", "test_tied_tensors_stay_tied", "not seen in 'inner.b'"),
    _checkpoint_io("handsoutthesame", "test_each_load_is_independent", "another load has .*9.0"),
    _checkpoint_io(
        "mapsthefile", "test_what_was_loaded_outlives_the_checkpoint", "changes with the checkpoint's files"
    ),
    _checkpoint_io("rememberspaths", "test_another_instance_reads_and_removes", "unknown"),
    _checkpoint_io("meansitsownfolder", "test_a_path_relative_to_the_working_directory", "relative"),
    _checkpoint_io("clearsthefolder", "test_neighbours_are_left_alone", "of the folder's other files there are"),
    _checkpoint_io("noteseachload", "test_loading_changes_no_file", "loading changes .*checkpoint.log"),
    _checkpoint_io("writesthelast", "test_several_saves_before_teardown", "c0|absent|no checkpoint"),
    _checkpoint_io("keepsathread", "test_no_thread_is_left", "the threads .'writer'. are alive"),
    _checkpoint_io("drawsaname", "test_the_process_stays_as_it_was", "random state': 'torch"),
]

CLUSTER_VALUES = [
    _cluster("countsmachinesasprocesses", "test_ranks_are_consistent", "started processes on 6 machine"),
    _cluster("countslocally", "test_ranks_are_consistent", "'world_size': 3"),
    _cluster("ranksinwords", "test_ranks_are_consistent", "'local_rank': '0'"),
    _cluster("hasnoaddress", "test_main_address_and_port", "main_address=' '"),
    _cluster("hasnoport", "test_main_address_and_port", "main_port=70000"),
    _cluster("hostswhereitlikes", "test_truth_values", "hosts_store is "),
    _cluster("startssomewhere", "test_truth_values", "creates_processes_externally is "),
    _cluster("claimsonerank", "test_its_own_processes_are_detected", "returned False for the variables of rank 1"),
    _cluster("refusesitself", "test_its_own_numbers_are_taken", "one machine only"),
    _cluster("cleansup", "test_teardown_can_be_called_twice", "changes os.environ"),
]
