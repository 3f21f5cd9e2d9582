"""A few batches of validation before training, so that an error in it shows at once."""

from __future__ import annotations

import math

from ...random import set_rng_state
from ..run_context import RunContext
from .evaluate import EvaluationLoop

__all__ = ["sanity_check"]


def sanity_check(run: RunContext, validation: EvaluationLoop) -> None:
    """Run ``num_sanity_val_steps`` batches of ``validation``, without an effect on anything that follows.

    What is logged goes nowhere; random number generators and the loaders' positions are as before.
    """
    steps = run.settings.num_sanity_val_steps
    if not steps:
        return
    strategy, stage = run.runtime.strategy, run.stage
    run.pass_begun = begun = validation.position()
    run.stage = "sanity_check"
    with run.metric_log.discarding():
        run.hooks.call_callbacks("on_sanity_check_start")
        validation.run(at_most=math.inf if steps == -1 else steps)
        run.hooks.call_callbacks("on_sanity_check_end")
    run.stage = stage
    run.pass_begun = None
    for loader, position in zip(validation.loaders, begun["loaders"], strict=True):
        loader.load_state_dict(position)
    set_rng_state(begun["rng"], strategy.accelerator, strategy.root_device)
