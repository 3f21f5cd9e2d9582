"""Usual mistakes with the methods of a Runtime: each was silent, or an error from within torch or core."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from core import LocalSGD, Runtime
from core.errors import ConfigurationError

from .cases import Mistake, check, loader, runtime


def using(step: Any, **arguments: Any) -> Any:
    """A mistake after ``prepare``."""

    def make() -> None:
        run = runtime(**arguments)
        model = nn.Linear(3, 1)
        try:
            step(run, *run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1)))
        finally:
            run.teardown()

    return make


def preparing(*objects: Any, **arguments: Any) -> Any:
    """A mistake in the arguments of ``prepare``."""
    return lambda: runtime().prepare(*objects, **arguments)


def entering(method: str, what: Any, **arguments: Any) -> Any:
    """A mistake in the argument of a context of the loop."""

    def step(run: Any, model: Any, optimizer: Any) -> None:
        with getattr(run, method)(optimizer if what == "optimizer" else what):
            pass

    return using(step, **arguments)


def profiling(**arguments: Any) -> Any:
    """A mistake in an argument of ``profile``."""

    def step(run: Any, model: Any, optimizer: Any) -> None:
        with run.profile(**arguments):
            pass

    return using(step)


def accumulated_without_with(step: Any) -> Mistake:
    """``accumulate`` without ``with``, in the first step of a loop."""

    def first(run: Any, model: Any, optimizer: Any) -> None:
        run.accumulate(model)
        step(run, model(torch.ones(2, 3)), optimizer)

    make = using(first, gradient_accumulation_steps=2)
    return Mistake(make, "accumulate", "was not used", "with runtime.accumulate(model): ...")


def never_accumulated(run: Any, model: Any, optimizer: Any) -> None:
    """A loop that steps after each backward pass."""
    for _ in range(2):
        run.backward(model(torch.ones(2, 3)).mean())
        optimizer.step()
        optimizer.zero_grad()


def own_backward_and_step(run: Any, output: Any, optimizer: Any) -> None:
    output.mean().backward()
    optimizer.step()


def own_model_accumulated() -> None:
    """The model that was passed to prepare, where it returns another one."""
    own = nn.Linear(3, 1)
    with runtime(precision="bf16-mixed", gradient_accumulation_steps=2) as run:
        kept = run.prepare(own)
        with run.accumulate(own):
            kept(torch.ones(2, 3))


def prepared_again() -> None:
    """Pass the original module to ``prepare`` a second time, although ``prepare`` returned a wrapped one."""
    own = nn.Linear(3, 1)
    with runtime(precision="bf16-mixed") as run:
        kept = run.prepare(own)
        assert run.prepare(kept) is kept
        run.prepare(own)


MODEL = nn.Linear(3, 1)
SGD = torch.optim.SGD(MODEL.parameters(), lr=0.1)
SCHEDULER = torch.optim.lr_scheduler.StepLR(SGD, 1)

MISTAKES: dict[str, Mistake] = {
    "name for a module": Mistake(preparing("model"), "prepare", "'model' of type str", "Pass modules, optimizers"),
    "device for an object": Mistake(preparing(MODEL, "cpu"), "prepare", "'cpu' of type str", "Pass modules"),
    "number for an object": Mistake(preparing(MODEL, 3), "prepare", "3 of type int", "Pass modules"),
    "generator for a loader": Mistake(
        preparing(MODEL, (batch for batch in loader())), "prepare", "type generator", "Pass the DataLoader"
    ),
    "iterator of a loader": Mistake(preparing(iter(loader())), "prepare", "DataLoaderIter", "not iter(loader)"),
    "parameters for a module": Mistake(
        preparing(MODEL.parameters()), "prepare", "type generator", "the module, not module.parameters()"
    ),
    "same module twice": Mistake(preparing(MODEL, MODEL), "prepare", "the same Linear twice", "Pass it once"),
    "same optimizer twice": Mistake(preparing(MODEL, SGD, SGD), "prepare", "the same SGD twice", "Pass it once"),
    "one value for device_placement": Mistake(
        preparing(MODEL, SGD, device_placement=True), "device_placement", "True", "[True, True]"
    ),
    "name for prepare_model": Mistake(
        lambda: runtime().prepare_model("net"),  # type: ignore[arg-type]
        "prepare_model: model",
        "'net' of type str",
        "Pass a module",
    ),
    "module for prepare_optimizer": Mistake(
        lambda: runtime().prepare_optimizer(MODEL),  # type: ignore[arg-type]
        "prepare_optimizer: optimizer",
        "type Linear",
        "Pass an optimizer",
    ),
    "scheduler without its optimizer": Mistake(
        lambda: runtime(gradient_accumulation_steps=2).prepare(MODEL, SCHEDULER),
        "prepare",
        "a StepLR, but its optimizer, a SGD, was not prepared",
        "runtime.prepare(model, optimizer, scheduler)",
    ),
    "scheduler for prepare_scheduler": Mistake(
        lambda: runtime(precision="16-mixed").prepare_scheduler(SCHEDULER), "prepare", "was not prepared", "together"
    ),
    "optimizer for prepare_scheduler": Mistake(
        lambda: runtime().prepare_scheduler(SGD),  # type: ignore[arg-type]
        "prepare_scheduler: scheduler",
        "type SGD",
        "Pass a scheduler",
    ),
    "name for accumulate": Mistake(
        entering("accumulate", "net", gradient_accumulation_steps=2),
        "accumulate: model",
        "'net' of type str",
        "Pass the prepared module",
    ),
    "number for accumulate": Mistake(
        entering("accumulate", 4, gradient_accumulation_steps=2), "accumulate: model", "4 of type int", "Pass the"
    ),
    "optimizer for accumulate": Mistake(
        entering("accumulate", "optimizer", gradient_accumulation_steps=2), "accumulate", "must be a Module", "Pass the"
    ),
    "name for no_sync": Mistake(entering("no_sync", "net"), "no_sync: model", "'net' of type str", "Pass the"),
    "name for trigger_sync_in_backward": Mistake(
        entering("trigger_sync_in_backward", "net"), "trigger_sync_in_backward: model", "'net'", "Pass the"
    ),
    "name for unwrap_model": Mistake(
        using(lambda run, model, optimizer: run.unwrap_model("net")), "unwrap_model: model", "'net'", "Pass the"
    ),
    "nothing for unwrap_model": Mistake(
        using(lambda run, model, optimizer: run.unwrap_model(None)), "unwrap_model: model", "None", "Pass the"
    ),
    "name for clipping": Mistake(
        using(lambda run, model, optimizer: run.clip_grad_norm_("net", 1.0)),
        "clip_grad_norm_: parameters",
        "type str",
        "Pass model.parameters()",
    ),
    "state dict for clipping": Mistake(
        using(lambda run, model, optimizer: run.clip_grad_value_(model.state_dict(), 1.0)),
        "clip_grad_value_: parameters",
        "Dict",
        "Pass model.parameters()",
    ),
    "number for a state": Mistake(
        using(lambda run, model, optimizer: run.load_state(3)), "load_state: input_dir", "3", "must be a path"
    ),
    "no path to save": Mistake(
        using(lambda run, model, optimizer: run.save({"a": 1}, None)), "save: f", "None", "must be a path"
    ),
    "another model for accumulate": Mistake(
        entering("accumulate", nn.Linear(2, 2), gradient_accumulation_steps=2),
        "accumulate",
        "a Linear that was not prepared",
        "Pass a model that runtime.prepare has returned",
    ),
    "own model for accumulate": Mistake(
        own_model_accumulated, "accumulate", "that was passed to prepare", "Pass what it returned"
    ),
    "another model for no_sync": Mistake(
        entering("no_sync", nn.Linear(2, 2)), "no_sync", "a Linear that was not prepared", "Pass a model that"
    ),
    "accumulate without with": accumulated_without_with(lambda run, output, optimizer: run.backward(output.mean())),
    "accumulate without with, and a step": accumulated_without_with(own_backward_and_step),
    "accumulate without with, and items": accumulated_without_with(
        lambda run, output, optimizer: run.backward(output.sum(), num_items=2)
    ),
    "accumulate never called": Mistake(
        using(never_accumulated, gradient_accumulation_steps=2),
        "gradient_accumulation_steps",
        "2: the optimizer steps after each backward pass",
        "with runtime.accumulate(model): ...",
    ),
    "iterating over a context": Mistake(
        lambda: list(runtime().split_between_processes([1, 2])),  # type: ignore[call-overload]
        "runtime.split_between_processes",
        "without with",
        "with runtime.split_between_processes(inputs) as part: ...",
    ),
    "length of a context": Mistake(
        lambda: len(runtime().split_between_processes([1, 2])),  # type: ignore[arg-type]
        "runtime.split_between_processes",
        "without with",
        "with runtime.split_between_processes(inputs) as part: ...",
    ),
    "item of a context": Mistake(
        lambda: runtime().split_between_processes([1, 2])[0],  # type: ignore[index]
        "runtime.split_between_processes",
        "without with",
        "with runtime.split_between_processes(inputs) as part: ...",
    ),
    "LocalSGD without with": Mistake(
        using(lambda run, model, optimizer: LocalSGD(run, model, local_sgd_steps=2).step()),
        "LocalSGD: step",
        "outside of its context",
        "with LocalSGD(runtime, model",
    ),
    "clipping to nothing": Mistake(
        using(lambda run, model, optimizer: run.clip_grad_norm_(model.parameters())),
        "Runtime.clip_grad_norm_",
        "Given: a generator",
        "missing a required argument: 'max_norm'",
    ),
    "misspelt argument of clipping": Mistake(
        using(lambda run, model, optimizer: run.clip_grad_value_(model.parameters(), clip_val=1)),
        "Runtime.clip_grad_value_",
        "'clip_val'",
        "Did you mean 'clip_value'?",
    ),
    "number for prepare_data_loader": Mistake(
        lambda: runtime().prepare_data_loader(3), "prepare_data_loader", "type int", "DataLoader(dataset, batch_size="
    ),
    "list of numbers for prepare_data_loader": Mistake(
        lambda: runtime().prepare_data_loader([1]), "prepare_data_loader", "1 of type int, which is no batch", "Pass a"
    ),
    "list of loaders for prepare_data_loader": Mistake(
        lambda: runtime().prepare_data_loader([loader(), loader()]),
        "prepare_data_loader",
        "a list of loaders",
        "one by one: prepare(*loaders)",
    ),
    "data set for prepare_data_loader": Mistake(
        lambda: runtime().prepare_data_loader(loader().dataset), "prepare_data_loader", "TensorDataset", "DataLoader("
    ),
    "iterator for prepare_data_loader": Mistake(
        lambda: runtime().prepare_data_loader(iter(loader())), "prepare_data_loader", "LoaderIter", "not iter(loader)"
    ),
    "class for prepare_data_loader": Mistake(
        lambda: runtime().prepare_data_loader(torch.utils.data.DataLoader),
        "prepare_data_loader",
        "the class DataLoader",
        "Pass a loader",
    ),
    "unknown option for prepare_data_loader": Mistake(
        lambda: runtime().prepare_data_loader(loader(), shard=True),  # type: ignore[call-arg]
        "Runtime.prepare_data_loader",
        "'shard'",
        "Did you mean 'sharded'?",
    ),
    "nothing to register": Mistake(
        lambda: runtime().register_for_checkpointing(), "register_for_checkpointing", "no object", "Pass those that"
    ),
    "prepared model to register": Mistake(
        using(lambda run, model, optimizer: run.register_for_checkpointing(optimizer)),
        "register_for_checkpointing",
        "the SGD is prepared",
        "Leave it out",
    ),
    "class to register": Mistake(
        lambda: runtime().register_for_checkpointing(nn.Linear), "register_for_che", "class Linear", "Give objects that"
    ),
    "name for join_uneven_inputs": Mistake(
        entering("join_uneven_inputs", "m"), "join_uneven_inputs: joinables", "'m' of type str", "must be a list"
    ),
    "model for join_uneven_inputs": Mistake(
        entering("join_uneven_inputs", MODEL), "join_uneven_inputs", "type Linear", "join_uneven_inputs([model])"
    ),
    "number in join_uneven_inputs": Mistake(
        entering("join_uneven_inputs", [3]), "join_uneven_inputs", "3 of type int", "Pass prepared models"
    ),
    "text for even_batches": Mistake(
        using(lambda run, model, optimizer: run.join_uneven_inputs([model], even_batches="no")),
        "join_uneven_inputs: even_batches",
        "'no'",
        "True, False or None",
    ),
    "text to clip by": Mistake(
        using(lambda run, model, optimizer: run.clip_grad_value_(model.parameters(), "x")),
        "clip_grad_value_: clip_value",
        "'x'",
        "a number ≥ 0",
    ),
    "negative value to clip by": Mistake(
        using(lambda run, model, optimizer: run.clip_grad_value_(model.parameters(), -1)),
        "clip_grad_value_: clip_value",
        "-1",
        "a number ≥ 0",
    ),
    "named parameters for clipping": Mistake(
        using(lambda run, model, optimizer: run.clip_grad_norm_(model.named_parameters(), 1.0)),
        "clip_grad_norm_: parameters",
        "type tuple",
        "Pass model.parameters()",
    ),
    "text for a norm": Mistake(
        using(lambda run, model, optimizer: run.clip_grad_norm_(model.parameters(), 1.0, "l2")),
        "clip_grad_norm_: norm_type",
        "'l2'",
        "a number, or float('inf')",
    ),
    "module to unscale": Mistake(
        using(lambda run, model, optimizer: run.unscale_gradients(model)),
        "unscale_gradients: optimizer",
        "type Linear",
        "Pass an optimizer",
    ),
    "precision for autocast": Mistake(
        using(lambda run, model, optimizer: run.autocast("bf16")), "Runtime.autocast", "'bf16'", "Set precision="
    ),
    "number for profile": Mistake(entering("profile", 3), "profile_handler", "3", "core.ProfileKwargs"),
    "text for activities": Mistake(profiling(activities="cpu"), "activities", "'cpu'", "['cpu']"),
    "misspelt key of a schedule": Mistake(
        profiling(schedule_option={"wait": 1, "warmup": 1, "acitve": 2}), "schedule_option", "'acitve'", "'active'"
    ),
    "missing key of a schedule": Mistake(
        profiling(schedule_option={"wait": 1}), "schedule_option", "{'wait': 1}", "missing a required argument"
    ),
    "number for a schedule": Mistake(profiling(schedule_option=3), "schedule_option", "3", "must be a dict"),
    "folder for on_trace_ready": Mistake(
        profiling(on_trace_ready="out"), "on_trace_ready", "'out'", "set output_trace_dir"
    ),
    "number for a folder of traces": Mistake(profiling(output_trace_dir=3), "output_trace_dir", "3", "must be a path"),
    "number of a process for a function": Mistake(
        lambda: runtime().on_process(1),  # type: ignore[arg-type]
        "on_process",
        "got 1",
        "process_index=1",
    ),
    "text for values to log": Mistake(
        lambda: runtime().log("loss"),  # type: ignore[arg-type]
        "log: values",
        "'loss'",
        "such as {'loss': 0.5}",
    ),
    "number for a project": Mistake(
        lambda: runtime().init_trackers(3),  # type: ignore[arg-type]
        "project_name",
        "3",
        "must be a text",
    ),
    "folder of weights": Mistake(
        lambda: runtime().save_model(MODEL, 3),  # type: ignore[arg-type]
        "save_directory",
        "3",
        "a path",
    ),
    "number for a hook": Mistake(
        lambda: runtime().register_save_state_pre_hook(3),  # type: ignore[arg-type]
        "register_save_state_pre_hook: hook",
        "3",
        "(models, weights, output_dir)",
    ),
    "hook with other arguments": Mistake(
        lambda: runtime().register_load_state_pre_hook(lambda: None),  # type: ignore[misc, arg-type]
        "register_load_state_pre_hook: hook",
        "takes ()",
        "(models, input_dir)",
    ),
    "accelerator without its name": Mistake(
        lambda: Runtime("cpu"),  # type: ignore[call-arg]
        "Runtime",
        "Given: 'cpu'",
        "Runtime(accelerator=...)",
    ),
    "nothing to prepare": Mistake(lambda: runtime().prepare(), "prepare", "got nothing", "Pass modules, optimizers"),
    "own module prepared again": Mistake(
        prepared_again, "prepare", "the Linear that was passed to prepare before", "Use what prepare returned"
    ),
    "nothing for backward": Mistake(
        using(lambda run, model, optimizer: run.backward(None)),
        "backward",
        "the loss is None",
        "what the criterion returned",
    ),
    "nothing for backward in a window": Mistake(
        using(lambda run, model, optimizer: run.backward(None), gradient_accumulation_steps=2),
        "backward",
        "the loss is None",
        "what the criterion returned",
    ),
    "outputs for backward with num_items": Mistake(
        using(lambda run, model, optimizer: run.backward({"loss": 1}, num_items=2)),
        "backward",
        "type dict",
        "what the criterion returned",
    ),
    "Trainer's argument for a Runtime": Mistake(
        lambda: runtime(max_epochs=3), "Runtime", "'max_epochs'", "or use core.Trainer"
    ),
    "switch for a precision": Mistake(lambda: runtime(bf16=True), "Runtime", "'bf16'", "precision='bf16-mixed'"),
    "nothing for prepare_model": Mistake(
        lambda: runtime().prepare_model(),  # type: ignore[call-arg]
        "Runtime.prepare_model",
        "missing",
        "'model'",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistake(name: str) -> None:
    """The message names what is wrong, what was given, and what to do."""
    check(MISTAKES[name])


def test_what_is_no_mistake() -> None:
    """None for a part that is not used, tensors, functions and objects of the user's own are returned as they are."""
    own = object()
    given = (None, torch.ones(2), len, own)
    run = runtime()
    assert all(a is b for a, b in zip(run.prepare(*given), given, strict=True))
    with run.accumulate(), run.no_sync(run.prepare(nn.Linear(3, 1))):
        pass
    run.teardown()


def test_models_that_hold_a_prepared_one() -> None:
    """A compiled model, a module around a prepared one, and a part of it can be accumulated."""
    with runtime(gradient_accumulation_steps=2) as run:
        model = run.prepare(nn.Sequential(nn.Linear(3, 1)))
        models: list[nn.Module] = [torch.compile(model, backend="eager"), nn.ModuleList([model]), model[0]]  # type: ignore[list-item]
        for given in models:
            with run.accumulate(given):
                pass


def test_accumulation_goes_on_after_the_mistake() -> None:
    """The context that was not used is forgotten when it was named."""
    with runtime(gradient_accumulation_steps=2) as run:
        model = run.prepare(nn.Linear(3, 1))
        for second in (run.accumulate, lambda model: run.backward(model(torch.ones(2, 3)).mean())):
            run.accumulate(model)
            with pytest.raises(ConfigurationError, match="was not used"):
                second(model)
        with run.accumulate(model):
            pass
