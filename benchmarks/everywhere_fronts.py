"""One front end trains the same small model; a process of ``everywhere.py``.

Arguments: the front end's name, the number of devices, the file for the results. Both precisions run one after another;
the result is the loss of the trained weights over all samples, in float64 on the CPU, and the dtypes in which a linear
layer computed in training.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler, TensorDataset

__all__ = ["PRECISIONS", "language_reference", "mlp_reference"]

PRECISIONS = ("32-true", "bf16-mixed")
SAMPLES, BATCH, EPOCHS, RATE = 64, 8, 2, 0.1
BLOCK, VOCABULARY, STEPS = 12, 64, 8


COMPUTED: set[str] = set()
"""What a linear layer returned while gradients were computed."""


def note_dtype(module: nn.Module, inputs: object, output: Tensor) -> None:
    if torch.is_grad_enabled():
        COMPUTED.add(f"{output.device.type} {str(output.dtype).removeprefix('torch.')}")


# -- the two problems -------------------------------------------------------------------------------------------------


def network() -> nn.Module:
    torch.manual_seed(1)
    made = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 3))
    made[2].register_forward_hook(note_dtype)
    return made


def data() -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(SAMPLES, 8, generator=generator)
    return TensorDataset(inputs, torch.randint(0, 3, (SAMPLES,), generator=generator))


def loader(batch_size: int = BATCH, **options: Any) -> DataLoader[Any]:
    """In their order."""
    return DataLoader(data(), batch_size=batch_size, **options)


def sgd(module: nn.Module) -> torch.optim.Optimizer:
    # With momentum, so that a stale state would show.
    return torch.optim.SGD(module.parameters(), lr=RATE, momentum=0.9)


def final_loss(module: nn.Module) -> float:
    own = network()
    own.load_state_dict({name: tensor.detach().cpu() for name, tensor in module.state_dict().items()})
    inputs, targets = data().tensors
    with torch.no_grad():
        return float(nn.functional.cross_entropy(own.double()(inputs.double()), targets))


def mlp_reference(devices: int, precision: str) -> float:
    """By hand, on the CPU in one process: batches as large as those of all devices together."""
    module = network()
    optimizer = sgd(module)
    for _ in range(EPOCHS):
        for inputs, targets in loader(BATCH * devices):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16-mixed"):
                loss = nn.functional.cross_entropy(module(inputs), targets)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    return final_loss(module)


class Sentences(Dataset[dict[str, Tensor]]):
    """Sequences of tokens."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        tokens = torch.randint(0, VOCABULARY, (BLOCK,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": tokens, "labels": tokens}


def language_model() -> Any:
    """A GPT-2 with random weights, without dropout: the CPU would draw other numbers."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(1)
    rates = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    size = {"vocab_size": VOCABULARY, "n_positions": 16, "n_embd": 32, "n_layer": 2, "n_head": 2}
    made = GPT2LMHeadModel(GPT2Config(**size, **rates, bos_token_id=0, eos_token_id=0))
    made.transformer.h[0].mlp.c_fc.register_forward_hook(note_dtype)
    return made


def language_loss(model: Any) -> float:
    own = language_model()
    own.load_state_dict({name: tensor.detach().cpu() for name, tensor in model.state_dict().items()})
    batch = torch.stack([Sentences()[index]["input_ids"] for index in range(SAMPLES)])
    with torch.no_grad():
        logits = own.double().eval()(input_ids=batch).logits
    return float(nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), batch[:, 1:].flatten()))


def language_options(precision: str, folder: str) -> dict[str, Any]:
    """Arguments of Transformers' and TRL's trainers."""
    return {
        "output_dir": folder,
        "max_steps": STEPS,
        "learning_rate": 1e-3,
        "bf16": precision == "bf16-mixed",
        "report_to": [],
        "save_strategy": "no",
        "logging_strategy": "no",
        "disable_tqdm": True,
        "seed": 1,
        "data_seed": 1,
    }


def language_reference(devices: int, precision: str) -> float:
    """Transformers' own Trainer on the CPU in one process: batches as large as those of all devices together."""
    from transformers import Trainer, TrainingArguments

    with tempfile.TemporaryDirectory() as folder:
        options = language_options(precision, folder)
        arguments = TrainingArguments(use_cpu=True, per_device_train_batch_size=4 * devices, **options)
        model = language_model()
        Trainer(model, arguments, train_dataset=Sentences()).train()
    return language_loss(model)


# -- the front ends ----------------------------------------------------------------------------------------------------


def fit(trainer: Any, module: Any, batches: Any) -> tuple[int, float]:
    """Train with core's or Lightning's ``trainer`` and a module derived from the class ``module``."""

    class Classifier(module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = network()

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return sgd(self.net)

    classifier = Classifier()
    trainer.fit(classifier, batches)
    return trainer.global_rank, final_loss(classifier.net)


QUIET: dict[str, Any] = {
    "max_epochs": EPOCHS,
    **dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False),
}
"""Arguments of both Trainers."""


def loop(model: Any, optimizer: Any, batches: Any, backward: Callable[[Tensor], Any]) -> None:
    for _ in range(EPOCHS):
        for inputs, targets in batches:
            optimizer.zero_grad()
            backward(nn.functional.cross_entropy(model(inputs), targets))
            optimizer.step()


def core_trainer(devices: int, precision: str) -> tuple[int, float]:
    from core import Module, Trainer

    trainer = Trainer(accelerator="acme", devices=devices, precision=precision, **QUIET)
    return fit(trainer, Module, loader())


def core_runtime(devices: int, precision: str) -> tuple[int, float]:
    return _own_loop({"accelerator": "acme", "devices": devices, "precision": precision})


def torch_hal_run(devices: int, precision: str) -> tuple[int, float]:
    """core.Runtime without arguments: ``torch-hal run`` says what runs."""
    return _own_loop({"precision": precision})


def _own_loop(arguments: dict[str, Any]) -> tuple[int, float]:
    from core import Runtime

    with Runtime(**arguments) as runtime:
        assert runtime.device.type == "acme", runtime.device
        net = network()
        model, optimizer, batches = runtime.prepare(net, sgd(net), loader())
        loop(model, optimizer, batches, runtime.backward)
        return runtime.process_index, final_loss(runtime.unwrap_model(model))


def torchrun(devices: int, precision: str) -> tuple[int, float]:
    """A plain loop of torch: device and collective backend are fields of the Plan."""
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    from core.plan import Request, resolve

    plan = resolve(Request.read(accelerator="acme", strategy="ddp", precision=precision))
    rank = plan.parts["cluster_environment"].global_rank
    device = torch.device(plan.devices[plan.parts["cluster_environment"].local_rank])
    torch.accelerator.set_device_index(device)
    if not dist.is_initialized():
        dist.init_process_group(plan.process_group_backend, device_id=device)
    net = network().to(device)
    model = DistributedDataParallel(net, device_ids=[device.index])
    optimizer = sgd(net)
    sampler: DistributedSampler[Any] = DistributedSampler(data(), shuffle=False)
    for _ in range(EPOCHS):
        for inputs, targets in loader(sampler=sampler):
            optimizer.zero_grad()
            with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16-mixed"):
                loss = nn.functional.cross_entropy(model(inputs.to(device)), targets.to(device))
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    if precision == PRECISIONS[-1]:
        dist.barrier()
        dist.destroy_process_group()
    return rank, final_loss(net)


def lightning_trainer(devices: int, precision: str) -> tuple[int, float]:
    from lightning.pytorch import LightningModule
    from torch_hal_lightning import Trainer

    # Lightning's own sampler shuffles.
    options: dict[str, Any] = {**QUIET, "use_distributed_sampler": False}
    trainer = Trainer(accelerator="acme", devices=devices, precision=precision, **options)
    sampler: DistributedSampler[Any] = DistributedSampler(data(), devices, trainer.global_rank, shuffle=False)
    return fit(trainer, LightningModule, loader(sampler=sampler))


def lightning_fabric(devices: int, precision: str) -> tuple[int, float]:
    from torch_hal_lightning import Fabric

    fabric = Fabric(accelerator="acme", devices=devices, precision=precision)
    fabric.launch()
    net = network()
    model, optimizer = fabric.setup(net, sgd(net))
    loop(model, optimizer, fabric.setup_dataloaders(loader()), fabric.backward)
    return fabric.global_rank, final_loss(net)


def accelerate(devices: int, precision: str) -> tuple[int, float]:
    from torch_hal_accelerate import Accelerator, deactivate

    accelerator = Accelerator(accelerator="acme", devices=devices, precision=precision)
    net = network()
    model, optimizer, batches = accelerator.prepare(net, sgd(net), loader())
    loop(model, optimizer, batches, accelerator.backward)
    rank = accelerator.process_index
    deactivate()
    return rank, final_loss(net)


def transformers_trainer(devices: int, precision: str) -> tuple[int, float]:
    from torch_hal_accelerate import activate
    from transformers import Trainer, TrainingArguments

    activate(accelerator="acme", devices=devices)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(per_device_train_batch_size=4, **language_options(precision, folder))
        model = language_model()
        trainer = Trainer(model, arguments, train_dataset=Sentences())
        trainer.train()
    assert (arguments.device.type, arguments.world_size) == ("acme", devices)
    return int(arguments.process_index), language_loss(model)


def trl_sft(devices: int, precision: str) -> tuple[int, float]:
    from datasets import Dataset as Table
    from tokenizers import Tokenizer, models
    from torch_hal_accelerate import activate
    from transformers import PreTrainedTokenizerFast
    from trl import SFTConfig, SFTTrainer

    activate(accelerator="acme", devices=devices)
    vocabulary = {f"t{number}": number for number in range(VOCABULARY)}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(vocabulary, unk_token="t0")), eos_token="t0", pad_token="t0"
    )
    rows = Table.from_list([{"input_ids": Sentences()[index]["input_ids"].tolist()} for index in range(SAMPLES)])
    with tempfile.TemporaryDirectory() as folder:
        arguments = SFTConfig(
            per_device_train_batch_size=4,
            gradient_checkpointing=False,
            dataset_kwargs={"skip_prepare_dataset": True},
            **language_options(precision, folder),
        )
        model = language_model()
        trainer = SFTTrainer(model, arguments, train_dataset=rows, processing_class=tokenizer)
        trainer.train()
    assert (arguments.device.type, arguments.world_size) == ("acme", devices)
    return int(arguments.process_index), language_loss(model)


def _in_ray_train(config: dict[str, Any]) -> None:
    COMPUTED.clear()
    rank, loss = _own_loop({"accelerator": "acme", "strategy": "ddp", "precision": config["precision"]})
    if rank == 0:
        Path(config["out"]).write_text(json.dumps({"loss": loss, "computed": sorted(COMPUTED)}))


def ray_train(devices: int, precision: str) -> tuple[int, float]:
    """Ray's TorchTrainer, with core.Runtime in it; each worker has one card of its node."""
    import ray
    from ray.train import RunConfig
    from ray.train.torch import TorchTrainer
    from torch_hal_ray import scaling_config, torch_config

    if not ray.is_initialized():
        ray.init(
            "local", num_cpus=devices + 1, resources={"acme": devices}, include_dashboard=False, log_to_driver=False
        )
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "result.json")
        TorchTrainer(
            _in_ray_train,
            train_loop_config={"precision": precision, "out": str(out)},
            torch_config=torch_config("acme"),
            scaling_config=scaling_config(devices, "acme"),
            run_config=RunConfig(storage_path=folder, name="run"),
        ).fit()
        result = json.loads(out.read_text())
    COMPUTED.update(result["computed"])
    return 0, result["loss"]


FRONTS: dict[str, Callable[[int, str], tuple[int, float]]] = {
    "core.Trainer": core_trainer,
    "core.Runtime": core_runtime,
    "Lightning Trainer": lightning_trainer,
    "Lightning Fabric": lightning_fabric,
    "Accelerate": accelerate,
    "Transformers Trainer": transformers_trainer,
    "TRL SFTTrainer": trl_sft,
    "Ray Train": ray_train,
    "torchrun, plain loop": torchrun,
    "torch-hal run": torch_hal_run,
}


def main() -> None:
    """Train in each precision, and write the results from process 0."""
    name, devices, out = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    results: dict[str, dict[str, Any]] = {}
    rank = 0
    for precision in PRECISIONS:
        COMPUTED.clear()
        rank, loss = FRONTS[name](devices, precision)
        results[precision] = {"loss": loss, "computed": sorted(COMPUTED)}
    if rank == 0:
        out.write_text(json.dumps(results))


if __name__ == "__main__":
    main()
