"""Stage 3 in spawned processes: what comes back to the process that asked."""

from __future__ import annotations

import json

import torch
from lessons import Lesson, data, trainer
from problem import OUT, WHOLE
from torch_hal_deepspeed import DeepSpeedStrategy


def main() -> None:
    module = Lesson()
    fit = trainer(DeepSpeedStrategy(stage=3, config=WHOLE, start_method="spawn"), 2, "spawned", 1)
    fit.fit(module, data(24, 0), data(8, 1))
    module.eval()
    with torch.inference_mode():
        losses = [torch.nn.functional.cross_entropy(module(inputs), targets) for inputs, targets in data(8, 1)]
    found = float(torch.stack(losses).mean())
    said = {"steps": fit.global_step, "found": found, "logged": float(fit.callback_metrics["loss"])}
    (OUT / "said.json").write_text(json.dumps(said))


if __name__ == "__main__":
    main()
