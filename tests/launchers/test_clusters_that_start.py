"""A cluster environment that starts the processes of a run itself, and again after a failure, as a plugin's does."""

from __future__ import annotations

import io
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from core import Module, Runtime, Trainer, seed_everything
from core.callbacks import ModelCheckpoint
from core.environments import LaunchedEnvironment, RankVariables
from core.errors import ConfigurationError


class Cluster(LaunchedEnvironment):
    """Calls the function in this process; again, if it fails, as often as it may."""

    name = "cluster"
    starts_processes = True
    variables = RankVariables("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    asked: dict[str, Any]

    def __init__(self, environ: Mapping[str, str] | None = None, restarts: int = 0) -> None:
        super().__init__(environ)
        self.restarts = restarts

    @staticmethod
    def detect(environ: Mapping[str, str] | None = None) -> bool:
        return False

    @property
    def creates_processes_externally(self) -> bool:
        return "SINCE" in self.environ

    @property
    def restarted_since(self) -> float | None:
        since, _, attempt = self.environ.get("SINCE", "").partition("/")
        return float(since) if attempt not in ("", "0") else None

    @property
    def global_rank(self) -> int:
        return 0

    @property
    def local_rank(self) -> int:
        return 0

    def validate_settings(self, processes_per_node: int, num_nodes: int) -> None:
        """Any will do."""

    def command(self, processes_per_node: int, num_nodes: int) -> str:
        return "none"

    def run_function(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        *,
        variables: Mapping[str, str],
        accelerator: str,
        strategy: str,
    ) -> Any:
        Cluster.asked = {"accelerator": accelerator, "strategy": strategy, "variables": sorted(variables)}
        since, sent = time.time(), io.BytesIO()
        torch.save((function, args), sent)
        ranks = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
        for attempt in range(self.restarts + 1):
            with socket.create_server(("127.0.0.1", 0)) as server:
                port = str(server.getsockname()[1])
            sent.seek(0)
            function, args = torch.load(sent, weights_only=False)
            try:
                return function(
                    {**variables, **ranks, "MASTER_PORT": port, "SINCE": f"{since}/{attempt}"}, *args, **kwargs
                )
            except ArithmeticError:
                if attempt == self.restarts:
                    raise
        return None


class Failing(Module):
    """Fails once at a step, where ``folder`` notes it."""

    def __init__(self, folder: str, fails_at: int) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 4), nn.Dropout(0.3), nn.Linear(4, 1))
        self.folder, self.fails_at = folder, fails_at

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        note = Path(self.folder, "failed")
        if self.global_step == self.fails_at and not note.exists():
            note.touch()
            raise ArithmeticError("lost")
        return self.net(batch).square().mean()

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=0.1)


def fit(folder: Path, saved: Path, fails_at: int = -1, seed: int = 5, **arguments: Any) -> list[float]:
    seed_everything(seed)
    module = Failing(str(folder), fails_at)
    items: Any = torch.randn(24, 2)
    data: Any = torch.utils.data.DataLoader(items, batch_size=2, shuffle=True)
    saving = ModelCheckpoint(saved, every_n_train_steps=2, save_top_k=-1)
    trainer = Trainer(accelerator="cpu", strategy="ddp", devices=1, max_epochs=2, callbacks=saving, **arguments)
    trainer.fit(module, data)
    return torch.cat([parameter.detach().flatten() for parameter in module.parameters()]).tolist()


@pytest.mark.parametrize("fails_at", [1, 7, 15])
def test_a_fit_that_is_started_again(tmp_path: Path, fails_at: int) -> None:
    """It goes on from its own last checkpoint, and not from an earlier run's; the result is the same."""
    quiet: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    fit(tmp_path, tmp_path / "saved", seed=6, **quiet)
    found = fit(tmp_path, tmp_path / "saved", fails_at, cluster_environment=Cluster({}, restarts=1), **quiet)
    assert (tmp_path / "failed").exists()
    assert found == fit(tmp_path, tmp_path / "other", **quiet)


def test_the_environment_is_asked(tmp_path: Path) -> None:
    """It gets the names that it needs for placement and messages, and the Plan says who starts the processes."""
    runtime = Runtime(accelerator="cpu", strategy="ddp", devices=1, cluster_environment=Cluster({}))
    assert runtime.plan.launcher == "cluster"
    assert runtime.launch(lambda_free) == 1
    assert Cluster.asked == {"accelerator": "cpu", "strategy": "ddp", "variables": ["CORE_LAUNCHED_PLAN"]}


def lambda_free(runtime: Runtime) -> int:
    return runtime.num_processes


def test_a_strategy_that_starts_nothing() -> None:
    """It is refused by name."""
    with pytest.raises(ConfigurationError, match=r"strategy='single_device' cannot run in processes that .*'cluster'"):
        Runtime(accelerator="cpu", devices=1, cluster_environment=Cluster({}))
