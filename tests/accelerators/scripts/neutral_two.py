"""A device that only has a torch backend, with no plugin, on two processes: all devices are what ``auto`` takes."""

import simx  # noqa: F401 - importing the vendor's package is all that is done about it
import torch
from recipe_problem import OPTIONS, Classifier, loader, trained_by_hand

from core import Trainer

trainer = Trainer(precision="bf16-mixed", **OPTIONS)
module = Classifier()
trainer.fit(module, loader())

rank = trainer.runtime.process_index
module.assert_trained(trained_by_hand(2, autocast=torch.bfloat16), f"simx:{rank}", "bfloat16", "simccl")
print(f"rank {rank} of {trainer.runtime.num_processes}: trained on {trainer.runtime.device}", flush=True)
