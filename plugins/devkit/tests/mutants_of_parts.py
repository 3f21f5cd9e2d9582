"""As :mod:`.mutants`, of strategies, precisions, checkpoint IOs and cluster environments."""

from __future__ import annotations

from functools import partial

from .mutants import Mutant

__all__ = ["CHECKPOINTS", "CLUSTERS", "COLLECTIVES", "LIFE", "PRECISIONS", "TRAINING_TOGETHER"]

_strategy = partial(Mutant, kind="strategy")
_precision = partial(Mutant, kind="precision")
_checkpoint_io = partial(Mutant, kind="checkpoint_io")
_cluster = partial(Mutant, kind="cluster_environment")

COLLECTIVES = [
    _strategy("sumsup", "test_reduce[multi_device-mean-float32]", r"reduce\(..., 'mean'\) of float32 in rank 0 gives"),
    _strategy(
        "takesanyword", "test_an_unknown_reduction_is_refused[multi_device]", "Expected: core.errors.Configuration"
    ),
    _strategy("reducesinplace", "test_reduce_leaves_its_input[multi_device]", "changes `tensor` in rank 0"),
    _strategy("gathersbackwards", "test_all_gather[multi_device-vector]", "all_gather .vector. in rank 0 returned"),
    _strategy(
        "gathersobjectsbackwards", "test_all_gather_object[multi_device]", "all_gather_object returned .*in rank 0"
    ),
    _strategy(
        "padsinsilence", "test_all_gather_refuses_what_differs[multi_device-shapes]", "whose shapes differ, in rank 0"
    ),
    _strategy(
        "reducesinsilence", "test_reduce_refuses_what_differs[multi_device-dtypes]", "whose dtypes differ, in rank 0"
    ),
    _strategy("alwaysfromthefirst", "test_broadcast[multi_device]", r"broadcast\(obj, src=1\) returned"),
    _strategy("waitsfornoone", "test_a_barrier_waits_for_all[multi_device]", "rank 0 leaves the barrier 0.* s before"),
    _strategy("everyone", "test_ranks_and_devices[multi_device]", "the process of rank 1|no process|rank"),
]

TRAINING_TOGETHER = [
    _strategy("trainsalone", "test_training_equals_the_global_batch[multi_device]", "the loss of batch 1 is"),
    _strategy("trainsalone", "test_every_process_has_the_same_module[multi_device]", "of rank 1 differs from rank 0"),
    _strategy("alwaysinsync", "test_no_sync_leaves_gradients_unreduced[multi_device]", "under no_sync are .* off"),
    _strategy("skipstherest", "test_prediction_gives_each_item_once[multi_device]", "returned to rank 0 the items"),
    _strategy("skipstherest", "test_evaluation_counts_each_item_once[multi_device]", "the mean of all items"),
    _strategy("forgetsmomentum", "test_resuming_is_exact[one_device]", "rank 0 resumes with losses"),
    _strategy(
        "putshalvestogether", "test_training_equals_the_global_batch[multi_device]", "'0.weight' of rank 0 is off by"
    ),
    _strategy(
        "hasitsownweights",
        "test_accumulation_equals_the_big_batch[multi_device-fit]",
        "no_sync is not for me",
    ),
    _strategy(
        "refusesinotherwords", "test_training_in[multi_device-bf16-mixed]", "raises ValueError.*that names 'bf16-mixed'"
    ),
    _strategy(
        "readsitsown", "test_its_checkpoint_is_read_by_one_process[multi_device]", "'0.weight', read from its check"
    ),
    _strategy("clipstwice", "test_clipping_equals_torch[one_device-fit-norm]", "clipping by norm: the loss of batch"),
]

LIFE = [
    _strategy(
        "staysinthegroup", "test_the_process_group_is_gone[multi_device-after teardown]", "'process group': True"
    ),
    _strategy("savesalone", "test_a_checkpoint_that_cannot_be_written[multi_device]", "gives no exception in rank 1"),
    _strategy("leavesaprocess", "test_a_failing_process_ends_all[kill-1]", "still running: .*time.sleep"),
    _strategy("endswell", "test_a_failing_process_ends_all[raise-0]", "exit code 0. Expected: a failing exit code"),
    _strategy("hasnonumber", "test_some_number_of_processes_is_served", "support 3 to 2 processes"),
]

PRECISIONS = [
    _precision("computesinfull", "test_products_are_computed_in_the_declared_dtype", "compute_dtype, torch.bfloat16"),
    _precision("storesinhalf", "test_parameters_are_of_the_declared_dtype", "param_dtype, torch.float32"),
    _precision("leavesbuffers", "test_buffers_are_of_the_declared_dtype", "buffer_dtype, torch.float64"),
    _precision("handsouthalves", "test_outputs_are_of_the_declared_dtype", "output_dtype, torch.float32"),
    _precision("convertslabels", "test_whole_numbers_go_in_as_they_are", "an integer input is torch.float64"),
    _precision("stepsoninfinity", "test_an_overflow_is_left_out", "after a step with infinite gradients"),
    _precision("forgetsthescale", "test_its_state_goes_on", "the scale is 65536. Expected: 32768"),
    _precision("clipsthescaled", "test_scaled_gradients_are_not_clipped", "of scaled gradients raised nothing"),
    _precision("unscalestwice", "test_gradients_are_unscaled_once", "unscaled gradients: "),
    _precision("scalesinsecret", "test_gradients_are_scaled_as_declared", "scales_loss is False, but .* scaled by 4"),
    _precision("saysitscales", "test_gradients_are_scaled_as_declared", "scales_loss is True, but .* scaled by 1"),
    _precision("leavesadtype", "test_the_default_dtype_is_restored[fails]", "leaves .* torch.float64"),
    _precision("keepsanobject", "test_its_state_can_be_kept", "weights_only|Unpickling"),
    _precision("tearsdownthedtype", "test_teardown_restores_the_process", "teardown leaves .*torch.bfloat16"),
]

CHECKPOINTS = [
    _checkpoint_io("writesinplace", "test_a_killed_save_leaves_a_whole_checkpoint[in time]", "was killed .after 0"),
    _checkpoint_io(
        "writesinplace", "test_a_failed_save_leaves_what_was_there[over another]", "loaded: CheckpointError"
    ),
    _checkpoint_io("removesfirst", "test_a_killed_save_leaves_a_whole_checkpoint[at each step]", r"was killed .o[sp]"),
    _checkpoint_io("trustspickles", "test_objects_of_a_class_are_refused", "weights_only=True"),
    _checkpoint_io("trustspickles", "test_planted_code_is_not_run", "with code in checkpoint"),
    _checkpoint_io("hasnochecksums", "test_a_damaged_checkpoint_is_refused[a byte changed]", "checkpoint.* a byte"),
    _checkpoint_io("stayswhereitwas", "test_map_location_is_heeded[meta]", "loaded a tensor on cpu"),
    _checkpoint_io("raisesthesystemserror", "test_loading_something_else_is_refused[nothing]", "FileNotFoundError"),
    _checkpoint_io("insistsonremoving", "test_removing_a_missing_checkpoint", "nothing is there"),
    _checkpoint_io("merges", "test_a_later_checkpoint_takes_its_place", "has .'first', 'both', 'second'."),
    _checkpoint_io("rounds", "test_tensors_come_back[float64]", "loaded .*torch.float32"),
    _checkpoint_io("leavesalog", "test_removing_leaves_nothing", "the folder has .'saved.log'."),
    _checkpoint_io("writeslater", "test_later_changes_are_not_saved", "is in the checkpoint"),
    _checkpoint_io("tidiesup", "test_saving_leaves_the_checkpoint_as_it_was", "after saving, the dict has the keys .."),
]

CLUSTERS = [
    _cluster("wantsitsvariables", "test_detection_never_raises[no variables]", "raised KeyError"),
    _cluster("answersinwords", "test_detection_never_raises[RANK alone]", "returned '0'. Expected: True or False"),
    _cluster("takesall", "test_other_processes_are_not_detected", "returned True without any variables"),
    _cluster("countsfromone", "test_ranks_are_consistent", "process 0 of 2 x 3 reports .*'global_rank': 1"),
    _cluster("ranksofonemachine", "test_ranks_are_consistent", "process 3 of 2 x 3 reports .*'global_rank': 0"),
    _cluster("namesnorank", "test_the_spec_names_its_variables", "has rank=None.* Expected: rank='RANK'"),
    _cluster("namesthemachine", "test_the_spec_names_its_variables", r"process 1 has .*\(0, 6\). Expected: \(1, 6\)"),
    _cluster("sharesitslocalrank", "test_the_spec_names_its_variables", "lack .'LOCAL_RANK'.,"),
    _cluster("meetsapart", "test_main_address_and_port", "have main addresses .*29511.*29512"),
    _cluster("takesanysize", "test_other_numbers_are_refused[more processes]", "raised nothing"),
    _cluster("refusesinsilence", "test_other_numbers_are_refused[fewer machines]", "not name the requested number 1"),
    _cluster("readslate", "test_given_variables_go_before_the_process_own", "'main_address': '77'"),
    _cluster("borrows", "test_properties_are_stable", "no number|after the variables changed"),
    _cluster("setsvariables", "test_the_environment_variables_stay_as_they_are", "changes the variables .*NCCL_DEBUG"),
    _cluster("stumblesovertext", "test_variables_that_make_no_sense['abc']", "raised ValueError"),
    _cluster("needstorch", "test_importing_it_takes_no_torch", "imports torch"),
]
