"""Sequence classification with a transformers model: which of two tokens comes first?

Run it as ``python examples/sequence_classification.py --devices 2``. Needs ``pip install transformers``.
"""

from __future__ import annotations

import argparse
import logging
from typing import Any

import torch
from torch.utils.data import DataLoader
from transformers import BertConfig, BertForSequenceClassification, get_scheduler

from core import Runtime as Accelerator
from core import get_logger, seed_everything

logger = get_logger(__name__)

PAD, FIRST, SECOND, VOCABULARY = 0, 1, 2, 32


def make_model() -> Any:
    """A small BERT with random weights."""
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return BertForSequenceClassification(BertConfig(vocab_size=VOCABULARY, num_labels=2, **sizes, **dropout))


def make_data(items: int, seed: int) -> Any:
    """Sequences of 6 to 12 tokens; the label says whether token 1 or token 2 comes first."""
    generator = torch.Generator().manual_seed(seed)
    data = []
    for _ in range(items):
        length = int(torch.randint(6, 13, (), generator=generator))
        tokens = torch.randint(3, VOCABULARY, (length,), generator=generator).tolist()
        label = int(torch.randint(2, (), generator=generator))
        one, other = sorted(torch.randperm(length, generator=generator)[:2].tolist())
        tokens[one], tokens[other] = (SECOND, FIRST) if label else (FIRST, SECOND)
        data.append({"tokens": tokens, "label": label})
    return data


def collate(items: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """A batch, padded to 12 tokens."""
    rows = [torch.tensor(item["tokens"]) for item in items]
    tokens = torch.stack([torch.nn.functional.pad(row, (0, 12 - len(row)), value=PAD) for row in rows])
    labels = torch.tensor([item["label"] for item in items])
    return {"input_ids": tokens, "attention_mask": (tokens != PAD).long(), "labels": labels}


def main() -> None:
    """Train, and evaluate on held-out sequences."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", default="auto")
    parser.add_argument("--mixed-precision", default="no", choices=["no", "fp16", "bf16"])
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=16, help="on all devices together")
    parser.add_argument("--tracker", default=None)
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO)

    accelerator = Accelerator(
        devices=args.devices, mixed_precision=args.mixed_precision, log_with=args.tracker, project_dir="logs"
    )
    logger.info(accelerator.plan)
    seed_everything(0)
    batch_size = args.batch_size // accelerator.num_processes
    order = torch.Generator().manual_seed(0)  # independent of other random draws
    train_loader = DataLoader(make_data(256, 1), batch_size, shuffle=True, generator=order, collate_fn=collate)
    test_loader = DataLoader(make_data(103, 2), batch_size, collate_fn=collate)
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    steps = args.epochs * 256 // args.batch_size
    scheduler = get_scheduler("linear", optimizer, num_warmup_steps=4, num_training_steps=steps)
    model, optimizer, train_loader, test_loader, scheduler = accelerator.prepare(
        model, optimizer, train_loader, test_loader, scheduler
    )
    accelerator.init_trackers("sequence_classification", config=vars(args))

    step = 0
    for epoch in range(args.epochs):
        model.train()
        for batch in train_loader:
            loss = model(**batch).loss
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            mean = accelerator.gather(loss).mean().item()
            accelerator.print(f"step {step} loss {mean!r}")
            accelerator.log({"loss": mean, "lr": scheduler.get_last_lr()[0]}, step=step)
            step += 1

        model.eval()
        right = []
        for batch in test_loader:
            with torch.no_grad():
                predicted = model(**batch).logits.argmax(-1)
            predicted, labels = accelerator.gather_for_metrics((predicted, batch["labels"]))
            right.append(predicted == labels)
        answers = torch.cat(right).float()
        accelerator.print(f"epoch {epoch} accuracy {answers.mean().item():.4f} of {len(answers)}")
        accelerator.log({"accuracy": answers.mean()}, step=step)
    accelerator.end_training()


if __name__ == "__main__":
    main()
