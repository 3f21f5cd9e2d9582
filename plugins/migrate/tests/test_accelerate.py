"""``torch-hal migrate`` on scripts written for Accelerate."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch_hal_migrate.__main__ import main

from .test_lightning import examined, report

SCRIPT = """\
import accelerate
from accelerate import Accelerator as Acc, PartialState
from accelerate.logging import get_logger
from accelerate.utils import DataLoaderConfiguration, gather_object, no_such

def evaluate(accelerator, other: Acc, model):
    accelerator.gather_for_metrics(model.loss)
    other.reduce(model)

class Program:
    def __init__(self):
        self.hal = Acc(mixed_precision="fp16", log_with="wandb", dynamo_backend="inductor", no_such=1)
        self.hal.prepare(1)
        self.layer.prepare(1)

def main():
    a = accelerate.Accelerator()
    a.verify_device_map(1)
    a.no_such
    accelerate.utils.set_seed(1)
"""


@pytest.mark.parametrize(
    ("use", "state", "lines"),
    [
        ("Accelerator", "works", [2, 17]),
        ("get_logger", "works", [3]),
        ("DataLoaderConfiguration", "works", [4]),
        ("set_seed", "works", [20]),
        ("accelerator.prepare", "works", [13]),
        ("accelerator.reduce", "works", [8]),
        ("Accelerator(mixed_precision=)", "works", [12]),
        ("accelerator.gather_for_metrics", "differs", [7]),
        ("gather_object", "works", [4]),
        ("Accelerator(log_with=)", "differs", [12]),
        ("Accelerator(dynamo_backend=)", "differs", [12]),
        ("Accelerator(no_such=)", "missing", [12]),
        ("PartialState", "differs", [2]),
        ("no_such", "missing", [4]),
        ("accelerator.verify_device_map", "missing", [18]),
        ("accelerator.no_such", "missing", [19]),
    ],
)
def test_what_a_script_uses_is_found(
    use: str, state: str, lines: list[int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Imports, arguments, and members of what is an Accelerator, or is called so."""
    assert examined(tmp_path, capsys, SCRIPT)[use] == (state, lines)


def test_what_is_not_accelerates_is_not_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Members of other objects, and a script that calls something an accelerator and does not import the library."""
    assert sum(use.startswith("accelerator.") for use in examined(tmp_path, capsys, SCRIPT)) == 5
    assert examined(tmp_path, capsys, "def run(accelerator):\n    accelerator.prepare(1)\n") == {}


def test_a_module_is_no_accelerator(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``torch.accelerator`` is torch's; ``self.accelerator`` and ``trainer.accelerator`` may be one."""
    script = """\
import torch
import torch.nn as nn
from accelerate import Accelerator
device = torch.accelerator.current_accelerator().type
nn.accelerator.no_such
trainer.accelerator.backward(loss)
class Program:
    def run(self): self.accelerator.no_such
"""
    found = examined(tmp_path, capsys, script)
    assert {use for use in found if use.startswith("accelerator.")} == {"accelerator.backward", "accelerator.no_such"}
    assert found["accelerator.no_such"] == ("missing", [8])


def test_the_report_says_what_the_script_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The library, its page, what to import, and the remedy."""
    (tmp_path / "script.py").write_text(SCRIPT)
    assert main([str(tmp_path / "script.py")]) == 1
    text = capsys.readouterr().out
    assert "\n  uses Accelerate; see docs/migrating-from-accelerate.md\n" in text
    assert "Accelerator                    from core import Runtime as Accelerator\n" in text
    assert "from core.data import DataSettings as DataLoaderConfiguration" in text
    assert "any other raises an error: call torch.compile(model, backend=...) before prepare\n" in text
    assert "see docs/logging.md\n" in text
    assert "`" not in text
    _, data = report(capsys, tmp_path / "script.py")
    assert {found["library"] for found in data["files"][0]["findings"]} == {"Accelerate"}


RESUMED = """\
import accelerate
from accelerate import Accelerator
from torch.optim.lr_scheduler import StepLR

accelerator = Accelerator()
warmup = get_cosine_schedule_with_warmup(optimizer, 10 * accelerator.num_processes, 100)
decay = StepLR(optimizer, 1)
if accelerate.__version__ >= "0.16.0":
    accelerator.prepare(model, optimizer)
accelerator.prepare(model, warmup)
accelerator.prepare(decay)
accelerator.prepare(args.lr_scheduler)
Other().prepare(decay)
accelerator.load_state(path)
for step, batch in enumerate(loader):
    if args.resume_from_checkpoint and epoch == first and step < resume_step:
        bar.update(1)
        continue
    if step < 3:
        continue
"""


def test_what_differs_without_a_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Schedulers among what is prepared, lines that skip batches, and comparisons of versions: with what to do."""
    found = examined(tmp_path, capsys, RESUMED)
    assert found["accelerator.prepare_scheduler"] == ("differs", [10, 11, 12])
    assert found["accelerator.load_state"] == ("differs", [14, 16])
    assert found["__version__"] == ("differs", [8])
    (tmp_path / "script.py").write_text(RESUMED)
    main([str(tmp_path / "script.py")])
    text = capsys.readouterr().out
    for said in ("Leave out * num_processes", "remove lines that skip batches", "Remove the comparison"):
        assert said in text
    only_trained = RESUMED.replace("accelerator.load_state(path)", "")
    assert "accelerator.load_state" not in examined(tmp_path, capsys, only_trained)


def test_what_a_wrapper_has(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Members of DistributedDataParallel and engines, of what is prepared; not where the script asks or has its own."""
    script = """\
from accelerate import Accelerator
accelerator = Accelerator()
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
self.policy = accelerator.prepare(policy)
critic = accelerator.prepare_model(critic)
model.module.generate()
self.policy.module.act()
with critic.no_sync(): pass
optimizer.no_sync
model.backward(loss)
own = model.module if hasattr(model, "module") else model
if isinstance(critic, DDP):
    critic.module.act()
other.module
"""
    found = examined(tmp_path, capsys, script)
    assert found["model.module"] == ("missing", [6, 7])
    assert found["model.no_sync"] == ("missing", [8])
    assert found["model.backward"] == ("missing", [10])
    assert main([str(tmp_path / "script.py")]) == 1
    assert "Write runtime.no_sync(model)." in capsys.readouterr().out
    owned = script + "class Model:\n    def no_sync(self):\n        self.module = 1\n"
    assert {"model.module", "model.no_sync"} & {*examined(tmp_path, capsys, owned)} == set()


def test_states_are_reset(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Private names of Accelerate's states, by the class, an object and the Accelerator; not of other objects."""
    script = """\
from accelerate import Accelerator, PartialState
from accelerate.state import AcceleratorState
accelerator = Accelerator()
PartialState._reset_state()
AcceleratorState()._reset_state(True)
accelerator.state._shared_state
other.state._reset_state()
"""
    found = examined(tmp_path, capsys, script)
    assert found["accelerator._reset_state"] == ("differs", [4, 5])
    assert found["accelerator._shared_state"] == ("missing", [6])


def test_an_import_that_the_environment_decides_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Scripts that Accelerate tests take its test data so: the report says when, and exits with 0."""
    script = """\
import os
from accelerate import Accelerator
if os.environ.get("TESTING", None) == "1":
    from accelerate.test_utils.training import mocked_dataloaders
"""
    assert examined(tmp_path, capsys, script)["mocked_dataloaders"] == ("differs", [4])
    assert main([str(tmp_path / "script.py")]) == 0
    assert "Imported only if os.environ.get('TESTING', None) == '1'. It is in" in capsys.readouterr().out
    always = script.replace('os.environ.get("TESTING", None) == "1"', "True")
    assert examined(tmp_path, capsys, always)["mocked_dataloaders"] == ("missing", [4])
