"""Train on two cards in processes that a function is run in, started from one that works on a card itself."""

from __future__ import annotations

import sys
from pathlib import Path

from torch_hal_hpu import HPUParallelStrategy

from torch_hal import Runtime, Trainer

sys.path.insert(0, str(Path(__file__).parents[4] / "tests" / "helpers"))
sys.path.insert(0, str(Path(__file__).parents[2]))
from device_problem import OPTIONS, loader

from tests.scripts.two import Compared

if __name__ == "__main__":
    Runtime(accelerator="hpu", devices=[1]).launch()
    strategy = HPUParallelStrategy(start_method="spawn", gradient_as_bucket_view=True)
    Trainer(accelerator="hpu", devices=2, strategy=strategy, **OPTIONS).fit(Compared(), loader())
