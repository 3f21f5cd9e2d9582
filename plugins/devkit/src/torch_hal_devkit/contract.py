"""The contract as data: for each method of the five kinds, what it may change, and which tests prove which property."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

__all__ = ["CONTRACT", "PROPERTIES", "UNWATCHED", "Method"]

PROPERTIES: Mapping[str, str] = {
    "values": "results have the right values, shapes, dtypes, devices and order, by an independent truth",
    "arguments": "arguments stay as they are, and results are the caller's own",
    "algebra": "identities, round trips, contexts within each other, calls in any order",
    "again": "called twice, by a second instance, after `teardown`",
    "errors": "wrong values raise an error, and the object works after it",
    "copies": "pickled, deeply copied, in another process or thread",
    "drawn": "with values that seeds draw",
}
"""What is proven of a method besides what it leaves of the process: the columns of the table in the documentation."""

UNWATCHED = ("launch", "run_function")
"""Methods that run the user's program, which may change whatever it likes."""


@attrs.frozen
class Method:
    """One method or property of a base class."""

    tests: Mapping[str, tuple[str, ...]]
    """By property, names of tests without ``test_``."""
    may_change: tuple[str, ...] = ()
    """Aspects of the process; see :data:`torch_hal_devkit.process_state.ASPECTS`."""
    untested: str = ""
    """Why no test calls it."""


def _of(may_change: tuple[str, ...] = (), untested: str = "", **tests: str) -> Method:
    return Method({name: tuple(names.split()) for name, names in tests.items()}, may_change, untested)


_WRAPS = ("functions of torch",)
"""What engines replace for the life of a run, such as ``torch.nn.functional.linear``."""

_JOINS = ("environment variables", "signal handlers", "number of threads", "exception hooks", "sharing strategy")
"""What a process sets that joins others: its variables, how it tells them of its end, and how they share tensors."""

_ORDER = "calls_in_any_order"
_COPY = "a_copy_of_it_works"
_ASKED, _USED = "other_threads_ask_it", "a_copy_uses_a_device other_threads_use_it"
_ACCELERATOR = {
    "is_available": _of(
        values="is_available",
        algebra=_ORDER,
        again="is_available",
        errors="without_devices",
        copies=f"{_COPY} {_ASKED} is_available_after_fork",
        drawn=_ORDER,
    ),
    "auto_device_count": _of(
        values="devices_are_counted detection_and_class_agree",
        algebra=_ORDER,
        again=_ORDER,
        errors="without_devices",
        copies=f"{_COPY} {_ASKED}",
        drawn=_ORDER,
    ),
    "device_limit": _of(
        values="all_devices_are_chosen", algebra=_ORDER, again=_ORDER, copies=f"{_COPY} {_ASKED}", drawn=_ORDER
    ),
    "parse_devices": _of(
        values="parse_devices_takes_the_grammar one_device_is_chosen devices_keep_their_order",
        arguments="requests_are_left_as_they_are",
        algebra="requests_are_left_as_they_are",
        again="devices_are_the_same_again",
        errors="parse_devices_refuses_other_values invalid_devices_are_refused",
    ),
    "get_parallel_devices": _of(
        values="each_index_is_a_device_of_its_own its_devices_are_not_the_hosts",
        arguments="devices_are_the_same_again",
        again="devices_are_the_same_again",
    ),
    "pick_devices": _of(values="a_number_of_devices_is_picked"),
    "pick_idle_devices": _of(values="a_number_of_devices_is_picked", errors="a_number_of_devices_is_picked"),
    "import_backend": _of(
        may_change=("environment variables",),  # those of the package that it imports, for itself
        again="other_threads_use_it each_index_is_a_device_of_its_own",
    ),
    "setup_device": _of(
        values="a_device_is_made_current",
        algebra="values_stay_through_its_life",
        again="accelerator_teardown_twice values_stay_through_its_life",
        copies=_USED,
    ),
    "teardown": _of(
        may_change=("environment variables",),  # those that bind the process to a card
        algebra="values_stay_through_its_life generators_in_any_order",
        again="accelerator_teardown_twice",
        copies=f"{_COPY} a_copy_uses_a_device",
    ),
    "synchronize": _of(again="synchronize_and_empty_cache", values="asking_for_another_device", copies=_USED),
    "empty_cache": _of(
        values="values_stay_through_its_life asking_for_another_device",
        again="synchronize_and_empty_cache",
        copies=_USED,
    ),
    "is_out_of_memory": _of(
        values="exceptions_of_too_little_memory other_exceptions_of_memory", again=_ORDER, copies=f"{_COPY} {_ASKED}"
    ),
    "get_device_stats": _of(
        values="statistics_are_numbers_with_units memory_is_counted statistics_of_each_device bytes_are_bytes",
        arguments="what_a_device_tells",
        again="what_a_device_tells",
        copies=_USED,
    ),
    "get_rng_state": _of(
        values="random_state_is_restored random_state_of_each_device",
        arguments="random_state_is_restored generators_in_any_order",
        algebra="generators_in_any_order",
        again="generators_in_any_order",
        drawn="generators_in_any_order",
    ),
    "set_rng_state": _of(
        may_change=("random state", "settings of torch"),
        values="random_state_is_restored the_hosts_generator_is_another random_state_of_each_device",
        arguments="generators_in_any_order",
        algebra="generators_in_any_order",
        again="generators_in_any_order",
        drawn="generators_in_any_order",
    ),
    "inexact_resume_reason": _of(values="what_a_device_tells", again="what_a_device_tells"),
    "missing_rng_function": _of(values="what_a_device_tells", again="what_a_device_tells"),
    "fork_unsafe_reason": _of(values="forking_after_use", copies="forking_after_use"),
    "autocast_device_type": _of(values="autocast loss_scaling", again="what_a_device_tells"),
    "process_group_backend": _of(values="the_process_group_is_there", again="what_a_device_tells"),
}

_DRAWN_OBJECTS, _DRAWN_TENSORS = "drawn_objects", "drawn_tensors"
_RANKS = "ranks_and_devices"
_KEPT_STATE = "resuming_is_exact its_checkpoint_is_read_by_one_process"
_STRATEGY = {
    "process_group_backend_for": _of(values="the_process_group_is_there"),
    "launcher_for": _of(values=f"the_launcher_can_be_named {_RANKS}"),
    "connect": _of(
        values="arguments_of_its_base_arrive",
        again="a_second_run_in_the_same_processes",
        errors="another_accelerator_is_refused another_precision_is_refused another_number_of_processes_is_refused",
    ),
    "launch": _of(
        values=f"{_RANKS} processes_exit_cleanly",
        again="a_second_run_in_the_same_processes",
        errors="a_failing_process_ends_all",
        copies="processes_that_were_started_already",
    ),
    "setup_environment": _of(
        may_change=_JOINS,
        values="the_process_group_is_there",
        again="a_second_run_in_the_same_processes unusual_settings_are_kept",
    ),
    "setup": _of(untested="only strategies for Trainers override it"),
    "teardown": _of(
        may_change=(*_JOINS, *_WRAPS),
        values="the_process_group_is_gone no_thread_is_left the_process_is_as_it_was",
        algebra="unusual_settings_are_kept nothing_is_held",
        again="teardown_can_be_called_twice",
        errors="a_failing_process_ends_all",
    ),
    "end_saving": _of(errors="a_checkpoint_that_cannot_be_written"),
    **{
        name: _of(values=_RANKS, again=_RANKS)
        for name in ("world_size", "global_rank", "local_rank", "node_rank", "is_global_zero", "root_device")
    },
    "local_processes": _of(values=_RANKS),
    "num_peers": _of(untested="only engines whose processes come and go override it"),
    "data_shards": _of(values="each_process_has_a_part_of_the_data"),
    "data_shard": _of(values="each_process_has_a_part_of_the_data"),
    "setup_module": _of(
        may_change=_WRAPS,
        values="a_prepared_module_is_that_of_rank_0 each_layer_keeps_its_mode outputs_of_a_prepared_module",
        algebra="shared_parameters_are_trained_as_one frozen_parameters_stay_as_they_are",
        again="two_modules_in_turn",
    ),
    "unwrap_module": _of(algebra="a_prepared_module_is_that_of_rank_0 what_differs_is_told"),
    "inference_module": _of(may_change=_WRAPS, values="prediction_gives_each_item_once evaluation_is_in_the_precision"),
    "check_sync_batch_norm": _of(errors="batch_norm_over_processes"),
    "sync_batch_norm": _of(values="batch_norm_over_processes"),
    "check_compile": _of(untested="the kit compiles nothing"),
    "setup_optimizers": _of(
        may_change=_WRAPS,
        values="training_equals_the_global_batch",
        algebra="rates_are_followed a_group_that_is_added_is_stepped a_scheduler_of_the_trainer",
        again="two_modules_in_turn",
    ),
    "join_uneven": _of(untested="the kit trains uneven items by the Trainer only"),
    "backward": _of(
        values="training_equals_the_global_batch custom_loop_equals_the_global_batch",
        algebra="accumulation_equals_the_big_batch",
        errors="no_sync_ends_with_an_exception",
    ),
    "optimizer_step": _of(
        values="training_equals_the_global_batch a_step_with_a_closure",
        algebra="rates_are_followed a_group_that_is_added_is_stepped",
        again="two_modules_in_turn",
    ),
    "no_sync": _of(
        values="no_sync_leaves_gradients_unreduced",
        algebra="an_inner_no_sync_ends_only_itself no_sync_is_of_one_module",
        errors="no_sync_ends_with_an_exception",
    ),
    "accumulation_state": _of(untested="only strategies that divide an accumulation override it"),
    "load_accumulation_state": _of(untested="only strategies that divide an accumulation override it"),
    "sync_in_backward": _of(untested="core's own tests"),
    "unscale_gradients": _of(values="clipping_equals_torch training_in"),
    "clip_gradients": _of(
        values="clipping_equals_torch the_norm_of_gradients",
        arguments="clipping_equals_torch",
        errors="clipping_equals_torch",
    ),
    "check_clip_algorithm": _of(errors="clipping_equals_torch"),
    "training_step": _of(
        values="training_equals_the_global_batch items_that_do_not_divide",
        algebra="accumulation_equals_the_big_batch a_scheduler_of_the_trainer",
        again="a_second_run_in_the_same_processes",
    ),
    "manual_gradients": _of(untested="core's own tests of manual optimization"),
    "make_backward": _of(values="custom_loop_equals_the_global_batch"),
    "make_optimizer_step": _of(values="custom_loop_equals_the_global_batch", algebra="rates_are_followed"),
    "uses_native_step": _of(values="a_step_with_a_closure"),
    "may_skip_steps": _of(untested="only engines that leave steps out override it"),
    "steps_taken": _of(values="a_scheduler_of_the_trainer"),
    "global_steps": _of(untested="only engines that count steps override it"),
    "reduce": _of(
        values="reduce reduce_of_an_unusual_tensor reduce_of_a_scalar a_million_elements",
        arguments="reduce_leaves_its_input",
        algebra=f"{_DRAWN_TENSORS} an_odd_number_of_processes",
        errors="an_unknown_reduction_is_refused reduce_refuses_what_differs collectives_go_on_after_a_refusal",
        drawn=_DRAWN_TENSORS,
    ),
    "all_gather": _of(
        values="all_gather gather_joins_nested_tensors",
        arguments=_DRAWN_TENSORS,
        errors="all_gather_refuses_what_differs collectives_go_on_after_a_refusal",
        drawn=_DRAWN_TENSORS,
    ),
    "broadcast": _of(values="broadcast", again=_DRAWN_OBJECTS, drawn=_DRAWN_OBJECTS),
    "barrier": _of(values="a_barrier_waits_for_all the_main_process_goes_first"),
    "all_gather_object": _of(values="all_gather_object", again=_DRAWN_OBJECTS, drawn=_DRAWN_OBJECTS),
    "differing": _of(values="what_differs_is_told"),
    "assume_alike": _of(untested="only saves time: the values are the same without it"),
    "gather_shards": _of(values="prediction_gives_each_item_once", drawn=_DRAWN_OBJECTS),
    "saving_is_collective": _of(values="its_checkpoint_is_read_by_one_process"),
    "module_state": _of(values=_KEPT_STATE, algebra="resuming_is_exact"),
    "whole_module_state": _of(values="every_process_has_the_same_module"),
    "load_module_state": _of(values=_KEPT_STATE, algebra="resuming_is_exact"),
    "optimizer_state": _of(values=_KEPT_STATE, algebra="resuming_is_exact"),
    "load_optimizer_state": _of(values=_KEPT_STATE, algebra="resuming_is_exact"),
    "save_checkpoint": _of(
        values=_KEPT_STATE, errors="a_checkpoint_that_cannot_be_written", copies="its_checkpoint_is_read_by_one_process"
    ),
    "load_checkpoint": _of(values=_KEPT_STATE, copies="its_checkpoint_is_read_by_one_process"),
    "remove_checkpoint": _of(untested="the CheckpointIO's suite tests what it calls"),
    **{
        name: _of(untested="what callbacks read of a Trainer; core sets it")
        for name in ("follow", "lightning_module", "lr_scheduler_configs", "optimizers", "precision_plugin")
    },
}

_STEPS = "rates_and_groups_are_followed"
_CONVERTS = "drawn_inputs_and_outputs"
_PRECISION = {
    "connect": _of(again="instances_are_independent", copies=_COPY, algebra="an_unusual_process_is_kept"),
    "overrides": _of(values="training_is_close_to_float32"),
    "convert_module": _of(
        values="parameters_are_of_the_declared_dtype buffers_are_of_the_declared_dtype a_converted_module_is_whole",
        algebra="tied_parameters_stay_tied frozen_parameters_stay_frozen each_layer_keeps_its_mode",
        again="a_converted_module_is_whole",
        copies=_COPY,
    ),
    "forward_context": _of(
        values="products_are_computed_in_the_declared_dtype evaluation_is_in_the_declared_dtype",
        algebra="forward_contexts_end_as_they_began",
        again="forward_contexts_end_as_they_began",
        errors="forward_contexts_end_as_they_began the_default_dtype_is_restored",
        copies=_COPY,
    ),
    "convert_input": _of(
        values="whole_numbers_go_in_as_they_are keyword_arguments_are_converted complex_inputs_stay_complex",
        arguments=f"inputs_are_left_as_they_are {_CONVERTS}",
        algebra="inputs_keep_their_structure",
        again=_CONVERTS,
        copies=_COPY,
        drawn=_CONVERTS,
    ),
    "convert_output": _of(
        values="outputs_are_of_the_declared_dtype wide_outputs_stay_wide each_output_has_gradients",
        arguments=_CONVERTS,
        again=_CONVERTS,
        copies=_COPY,
        drawn=_CONVERTS,
    ),
    "backward": _of(
        values="a_step_is_of_true_gradients backward_takes_torchs_arguments",
        algebra="accumulated_gradients_add_up",
        again="a_step_is_taken_once",
        errors="after_an_error_it_goes_on gradients_that_are_not_finite_are_seen",
    ),
    "scale_loss": _of(
        values="gradients_are_scaled_as_declared",
        arguments="the_scaled_loss_is_proportional",
        algebra="the_scaled_loss_is_proportional",
    ),
    "prepare_optimizer": _of(values="gradients_and_optimizer_state_are_of_the_declared_dtype", algebra=_STEPS),
    "optimizer_step": _of(
        values="a_step_is_of_true_gradients each_group_is_stepped a_step_with_a_closure",
        arguments="gradients_stay_after_a_step parameters_without_gradients",
        algebra=f"{_STEPS} two_optimizers gradients_are_added_where_they_were",
        again="a_step_is_taken_once",
        errors="an_overflow_is_left_out an_overflow_in_any_group after_an_error_it_goes_on",
    ),
    "step_was_skipped": _of(
        values="a_skipped_step_is_told", again="a_skipped_step_is_told", algebra="each_optimizer_is_told_apart"
    ),
    "unscale_gradients": _of(values="each_group_is_unscaled", again="gradients_are_unscaled_once"),
    "clip_gradients": _of(
        values="clipping_is_of_true_gradients other_norms",
        algebra="small_gradients_are_not_clipped",
        errors="scaled_gradients_are_not_clipped another_algorithm_is_refused after_an_error_it_goes_on",
    ),
    "state_dict": _of(
        values="its_state_can_be_kept",
        arguments="its_state_is_its_own",
        algebra="its_state_goes_on its_state_is_its_own",
    ),
    "load_state_dict": _of(
        values="its_state_goes_on",
        arguments="its_state_is_its_own",
        again="its_state_is_its_own",
        errors="an_empty_state_is_taken",
    ),
    "teardown": _of(
        values="teardown_restores_the_process",
        again="teardown_restores_the_process instances_are_independent",
        copies=_COPY,
    ),
}

_CHECKPOINT, _CALLS = "a_drawn_checkpoint_comes_back", "a_drawn_order_of_calls"
_CHECKPOINT_IO = {
    "save_checkpoint": _of(
        values="tensors_come_back plain_values_come_back it_is_where_the_path_says its_files_follow_the_umask",
        arguments="saving_leaves_the_checkpoint_as_it_was saving_leaves_each_tensor later_changes_are_not_saved",
        algebra=f"{_CALLS} views_share_their_memory a_link_is_not_its_target long_names_are_kept",
        again="several_saves_before_teardown another_instance_reads_and_removes",
        errors="a_failed_save_leaves_what_was_there a_killed_save_leaves_a_whole_checkpoint after_an_error_it_goes_on",
        copies=f"{_COPY} other_threads_save_and_load",
        drawn=f"{_CHECKPOINT} {_CALLS}",
    ),
    "load_checkpoint": _of(
        values="values_keep_their_type_and_order tensors_keep_their_values map_location_is_heeded",
        arguments="loading_changes_no_file what_is_loaded_is_the_users_own what_was_loaded_outlives_the_checkpoint",
        algebra=f"{_CALLS} tied_tensors_stay_tied views_share_their_memory a_folder_that_is_a_link",
        again="each_load_is_independent",
        errors="a_damaged_checkpoint_is_refused loading_something_else_is_refused planted_code_is_not_run",
        copies=f"{_COPY} other_threads_save_and_load",
        drawn=f"{_CHECKPOINT} {_CALLS}",
    ),
    "remove_checkpoint": _of(
        values="removing_leaves_nothing neighbours_are_left_alone",
        algebra=f"{_CALLS} a_link_is_not_its_target",
        errors="a_users_folder_is_left_alone",
        again="removing_a_missing_checkpoint",
        copies="another_instance_reads_and_removes",
        drawn=_CALLS,
    ),
    "wait": _of(
        values="what_waits_for_a_commit", again="what_waits_for_a_commit", copies="other_threads_save_and_load"
    ),
    "check": _of(values="what_waits_for_a_commit"),
    "when_committed": _of(values="what_waits_for_a_commit", again="what_waits_for_a_commit"),
    "connect": _of(untested="it tells what a strategy prefers; any answer is right"),
    "check_checkpoint": _of(values="checking_writes_nothing", arguments="checking_writes_nothing"),
    "teardown": _of(
        values="no_thread_is_left it_holds_on_to_nothing", again="teardown_can_be_called_twice", drawn=_CALLS
    ),
}

_ANY_ORDER = "properties_in_any_order"
_READS = "no_variables_are_not_the_process_own without_a_mapping_they_are_the_process_own any_mapping_is_taken"
_OTHERS = f"{_COPY} other_processes_answer_the_same"
_RANK = _of(
    values="ranks_are_consistent clusters_of_other_shapes",
    arguments="any_mapping_is_taken the_environment_variables_stay_as_they_are",
    algebra=f"{_ANY_ORDER} given_variables_go_before_the_process_own",
    again="instances_are_independent teardown_can_be_called_twice",
    errors="variables_that_make_no_sense a_variable_that_is_missing after_a_refusal_it_goes_on",
    copies=_OTHERS,
    drawn=f"{_ANY_ORDER} other_variables_do_not_matter",
)
_PLACE = _of(
    values="main_address_and_port clusters_of_other_shapes",
    algebra=f"{_ANY_ORDER} properties_are_stable",
    again="instances_are_independent",
    errors="variables_that_make_no_sense",
    copies=_OTHERS,
    drawn=_ANY_ORDER,
)
_TRUTH = _of(
    values="truth_values text_that_says_no", again="instances_are_independent", copies=_OTHERS, drawn=_ANY_ORDER
)
_CLUSTER_ENVIRONMENT = {
    "detect": _of(
        values="its_own_processes_are_detected other_processes_are_not_detected detection_is_quick",
        arguments="any_mapping_is_taken",
        algebra=_READS,
        again="instances_are_independent",
        errors="detection_never_raises",
        drawn="other_variables_do_not_matter",
    ),
    **dict.fromkeys(("world_size", "local_world_size", "global_rank", "local_rank", "node_rank", "num_nodes"), _RANK),
    **dict.fromkeys(("main_address", "main_port"), _PLACE),
    **dict.fromkeys(("creates_processes_externally", "hosts_store"), _TRUTH),
    "leaves_orphans": _of(values="what_else_it_tells"),
    "requeue_command": _of(values="what_else_it_tells", arguments="what_else_it_tells", again="what_else_it_tells"),
    "restarted_since": _of(values="what_else_it_tells"),
    "connect": _of(again="after_a_refusal_it_goes_on", errors="after_a_refusal_it_goes_on"),
    "validate_settings": _of(
        values="its_own_numbers_are_taken",
        again="after_a_refusal_it_goes_on",
        errors="other_numbers_are_refused",
        drawn="drawn_numbers_are_refused",
    ),
    "run_function": _of(untested="only called if it starts processes; the suite of strategies trains in them"),
    "teardown": _of(
        values="teardown_can_be_called_twice", again="teardown_can_be_called_twice", algebra="instances_are_independent"
    ),
}

CONTRACT: Mapping[str, Mapping[str, Method]] = {
    "accelerator": _ACCELERATOR,
    "strategy": _STRATEGY,
    "precision": _PRECISION,
    "checkpoint_io": _CHECKPOINT_IO,
    "cluster_environment": _CLUSTER_ENVIRONMENT,
}
"""By kind and method or property of its base class."""
