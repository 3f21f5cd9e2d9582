"""Processes that are started for a function: what they trained comes back whole."""

from __future__ import annotations

import json

from problem import OUT, Lesson, data, trainer
from torch_hal_fsdp import FSDPStrategy

from torch_hal.strategies import DDPStrategy

if __name__ == "__main__":
    said = {}
    for name, kind in {"ddp": DDPStrategy, "fsdp": FSDPStrategy}.items():
        teacher = trainer(kind(start_method="spawn"), 2, name, epochs=1, enable_checkpointing=False, logger=False)
        lesson = Lesson()
        teacher.fit(lesson, data(16, 1))
        state = {key: (str(tensor.device), tensor.double().sum().item()) for key, tensor in lesson.state_dict().items()}
        said[name] = {"state": state, "types": sorted({type(p).__name__ for p in lesson.parameters()})}
    (OUT / "said.json").write_text(json.dumps(said))
