"""As :mod:`.mutants`: mutants that change what is the user's own, unusual modules, or leave something behind."""

from __future__ import annotations

from functools import partial

from .mutants import Mutant

__all__ = [
    "CHECKPOINT_PATHS",
    "CHECKPOINT_TRACES",
    "CLUSTER_USE",
    "DEVICE_LIFE",
    "DEVICE_VALUES",
    "MODULES",
    "PRECISION_KEEPS",
    "RATES_AND_ORDERS",
    "UNUSUAL_TENSORS",
]

_strategy = partial(Mutant, kind="strategy")
_precision = partial(Mutant, kind="precision")
_checkpoint_io = partial(Mutant, kind="checkpoint_io")
_cluster = partial(Mutant, kind="cluster_environment")

_FROZEN = "test_frozen_parameters_stay_as_they_are[one_device]"
_DRAWS = "test_training_draws_no_random_numbers[one_device]"

DEVICE_VALUES = [
    Mutant("copieswhatisstored", "test_values_arrive_as_they_are[transposed]", "transposed: on simx:0 it is"),
    Mutant("countsin32bits", "test_values_arrive_as_they_are[large integers]", "large integers: on simx:0 it is .1,"),
    Mutant("knowsonlynumbers", "test_values_arrive_as_they_are[not finite]", "it is .0.0, inf"),
    Mutant("ignoresseeds", "test_a_seed_decides_its_numbers", "different numbers each time"),
    Mutant("neverdrops", "test_dropout_drops", "sets 0 of 1000 elements"),
    Mutant("hasnopeak", "test_memory_is_counted", "the peak is 0 bytes"),
]

DEVICE_LIFE = [
    Mutant("rewindsgenerators", "test_using_a_device_changes_nothing_else[random state]", "random state: .*torch"),
    Mutant("holdsalock", "test_a_copy_of_it_works[pickled]", "cannot pickle '_thread.lock'"),
    Mutant("leavesgarbage", "test_using_a_device_changes_nothing_else[garbage collector]", "enabled: True -> False"),
    Mutant("collectsgarbageagain", "test_using_a_device_changes_nothing_else[garbage collector]", "False -> True"),
]

RATES_AND_ORDERS = [
    _strategy("keepsthefirstrate", "test_rates_are_followed[one_device]", "'0.weight' of rank 0 is off by"),
    _strategy(
        "stepsthegroupsitknows", "test_a_group_that_is_added_is_stepped[one_device]", "'late.weight' of rank 0 is off"
    ),
    _strategy("gathersbysize", "test_drawn_objects[multi_device-1]", "objects of rank 0"),
    _strategy("losesthesign", "test_reduce[multi_device-product-int64]", "'product'. of int64 in rank 0 gives"),
    _strategy(
        "endstheoutercontext", "test_an_inner_no_sync_ends_only_itself[multi_device]", "in the outer one are .* off"
    ),
]

MODULES = [
    _strategy("trainsthefrozen", _FROZEN, "changes the frozen parameter 'frozen.weight'"),
    _strategy("fillsingradients", _FROZEN, "changes the frozen parameter 'frozen.weight'"),
    _strategy("putsallintraining", "test_each_layer_keeps_its_mode[one_device]", "'frozen': True"),
    _strategy(
        "sharesnothing", "test_shared_parameters_are_trained_as_one[one_device]", "layers share has two values in rank"
    ),
    _strategy(
        "zeroeswhatisnotsaved",
        "test_buffers_outside_of_checkpoints_keep_their_values[one_device]",
        "such a buffer is .0.0, 0.0",
    ),
    _strategy("seedsatprepare", _DRAWS, "change torch's random state in rank 0"),
    _strategy("drawsateachstep", _DRAWS, "change torch's random state in rank 0"),
    _strategy("syncsthefirst", "test_two_modules_in_turn[multi_device]", "'layer.weight' of rank 0 is off by"),
    _strategy("stepsthefirst", "test_two_modules_in_turn[one_device]", "'layer.weight' of rank 0 is off by"),
    _strategy("sayswhatisleft", "test_the_norm_of_gradients[one_device-norm 2.0]", "returned 0.00999"),
    _strategy("knowsonenorm", "test_the_norm_of_gradients[one_device-norm inf]", "norm_type=inf. returned 0.1"),
]

UNUSUAL_TENSORS = [
    _strategy("sendslists", "test_broadcast[multi_device]", r"'pair': \["),
    _strategy("gathersinhalves", "test_all_gather[multi_device-16 bits]", "all_gather .16 bits.*inf"),
    _strategy(
        "reduceswhatisstored", "test_reduce_of_an_unusual_tensor[multi_device-transposed]", "reduce .transposed. in"
    ),
    _strategy("reducesnoempty", "test_reduce_of_an_unusual_tensor[multi_device-empty]", "nothing to reduce"),
    _strategy("reducesonlynumbers", "test_reduce_of_an_unusual_tensor[multi_device-not finite]", "Expected: .*nan"),
]

PRECISION_KEEPS = [
    _precision("unfreezes", "test_frozen_parameters_stay_frozen", "makes a frozen parameter trainable"),
    _precision("putsallintraining", "test_each_layer_keeps_its_mode", "'frozen': True"),
    _precision("sharesnothing", "test_tied_parameters_stay_tied", "share is two parameters"),
    _precision("lowerstheproducts", "test_torch_keeps_its_settings", "'medium'"),
    _precision("convertsinplace", "test_inputs_are_left_as_they_are", "the user's own list or dict"),
    _precision("knowsnonames", "test_inputs_keep_their_structure", "as a tuple"),
    _precision("takesrealparts", "test_complex_inputs_stay_complex", "as torch.float64"),
    _precision("backpropagatesonce", "test_backward_takes_torchs_arguments", "a second backward pass"),
    _precision("beginswithone", "test_backward_takes_torchs_arguments", "the gradient is .0.75"),
    _precision("knowsonenorm", "test_other_norms[inf]", "norm_type=inf the norm is 1.1456"),
    _precision("clearsafterwards", "test_gradients_stay_after_a_step", "a step removes gradients"),
    _precision("saysnothingofit", "test_a_skipped_step_is_told", "step_was_skipped.. returned .False, False."),
    _precision("narrowsdoubles", "test_wide_outputs_stay_wide", "comes out in torch.float32"),
    _precision("leavesfloat32", "test_forward_contexts_end_as_they_began[unusual]", "float64 -> torch.float32"),
    _precision("widensthedata", "test_gradients_are_added_where_they_were", "adds a parameter's gradients in another"),
    _precision("looksaway", "test_gradients_that_are_not_finite_are_seen", "Expected: NaN"),
]

CHECKPOINT_PATHS = [
    _checkpoint_io("removesthetarget", "test_a_link_is_not_its_target", "after removing a link, its target is nothing"),
    _checkpoint_io("splitsviews", "test_views_share_their_memory", "not seen in another one"),
    _checkpoint_io("cutsnames", "test_long_names_are_kept", "long names became"),
]

CHECKPOINT_TRACES = [
    _checkpoint_io("dropsempties", "test_values_keep_their_type_and_order[empty ones]", "loaded .'text': ''"),
    _checkpoint_io("tidieskeys", "test_values_keep_their_type_and_order[keys]", "'a.b': 2, 'a': "),
    _checkpoint_io(
        "namesdtypes", "test_other_values_come_back_or_are_refused[a dtype]", "loaded 'torch.bfloat16'. Expected: torch"
    ),
    _checkpoint_io("listssets", "test_other_values_come_back_or_are_refused[a set]", r"loaded \[1, 2, 3\]"),
    _checkpoint_io("tidiesnames", "test_it_is_where_the_path_says[a name]", "leaves .'a_name'. in its folder"),
    _checkpoint_io("knowsdevicesbyname", "test_a_map_location_of_torchs_other_kinds", "loaded a tensor on cpu"),
    _checkpoint_io("keepsall", "test_it_holds_on_to_nothing", "that was saved is still in memory"),
    _checkpoint_io("leavesfilesopen", "test_it_holds_on_to_nothing", "3 files are open"),
    _checkpoint_io("writesforall", "test_its_files_have_the_usual_permissions", "0o666"),
]

CLUSTER_USE = [
    _cluster("takesitsownfornone", "test_no_variables_are_not_the_process_own", "given no variables, in a process of"),
    _cluster("meetsathome", "test_main_address_and_port", "where each machine finds itself"),
    _cluster("addstheport", "test_main_address_and_port", "without a port"),
    _cluster("asksaserver", "test_detection_is_quick", "takes 0.6 s"),
    _cluster("reports", "test_using_it_prints_nothing", "prints 'connected"),
    _cluster("forgetsitsrank", "test_teardown_can_be_called_twice", "WORLD_SIZE is not set"),
]
