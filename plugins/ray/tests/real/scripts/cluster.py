"""Runs on a Ray cluster of several nodes on this machine: ``cluster.py OUT``; writes OUT/said.json."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import ray
import ray.train
import torch
from problem import Problem, arguments, loader, weights
from ray.cluster_utils import Cluster
from ray.train import FailureConfig, RunConfig
from ray.train.torch import TorchTrainer
from torch_hal_ray import RayEnvironment, RayReport, report, resumed, scaling_config

from torch_hal import Runtime, Trainer, seed_everything
from torch_hal.callbacks import ModelCheckpoint
from torch_hal.errors import LaunchError


def plain(out: Path) -> dict[str, Any]:
    """The reference: the same fit on two processes without Ray."""
    seed_everything(7)
    module = Problem()
    Trainer(**arguments(strategy="ddp_spawn", devices=2, enable_checkpointing=False)).fit(module, loader())
    return {"weights": weights(module)}


def driven(out: Path, failure: str = "", resource: str = "acme") -> dict[str, Any]:
    """A fit that a driver sends to two nodes."""
    seed_everything(7)
    module, folder = Problem(failure, str(out)), out / f"driven-{failure}"
    environment = RayEnvironment(resources_per_process={"CPU": 1, resource: 1}, max_restarts=1 if failure else 0)
    saving = ModelCheckpoint(str(folder), every_n_train_steps=4, save_top_k=-1)
    trainer = Trainer(**arguments(cluster_environment=environment, num_nodes=2, devices=1, callbacks=saving))
    trainer.fit(module, loader())
    return {
        "weights": weights(module),
        "launcher": trainer.plan.launcher,
        "loss": float(trainer.callback_metrics["loss"]),
        "failed": (out / failure).is_file() if failure else False,
        "saved": len(list(folder.iterdir())),
    }


def _places(runtime: Runtime) -> list[tuple[int, int, int, str, list[float]]]:
    own = ray.get_runtime_context().get_node_id()
    total = runtime.reduce(torch.tensor([runtime.process_index + 1.0]), "sum")
    state = runtime.state
    return runtime.strategy.all_gather_object(
        (state.process_index, state.local_process_index, runtime.strategy.node_rank, own, total.tolist())
    )


def spread(out: Path) -> Any:
    """Two processes on each of two nodes."""
    runtime = Runtime(
        accelerator="cpu",
        strategy="ddp",
        devices=2,
        num_nodes=2,
        cluster_environment=RayEnvironment(resources_per_process={"CPU": 0.5}),
    )
    return runtime.launch(_places)


def _raises(runtime: Runtime) -> None:
    runtime.barrier()
    if runtime.process_index == 1:
        raise ValueError("a fault of the user's")
    runtime.barrier()


def refusals(out: Path) -> dict[str, str]:
    """Errors that name what is wrong."""
    said = {}
    for name, given, function in (
        ("resource", {"CPU": 1, "none_such": 1}, _places),
        ("raised", {"CPU": 1}, _raises),
    ):
        from datetime import timedelta

        environment = RayEnvironment(resources_per_process=given, placement_timeout=timedelta(seconds=3))
        runtime = Runtime(accelerator="cpu", strategy="ddp", devices=1, num_nodes=2, cluster_environment=environment)
        try:
            runtime.launch(function)
        except LaunchError as error:
            said[name] = str(error)
    return said


def _fit(config: dict[str, Any]) -> None:
    seed_everything(7)
    module = Problem(config["failure"], config["out"])
    callback = RayReport(every_n_epochs=0, every_n_train_steps=4)
    trainer = Trainer(**arguments(num_nodes="auto", callbacks=callback))
    with resumed() as path:
        Path(config["out"], f"path-{ray.train.get_context().get_world_rank()}").write_text(str(path))
        trainer.fit(module, loader(), ckpt_path=path)
    facts = {"weights": weights(module), "environment": trainer.plan.cluster_environment.name}
    if trainer.global_rank == 0:
        Path(config["out"], "trained.json").write_text(json.dumps(facts))


def trained(out: Path, failure: str) -> dict[str, Any]:
    """A fit in Ray's TorchTrainer, a worker of which is killed, or the node that it is on."""
    config = RunConfig(storage_path=str(out / "ray"), name=failure, failure_config=FailureConfig(max_failures=2))
    own = out / f"trained-{failure}"
    own.mkdir()
    what = {"failure": failure, "out": str(own)}
    # One worker on each node that has "acme": not on the head, where the driver is.
    scaling = scaling_config(2, "acme")
    result = TorchTrainer(_fit, train_loop_config=what, scaling_config=scaling, run_config=config).fit()
    facts: dict[str, Any] = json.loads((own / "trained.json").read_text())
    return {
        **facts,
        "metrics": result.metrics,
        "error": str(result.error),
        "checkpoint": result.checkpoint is not None,
        "failed": (own / failure).is_file(),
        "path": (own / "path-0").read_text(),
    }


def _loop(config: dict[str, Any]) -> None:
    runtime = Runtime(accelerator="cpu", strategy="ddp", num_nodes="auto")
    seed_everything(7)
    module = torch.nn.Linear(4, 1)
    model, optimizer = runtime.prepare(module, torch.optim.SGD(module.parameters(), lr=0.1))
    with resumed() as path:
        if path is not None:
            runtime.load_state(path)
    loss = model(torch.ones(2, 4)).square().mean()
    runtime.backward(loss)
    optimizer.step()
    report(runtime, {"loss": float(loss)})


def looped(out: Path) -> dict[str, Any]:
    """A loop of one's own in Ray's TorchTrainer."""
    config = RunConfig(storage_path=str(out / "ray"), name="loop")
    result = TorchTrainer(_loop, scaling_config=scaling_config(2), run_config=config).fit()
    return {"metrics": result.metrics, "checkpoint": result.checkpoint is not None}


def main() -> None:
    """All of it, or what is named."""
    out, names = Path(sys.argv[1]), sys.argv[2:]
    parts: dict[str, Callable[[Path], Any]] = {
        "plain": plain,
        "driven": driven,
        "worker": partial(driven, failure="worker"),
        "spread": spread,
        "refusals": refusals,
        "trained": partial(trained, failure="worker"),
        "looped": looped,
        "node": partial(driven, failure="node"),
        "trained on nodes": partial(trained, failure="node"),
    }
    wanted = names or list(parts)
    said: dict[str, Any] = {}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        # Two for a run, and one to take over for each that is killed.
        for _ in range(2 + sum("node" in name for name in wanted)):
            cluster.add_node(num_cpus=1, resources={"acme": 1})
        ray.init(address=cluster.address, log_to_driver=True)
        for name in wanted:
            begin = time.monotonic()
            said[name] = parts[name](out)
            sys.stderr.write(f"{name}: {time.monotonic() - begin:.1f} s\n")
            (out / "said.json").write_text(json.dumps(said))
    finally:
        ray.shutdown()
        cluster.shutdown()


if __name__ == "__main__":
    main()
