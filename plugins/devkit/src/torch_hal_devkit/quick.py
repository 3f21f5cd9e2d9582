"""What ``--quick`` runs: of each kind of promise a few tests, and one short run in place of the long ones."""

from __future__ import annotations

__all__ = ["QUICK_NAMES", "is_quick"]

_LONG = (
    "test_a_killed_save_leaves_a_whole_checkpoint",
    "test_a_failed_save_leaves_what_was_there",
    "test_without_devices",
)
"""Tests of T0 and T1 that take seconds each."""

_OF_A_DEVICE = frozenset(
    (
        "test_one_device_is_chosen",
        "test_a_device_is_made_current",
        "test_random_state_is_restored",
        "test_values_arrive_as_they_are",
        "test_custom_loop_equals_the_cpu",
        "test_a_checkpoint_is_exact",
        "test_products_are_computed_in_the_declared_dtype",
        "test_outputs_are_of_the_declared_dtype",
        "test_a_step_is_of_true_gradients",
        "test_clipping_is_of_true_gradients",
        "test_an_overflow_is_left_out",
        "test_a_skipped_step_is_told",
        "test_forward_contexts_end_as_they_began",
        "test_drawn_inputs_and_outputs",
        "test_its_state_is_its_own",
    )
)
"""Tests of T2 in the process of pytest."""

_OF_A_RUN = frozenset(
    (
        "test_ranks_and_devices",
        "test_reduce",
        "test_all_gather",
        "test_all_gather_object",
        "test_broadcast",
        "test_drawn_objects",
        "test_drawn_tensors",
        "test_training_equals_the_global_batch",
        "test_every_process_has_the_same_module",
        "test_rates_are_followed",
        "test_nothing_is_held",
        "test_a_group_that_is_added_is_stepped",
        "test_calls_change_nothing_else",
        "test_no_thread_is_left",
        "test_the_process_is_as_it_was",
        "test_unusual_settings_are_kept",
        "test_processes_exit_cleanly",
    )
)
"""Tests that read what the short run observes."""

_PREFIXES = ("reduce ", "all_gather ", "broadcast from ", "drawn ")
_NAMES = frozenset(
    (
        *("who", "all_gather_object", "after teardown", "unusual life", "fit", "changed by calls"),
        *("steps: scheduled", "scheduled", "held", "steps: added group", "added group"),
    )
)


class _Names:
    """The names of what the short run observes."""

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and (name in _NAMES or name.startswith(_PREFIXES))


QUICK_NAMES = _Names()
"""A container of the names of what the short run observes."""


def is_quick(test: str, tier: str, parameters: str, *, is_single: bool) -> bool:
    """Whether ``--quick`` runs a test.

    Args:
        test: Its name without parameters.
        tier: Its tier.
        parameters: Its parameters, as pytest shows them.
        is_single: Whether the suite has no runs on several devices.
    """
    if tier in ("T0", "T1"):
        return test not in _LONG
    if test in _OF_A_RUN:
        return ("multi_device" in parameters or is_single) and "after all" not in parameters
    return test in _OF_A_DEVICE
