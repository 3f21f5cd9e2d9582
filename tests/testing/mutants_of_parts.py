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
    _strategy("sumsup", "test_reduce[several-mean-float32]", r"reduce\(..., 'mean'\) of float32 in rank 0 gives"),
    _strategy("takesanyword", "test_an_unknown_reduction_is_refused[several]", "Expected: core.errors.Configuration"),
    _strategy("reducesinplace", "test_reduce_leaves_its_input[several]", "changes `tensor` in rank 0"),
    _strategy("gathersbackwards", "test_all_gather[several-vector]", "all_gather .vector. in rank 0 gives"),
    _strategy("gathersobjectsbackwards", "test_all_gather_object[several]", "all_gather_object gives .*in rank 0"),
    _strategy(
        "padsinsilence", "test_all_gather_refuses_what_differs[several-shapes]", "whose shapes differ, in rank 0"
    ),
    _strategy("alwaysfromthefirst", "test_broadcast[several]", r"broadcast\(obj, src=1\) gives"),
    _strategy("waitsfornobody", "test_a_barrier_waits_for_all[several]", "rank 0 leaves the barrier 0.* s before"),
    _strategy("everyone", "test_each_process_knows_who_it_is[several]", "the process of rank 1|no process|rank"),
]

TRAINING_TOGETHER = [
    _strategy("trainsalone", "test_training_equals_the_joined_batch[several]", "the loss of batch 1 is"),
    _strategy("trainsalone", "test_every_process_has_the_same_module[several]", "of rank 1 is not that of rank 0"),
    _strategy("alwaysinsync", "test_no_sync_leaves_gradients_unreduced[several]", "under no_sync are .* off"),
    _strategy("skipstherest", "test_prediction_gives_each_item_once[several]", "gives rank 0 the items"),
    _strategy("skipstherest", "test_evaluation_counts_each_item_once[several]", "the mean of all items"),
    _strategy("forgetsmomentum", "test_resuming_is_exact[one]", "rank 0 goes on with losses"),
    _strategy("putshalvestogether", "test_training_equals_the_joined_batch[several]", "'0.weight' of rank 0 is off by"),
    _strategy(
        "hasitsownweights",
        "test_accumulation_equals_the_big_batch[several-fit]",
        "no_sync is not for me",
    ),
    _strategy(
        "refusesinotherwords", "test_training_in[several-bf16-mixed]", "raises ValueError.*that names 'bf16-mixed'"
    ),
    _strategy("readsitsown", "test_its_checkpoint_is_read_by_one_process[several]", "'0.weight', read from its check"),
    _strategy("clipstwice", "test_clipping_equals_torch[one-fit-norm]", "clipping by norm: the loss of batch"),
]

LIFE = [
    _strategy("staysinthegroup", "test_the_process_group_is_gone[several-after teardown]", "'process group': True"),
    _strategy("savesalone", "test_a_checkpoint_that_cannot_be_written[several]", "gives no exception in rank 1"),
    _strategy("leavesaprocess", "test_a_failing_process_ends_all[kill-1]", "still there .*time.sleep"),
    _strategy("endswell", "test_a_failing_process_ends_all[raise-0]", "exit code 0. Expected: a failing exit code"),
    _strategy("hasnonumber", "test_some_number_of_processes_is_served", "serve 3 to 2 processes"),
]

PRECISIONS = [
    _precision("computesinfull", "test_products_are_computed_in_the_declared_dtype", "compute_dtype, torch.bfloat16"),
    _precision("storesinhalf", "test_parameters_are_of_the_declared_dtype", "param_dtype, torch.float32"),
    _precision("leavesbuffers", "test_buffers_are_of_the_declared_dtype", "buffer_dtype, torch.float64"),
    _precision("handsouthalves", "test_outputs_are_of_the_declared_dtype", "output_dtype, torch.float32"),
    _precision("convertslabels", "test_whole_numbers_go_in_as_they_are", "whole numbers go in as torch.float64"),
    _precision("stepsoninfinity", "test_an_overflow_is_left_out", "a step with infinite gradients gives"),
    _precision("forgetsthescale", "test_its_state_goes_on", "its scale is 65536. Expected: 32768"),
    _precision("clipsthescaled", "test_scaled_gradients_are_not_clipped", "goes through"),
    _precision("unscalestwice", "test_gradients_are_unscaled_once", "unscaled gradients: "),
    _precision("scalesinsecret", "test_gradients_are_scaled_as_declared", "scales_loss is False, but .* scaled by 4"),
    _precision("saysitscales", "test_gradients_are_scaled_as_declared", "scales_loss is True, but .* scaled by 1"),
    _precision("leavesadtype", "test_the_default_dtype_is_restored[fails]", "leaves .* torch.float64"),
    _precision("keepsanobject", "test_its_state_can_be_kept", "weights_only|Unpickling"),
    _precision("tearsdownthedtype", "test_teardown_restores_the_process", "teardown leaves .*torch.bfloat16"),
]

CHECKPOINTS = [
    _checkpoint_io("writesinplace", "test_a_killed_save_leaves_a_whole_checkpoint[in time]", "is killed .after 0"),
    _checkpoint_io("writesinplace", "test_a_failed_save_leaves_what_was_there[over another]", "is CheckpointError"),
    _checkpoint_io("removesfirst", "test_a_killed_save_leaves_a_whole_checkpoint[at each step]", r"is killed .o[sp]"),
    _checkpoint_io("trustspickles", "test_objects_of_a_class_are_refused", "weights_only=True"),
    _checkpoint_io("trustspickles", "test_planted_code_is_not_run", "with code in checkpoint"),
    _checkpoint_io("hasnochecksums", "test_a_damaged_checkpoint_is_refused[a byte changed]", "checkpoint.* a byte"),
    _checkpoint_io("stayswhereitwas", "test_map_location_is_heeded[meta]", "gives a tensor on cpu"),
    _checkpoint_io("raisesthesystemserror", "test_what_is_no_checkpoint_is_refused[nothing]", "FileNotFoundError"),
    _checkpoint_io("insistsonremoving", "test_removing_what_is_not_there", "nothing is there"),
    _checkpoint_io("merges", "test_a_later_checkpoint_takes_its_place", "has .'first', 'both', 'second'."),
    _checkpoint_io("rounds", "test_tensors_come_back[float64]", "torch.float32.* come back"),
    _checkpoint_io("leavesalog", "test_removing_leaves_nothing", "the folder has .'saved.log'."),
    _checkpoint_io("writeslater", "test_later_changes_are_not_saved", "is in the checkpoint"),
    _checkpoint_io("tidiesup", "test_saving_leaves_the_checkpoint_as_it_was", "saving leaves the keys .."),
]

CLUSTERS = [
    _cluster("wantsitsvariables", "test_detection_never_raises[no variables]", "raises KeyError"),
    _cluster("answersinwords", "test_detection_never_raises[RANK alone]", "gives '0'. Expected: True or False"),
    _cluster("takesall", "test_a_process_of_ones_own_is_not_detected", "gives True without any variables"),
    _cluster("countsfromone", "test_ranks_are_consistent", "process 0 of 2 x 3 is .*'global_rank': 1"),
    _cluster("ranksofonemachine", "test_ranks_are_consistent", "process 3 of 2 x 3 is .*'global_rank': 0"),
    _cluster("meetsapart", "test_all_meet_at_one_place", "are to meet at .*29511.*29512"),
    _cluster("takesanysize", "test_other_numbers_are_refused[more processes]", "raises nothing"),
    _cluster("refusesinsilence", "test_other_numbers_are_refused[fewer machines]", "does not name 1"),
    _cluster("readslate", "test_given_variables_go_before_the_process_own", "'main_address': '77'"),
    _cluster("borrows", "test_properties_are_stable", "no number|when variables change"),
    _cluster("setsvariables", "test_the_environment_variables_stay_as_they_are", "changes the variables .*NCCL_DEBUG"),
    _cluster("stumblesovertext", "test_variables_that_make_no_sense['abc']", "raises ValueError"),
    _cluster("needstorch", "test_importing_it_takes_no_torch", "imports torch"),
]
