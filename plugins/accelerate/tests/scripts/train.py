"""A script for Transformers, as it runs anywhere: it knows nothing of torch-hal or of a device."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


class Sentences(Dataset[dict[str, Tensor]]):
    """Sequences of tokens."""

    def __init__(self, first: int = 0, items: int = 64) -> None:
        self.first, self.items = first, items

    def __len__(self) -> int:
        return self.items

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        tokens = torch.randint(0, 64, (12,), generator=torch.Generator().manual_seed(self.first + index))
        return {"input_ids": tokens, "labels": tokens}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--fsdp", type=int, default=0, help="the version; 0 for none")
    given = parser.parse_args()
    torch.manual_seed(0)
    rate = given.dropout
    config = GPT2Config(
        vocab_size=64,
        n_positions=16,
        n_embd=32,
        n_layer=2,
        n_head=2,
        resid_pdrop=rate,
        embd_pdrop=rate,
        attn_pdrop=rate,
        bos_token_id=0,
        eos_token_id=0,
    )
    arguments = TrainingArguments(
        output_dir=str(given.out),
        max_steps=8,
        per_device_train_batch_size=given.batch,
        learning_rate=1e-3,
        logging_steps=1,
        save_steps=4,
        eval_strategy="steps",
        eval_steps=4,
        per_device_eval_batch_size=given.batch,
        report_to=[],
        disable_tqdm=True,
        bf16=given.bf16,
        fsdp=bool(given.fsdp),
        fsdp_config={"version": given.fsdp, "transformer_layer_cls_to_wrap": "GPT2Block"} if given.fsdp else None,
    )
    trainer = Trainer(GPT2LMHeadModel(config), arguments, train_dataset=Sentences(), eval_dataset=Sentences(100, 24))
    trainer.train(resume_from_checkpoint=str(given.out / "checkpoint-4") if given.resume else None)
    parameters = [parameter.detach() for parameter in trainer.model.parameters()]
    whole = [parameter.full_tensor() if isinstance(parameter, DTensor) else parameter for parameter in parameters]
    if trainer.is_world_process_zero():
        weights = [parameter.double().abs().sum().item() for parameter in whole]
        losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
        validated = [entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry]
        said: dict[str, Any] = {"weights": weights, "losses": losses, "validated": validated}
        said |= {"device": str(arguments.device), "world": arguments.world_size}
        (given.out / "said.json").write_text(json.dumps(said))
