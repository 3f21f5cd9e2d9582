"""``CORE_IMPORT`` and ``import_modules``: modules that each process of a run imports before anything else."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from declared import torch_takes_no_backend_in_python
from python_processes import run_python

from core import Runtime
from core.errors import BackendError, ConfigurationError, WrongTypeError
from core.plan import Plan, Request, resolve

SIMULATED = Path(__file__).parents[1] / "simulated"

SCRIPT = """\
import os

import torch
from torch.utils.data import DataLoader, TensorDataset
from core import Module, Trainer


class Model(Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 1)

    def training_step(self, batch, batch_idx):
        return ((self.layer(batch[0]) - batch[1]) ** 2).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def on_train_end(self):
        self.trainer.runtime.wait_for_everyone()
        os.write(1, f"trained on {self.layer.weight.device}\\n".encode())  # a whole line, whatever others print


if __name__ == "__main__":
    import sys

    data = DataLoader(TensorDataset(torch.randn(12, 3), torch.randn(12, 1)), batch_size=4)
    arguments = {} if sys.argv[2] == "variable" else {"import_modules": "simx"}
    Trainer(
        strategy=sys.argv[1], devices=2, max_epochs=1, logger=False, enable_progress_bar=False,
        enable_checkpointing=False, enable_model_summary=False, num_sanity_val_steps=0, **arguments,
    ).fit(Model(), data)
"""


@pytest.mark.parametrize(
    ("strategy", "by"),
    [
        ("ddp", "variable"),
        pytest.param("ddp_spawn", "argument", marks=pytest.mark.slow),
        pytest.param("ddp_spawn", "variable", marks=pytest.mark.exhaustive),
    ],
)
def test_device_type_of_a_package_without_entry_point(strategy: str, by: str, tmp_path: Path) -> None:
    """``auto`` finds the devices of a package that only its import adds to torch, in started processes as well."""
    if (reason := torch_takes_no_backend_in_python()) is not None:
        pytest.skip(reason)
    (tmp_path / "script.py").write_text(SCRIPT)
    env = {"PYTHONPATH": str(SIMULATED), "SIMX_DEVICES": "2"} | ({"CORE_IMPORT": "simx"} if by == "variable" else {})
    printed = run_python(tmp_path / "script.py", strategy, by, cwd=tmp_path, env=env).stdout
    assert sorted(line for line in printed.splitlines() if "trained on" in line) == [
        "trained on simx:0",
        "trained on simx:1",
    ]


def test_argument_goes_before_the_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each module is imported once the Plan is made; an argument replaces the variable; the Plan sends it to ranks."""
    for name in ("one_of_a_vendor", "two_of_a_vendor"):
        (tmp_path / f"{name}.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    environ = {"CORE_IMPORT": " one_of_a_vendor, ", "CORE_ACCELERATOR": "cpu"}
    assert "one_of_a_vendor" not in sys.modules
    plan = resolve(Request.read(environ=environ))
    assert "one_of_a_vendor" in sys.modules
    assert Plan.from_json(plan.for_ranks().to_json()).imports == ("one_of_a_vendor",)
    request = Request.read(environ=environ, import_modules=["two_of_a_vendor"])
    assert resolve(request).imports == ("two_of_a_vendor",)
    assert resolve(Request.read(environ=environ, import_modules=[])).imports == ()


def test_module_that_cannot_be_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the module and carries the cause; what is no module name is refused before."""
    (tmp_path / "broken_vendor.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(BackendError, match=r"'broken_vendor' cannot be imported: ZeroDivisionError") as caught:
        Runtime(accelerator="cpu", import_modules="broken_vendor")
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    with pytest.raises(ConfigurationError, match=r"CORE_IMPORT: 'a b' is not the name of a module"):
        Request.read(environ={"CORE_IMPORT": "a b"})
    with pytest.raises(WrongTypeError, match="import_modules"):
        Request.read(import_modules=[1])
