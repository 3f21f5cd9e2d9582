"""What users of other libraries write by habit: arguments, imports and loaders that are somewhere else here."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

from core import DataModule, Runtime, Trainer

from .cases import Mistake, Net, check, loader, trainer


def fitting(*arguments: Any, **options: Any) -> Any:
    return lambda: trainer().fit(Net(), *arguments, **options)


def importing(package: str, name: str) -> Any:
    return lambda: exec(f"from {package} import {name}", {})


class NoLoader(DataModule):
    """It defines no ``train_dataloader``."""


MISTAKES: dict[str, Mistake] = {
    "learning rate": Mistake(lambda: Trainer(lr=0.1), "Trainer", "'lr'", "configure_optimizers"),  # type: ignore[call-arg]
    "optimizer of a Trainer": Mistake(
        lambda: Trainer(optimizer=None),  # type: ignore[call-arg]
        "Trainer",
        "'optimizer'",
        "Return it from configure_optimizers",
    ),
    "batch size": Mistake(lambda: Trainer(batch_size=4), "Trainer", "'batch_size'", "Set it in the DataLoader"),  # type: ignore[call-arg]
    "device": Mistake(lambda: Runtime(device="cpu"), "Runtime", "'device'", "Set accelerator= to the hardware"),  # type: ignore[call-arg]
    "schedule of accumulation": Mistake(
        lambda: trainer(accumulate_grad_batches={0: 2}), "accumulate_grad_batches", "{0: 2}", "AccumulationScheduler"
    ),
    "optimizer for a loader": Mistake(
        fitting(loader(), torch.optim.SGD(Net().parameters(), lr=0.1)),
        "val_dataloaders",
        "type SGD",
        "Return optimizers from configure_optimizers",
    ),
    "data set for a loader": Mistake(
        fitting(TensorDataset(torch.ones(3, 3), torch.ones(3, 1))),
        "train_dataloaders",
        "type TensorDataset",
        "DataLoader(dataset, batch_size=...)",
    ),
    "tensor for a loader": Mistake(
        fitting(torch.ones(6, 3)), "train_dataloaders", "a tensor of shape (6, 3)", "DataLoader(TensorDataset("
    ),
    "DataModule without a loader": Mistake(
        fitting(datamodule=NoLoader()), "fit", "NoLoader does not define train_dataloader", "Pass train_dataloaders"
    ),
}

IMPORTS = {
    ("core.strategies", "FSDPStrategy"): "pip install torch-hal-fsdp",
    ("core.strategies", "DeepSpeedStrategy"): "pip install torch-hal-deepspeed",
    ("core.strategies", "ModelParallelStrategy"): "pip install torch-hal-parallel",
    ("core.strategies", "BaguaStrategy"): "from torch_hal_bagua import BaguaStrategy",
    ("core.strategies", "HorovodStrategy"): "pip install torch-hal-horovod",
    ("core.strategies", "DDPSpawnStrategy"): "strategy='ddp_spawn'",
    ("core.strategies", "DataParallelStrategy"): "strategy='dp'",
    ("core.accelerators", "TPUAccelerator"): "pip install torch-hal-xla",
    ("core.strategies", "DPPStrategy"): "Did you mean 'DDPStrategy'?",
    ("core.accelerators", "CUDAAccelerator"): "pip install torch-hal-cuda",
    ("core.environments", "MPIEnvironment"): "'openmpi'",
    ("core.environments", "SLURMEnvironment"): "from core.environments import SlurmEnvironment",
    ("core.precisions", "DoublePrecison"): "Did you mean 'DoublePrecision'?",
    ("core.callbacks", "ModelPruning"): "torch.nn.utils.prune",
    ("core.callbacks", "EarlyStoping"): "Did you mean 'EarlyStopping'?",
    ("core.loggers", "LitLogger"): "use another logger",
    ("core.profilers", "XLAProfiler"): "the vendor's library",
    ("core", "FSDPStrategy"): "pip install torch-hal-fsdp",
    ("core", "LightningModule"): "from core import Module",
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistake(name: str) -> None:
    """The message names what is wrong, what was given, and what to do."""
    check(MISTAKES[name])


@pytest.mark.parametrize(("package", "name"), IMPORTS)
def test_import(package: str, name: str) -> None:
    """An import of what is elsewhere, or misspelt, says what to write; ``hasattr`` is false as always."""
    with pytest.raises(ImportError) as caught:
        importing(package, name)()
    message = str(caught.value)
    assert message.startswith(f"{package} has no {name!r}. ")
    assert IMPORTS[package, name] in message
    module: Any = __import__(package, fromlist=["core"])
    assert not hasattr(module, name)
