"""Fine-tuning with LoRA: the language model is frozen, and only the adapters of peft are trained and saved.

Run it as ``python examples/lora.py --devices 2``. Needs ``pip install transformers peft``.
"""

from __future__ import annotations

import argparse
import logging
from typing import Any

import torch
from causal_lm import make_data, make_model
from peft import LoraConfig, get_peft_model
from torch.utils.data import DataLoader

from core import Runtime as Accelerator
from core import get_logger, is_peft_model, seed_everything

logger = get_logger(__name__)


def make_adapted_model() -> Any:
    """The language model of ``causal_lm.py`` with adapters for its attention, which alone need gradients."""
    config = LoraConfig(r=4, lora_alpha=8, lora_dropout=0.0, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    return get_peft_model(make_model(), config)


def main() -> None:
    """Train the adapters, and save them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", default="auto")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=16, help="on all devices together")
    parser.add_argument("--output-dir", default="lora")
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO)

    accelerator = Accelerator(devices=args.devices)
    seed_everything(0)
    model = make_adapted_model()
    frozen = {name: p.detach().clone() for name, p in model.named_parameters() if not p.requires_grad}
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    logger.info("%d of %d parameters are trained", sum(p.numel() for p in trained), model.num_parameters())
    loader = DataLoader(make_data(), args.batch_size // accelerator.num_processes, shuffle=True)
    optimizer = torch.optim.AdamW(trained, lr=1e-2)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

    step = 0
    for _ in range(args.epochs):
        for batch in loader:
            loss = model(**batch).loss
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            accelerator.print(f"step {step} loss {accelerator.gather(loss).mean().item()!r}")
            step += 1

    assert is_peft_model(model)
    for name, parameter in accelerator.unwrap_model(model).named_parameters():
        assert name not in frozen or torch.equal(parameter.cpu(), frozen[name]), name
    accelerator.wait_for_everyone()
    model.save_pretrained(args.output_dir, is_main_process=accelerator.is_main_process)
    accelerator.end_training()


if __name__ == "__main__":
    main()
