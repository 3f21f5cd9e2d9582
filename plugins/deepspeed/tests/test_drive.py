"""An optimizer whose state is on a drive."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from core.errors import CheckpointError

from .conftest import run_script, said


def strategy(**options: Any) -> Any:
    from torch_hal_deepspeed import DeepSpeedStrategy

    return DeepSpeedStrategy(stage=3, **options)


def test_its_state_is_not_taken_back() -> None:
    """A checkpoint says that the state is not in it, and whoever would load it is told so, also without a drive."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))])
    saved = strategy(offload_optimizer="nvme").optimizer_state(optimizer)
    for loading in (strategy(offload_optimizer="nvme"), strategy()):
        with pytest.raises(CheckpointError, match=r"optimizer SGD: .*'nvme'.* Valid: .*'cpu'"):
            loading.load_optimizer_state(optimizer, saved)


@pytest.mark.deepspeed
@pytest.mark.timeout(900)  # its operator may have to be compiled first
def test_a_checkpoint_has_the_weights(tmp_path: Path) -> None:
    """Training swaps to the drive; other strategies evaluate what was saved alike; resuming is refused by name."""
    from torch_hal_deepspeed.library import import_deepspeed, part

    import_deepspeed("cpu")
    if not part("ops.op_builder").AsyncIOBuilder().is_compatible(verbose=False):
        pytest.skip("DeepSpeed's operator async_io needs libaio and a C++ compiler")
    run_script(tmp_path, "drive.py", seconds=800)
    found = said(tmp_path / "drive.json")
    assert found["swapped"] > 0
    assert found["losses"][-1] < found["losses"][0]
    assert found["elsewhere"] == pytest.approx(found["evaluated"], rel=1e-6)
    assert "DeepSpeed puts neither weights nor an optimizer's state back on the drive" in found["refused"]
