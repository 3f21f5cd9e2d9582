"""``CORE_CONFIG``: a file with values for what neither an argument nor a variable says."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from python_processes import run_python

from core import Runtime, Trainer
from core.errors import ConfigurationError, CoreError, WrongTypeError
from core.explain import main
from core.plan import VARIABLES, Request

from .backends import plan_of
from .test_request import MACHINES

VALUES = [
    ("accelerator", '"cpu"', "cpu", "torch"),
    ("strategy", '"ddp"', "ddp", "ddp_spawn"),
    ("precision", '"bf16-mixed"', "bf16-mixed", "64-true"),
    ("precision", "64", "64", "16-mixed"),
    ("devices", "3", 3, "2"),
    ("devices", '"0,1"', "0,1", "3"),
    ("devices", "[0, 1]", [0, 1], "3"),
    ("num_nodes", "2", 2, "1"),
]
"""The argument, a value as it stands in the file, the same as it is read, and another one."""


def written(path: Path, text: str) -> dict[str, str]:
    """Write the file; returns the environment variables that name it."""
    path.write_text(text, "utf-8")
    return {"CORE_CONFIG": str(path)}


@pytest.mark.parametrize(("name", "text", "value", "other"), VALUES)
def test_the_file_speaks_where_nothing_else_does(name: str, text: str, value: Any, other: str, tmp_path: Path) -> None:
    """An argument goes before the variable, and that before the file; ``auto`` in one of them says nothing."""
    path = tmp_path / "run.toml"
    environ = {**MACHINES, **written(path, f"{name} = {text}\n")}
    variable = VARIABLES[name]
    for arguments, environment in (({}, {}), ({name: "auto"}, {variable: "auto"})):
        request = Request.read(environ={**environ, **environment}, **arguments)
        assert (getattr(request, name), request.sources[name]) == (value, f"{path}: {name}")
    for arguments, environment, source in (
        ({}, {variable: other}, variable),
        ({name: other}, {}, "argument"),
        ({name: other}, {variable: str(value)}, "argument"),
    ):
        request = Request.read(environ={**environ, **environment}, **arguments)
        assert (str(getattr(request, name)), request.sources[name]) == (other, source)
    plan = plan_of(environ)
    reason = plan.choices()[name].reason if name in plan.choices() else getattr(plan, f"{name}_reason")
    assert reason == f"requested by the file {path}: {name}={value!r}"


def test_keys_are_the_arguments_that_have_a_variable(tmp_path: Path) -> None:
    """Each of them, and ``auto`` for each; an empty file says nothing."""
    everything = written(tmp_path / "auto.toml", "".join(f'{name} = "auto"\n' for name in VARIABLES))
    nothing = written(tmp_path / "empty.toml", "\ufeff# nothing yet\r\n")
    for environ in (everything, nothing):
        assert set(Request.read(environ=environ).sources.values()) == {"default"}


def test_each_front_end_reads_it(front_end: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runtime, Trainer and what ``explain`` does."""
    environ = written(tmp_path / "run.toml", 'accelerator = "cpu"\nprecision = "bf16-mixed"\ndevices = 2\n')
    monkeypatch.setenv("CORE_CONFIG", environ["CORE_CONFIG"])
    made = front_end()
    plan = made.plan if isinstance(made, Runtime | Trainer) else made
    assert (plan.precision.name, plan.world_size, plan.strategy.name) == ("bf16-mixed", 2, "ddp")


def test_the_command_line_of_a_script_reads_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``CLI`` makes the Trainer, whose options overrule the file."""
    pytest.importorskip("jsonargparse")
    from core import Module
    from core.cli import CLI

    monkeypatch.setenv("CORE_CONFIG", written(tmp_path / "c.toml", "devices = 2\nprecision = 64")["CORE_CONFIG"])
    cli = CLI(Module, args=["--trainer.devices=1", "--trainer.accelerator=cpu"], run=False)
    assert (cli.trainer.plan.world_size, cli.trainer.plan.precision.name) == (1, "64-true")


def test_explain_names_the_file_and_the_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``--config`` is the variable for one call; the process's own stay."""
    before = dict(os.environ)
    written(tmp_path / "run.toml", 'strategy = "ddp_sharded"\n')
    assert main(["--config", str(tmp_path / "run.toml"), "--accelerator", "cpu", "--json"]) == 0
    reason = json.loads(capsys.readouterr().out)["strategy"]["reason"]
    assert reason == f"requested by the file {tmp_path / 'run.toml'}: strategy='ddp_sharded'"
    assert main(["--config", str(tmp_path / "no.toml")]) == 2
    assert "there is no file" in capsys.readouterr().err
    assert dict(os.environ) == before


def test_it_counts_as_torch_hal_s_own_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable of another library says nothing where the file says it."""
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "fp16")
    monkeypatch.setenv("CORE_CONFIG", written(tmp_path / "run.toml", "precision = 'bf16-mixed'")["CORE_CONFIG"])
    assert Runtime().plan.precision.name == "bf16-mixed"


@pytest.mark.parametrize(
    ("text", "error", "says"),
    [
        ("device = 2", ConfigurationError, "unknown key 'device'. Did you mean 'devices'? Valid: 'accelerator', "),
        ("debug = 1", ConfigurationError, "unknown key 'debug'"),
        ("import_modules = 'os'", ConfigurationError, "unknown key 'import_modules'"),
        ("[run]\ndevices = 2", ConfigurationError, "unknown key 'run'"),
    ],
)
def test_other_keys_are_refused(text: str, error: type[CoreError], says: str, tmp_path: Path) -> None:
    """Also those of arguments without a variable; the nearest is suggested."""
    environ = written(tmp_path / "run.toml", text)
    with pytest.raises(error) as caught:
        Request.read(environ=environ)
    assert says in str(caught.value)
    assert f"config file {environ['CORE_CONFIG']!r} (environment variable CORE_CONFIG)" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "error", "says"),
    [
        ("devices = ", ConfigurationError, "it cannot be read as TOML: Invalid value"),
        ("devices = 1\ndevices = 2", ConfigurationError, "it cannot be read as TOML: Cannot overwrite"),
        ("devices = " + "[" * 5000, ConfigurationError, "it cannot be read as TOML"),
        ("accelerator = 1", WrongTypeError, "accelerator=1 has the wrong type. Write text in quotes"),
        ("devices = true", WrongTypeError, "devices=True has the wrong type. Write text or a number"),
        ("devices = 1.5", WrongTypeError, "devices=1.5 has the wrong type"),
        ("precision = {a = 1}", WrongTypeError, "precision={'a': 1} has the wrong type"),
        ("num_nodes = [1]", WrongTypeError, "num_nodes=[1] has the wrong type"),
        ("num_nodes = 0", ConfigurationError, "num_nodes (number of machines) must be 'auto' or an integer ≥ 1; got 0"),
        ("strategy = 'dpp'", CoreError, "run.toml: strategy='dpp'"),
        ("devices = 'two'", CoreError, "run.toml: devices='two'"),
        ("devices = [0, true]", CoreError, "run.toml: devices=[0, True]"),
        ("devices = [[0]]", CoreError, "run.toml: devices="),
    ],
)
def test_a_bad_file_is_refused_by_name(text: str, error: type[CoreError], says: str, tmp_path: Path) -> None:
    """The error has the file, the key, what was given and what is valid."""
    environ = written(tmp_path / "run.toml", text)
    with pytest.raises(error) as caught:
        plan_of(environ)
    assert says in str(caught.value)
    assert environ["CORE_CONFIG"] in str(caught.value)


@pytest.mark.parametrize("name", ["no.toml", "", "."])
def test_a_file_that_is_not_there(name: str, tmp_path: Path) -> None:
    """Also a folder; nothing is an error too, for it may be a variable of a shell that is not set."""
    given = str(tmp_path / name) if name else ""
    with pytest.raises(ConfigurationError, match=r"there is no file '/") as caught:
        Request.read(environ={"CORE_CONFIG": given}, devices=1)
    assert f"config file {given!r}" in str(caught.value)


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    """They are no TOML."""
    (tmp_path / "run.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigurationError, match="cannot be read as TOML"):
        Request.read(environ={"CORE_CONFIG": str(tmp_path / "run.toml")})


def test_no_file_is_read_that_is_not_named(tmp_path: Path) -> None:
    """A file of the default name in the working directory changes no run."""
    (tmp_path / "torch-hal.toml").write_text("devices = ")
    code = "from core.plan import Request; print(set(Request.read().sources.values()))"
    assert run_python("-c", code, cwd=tmp_path).stdout == "{'default'}\n"


SCRIPT = """\
import os
import sys

import torch
from torch.utils.data import DataLoader, TensorDataset

from core import Module, Trainer

os.chdir("/")


class Model(Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 1)

    def training_step(self, batch, batch_idx):
        return self.layer(batch[0]).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def on_train_end(self):
        self.trainer.runtime.wait_for_everyone()
        plan = self.trainer.plan
        again = Trainer().plan  # a process that was started reads the same
        said = f"{plan.precision.name} {plan.world_size} {again.precision.name} {again.world_size}"
        os.write(1, f"rank {self.trainer.runtime.process_index}: {said}\\n".encode())


if __name__ == "__main__":
    Trainer(
        max_epochs=1, logger=False, enable_progress_bar=False, enable_checkpointing=False,
        enable_model_summary=False, num_sanity_val_steps=0,
    ).fit(Model(), DataLoader(TensorDataset(torch.randn(8, 3)), batch_size=2))
"""


@pytest.mark.parametrize("strategy", ["ddp", "ddp_spawn", pytest.param("ddp_fork", marks=pytest.mark.slow)])
def test_all_processes_have_the_same(strategy: str, tmp_path: Path) -> None:
    """A relative path begins where the first process did, whatever folder the script is in by then."""
    (tmp_path / "train.py").write_text(SCRIPT)
    written(tmp_path / "run.toml", f'accelerator="cpu"\nstrategy="{strategy}"\ndevices=2\nprecision="bf16-mixed"\n')
    done = run_python("train.py", cwd=tmp_path, env={"CORE_CONFIG": "run.toml"})
    assert sorted(done.stdout.splitlines()) == [f"rank {rank}: bf16-mixed 2 bf16-mixed 2" for rank in (0, 1)]
