"""Further strategies and checkpoint formats under Lightning's Trainer and Fabric, on two cards."""

from __future__ import annotations

import sys
from typing import Any

import torch
from problem import EPOCHS, OUT, Classifier, by_hand, data, distance, loader, network, part, quiet, say, sgd, weights
from torch import Tensor, nn
from torch_hal_lightning import Fabric, Trainer


class Predicting(Classifier):  # type: ignore[misc]
    """Predicts what the network computes."""

    def predict_step(self, batch: Any, batch_idx: int) -> Tensor:
        predicted: Tensor = self.net(batch[0]).float().cpu()
        return predicted


def trained_by_hand() -> nn.Module:
    """The network after :func:`by_hand`."""
    net: nn.Module = network()
    for parameter, value in zip(net.parameters(), by_hand(2), strict=True):
        parameter.data.copy_(value)
    net.requires_grad_(False)
    return net


if __name__ == "__main__":
    strategy, formats = sys.argv[1], sys.argv[2]
    said: dict[str, Any] = {}
    made: dict[str, Any] = {"accelerator": "acme", "devices": 2, "strategy": strategy, "checkpoint_io": formats}
    trainer = Trainer(**made, **quiet(max_epochs=1))
    module = Classifier()
    trainer.fit(module, part(trainer.global_rank), loader())
    trainer.save_checkpoint(OUT / "first")
    trainer = Trainer(**made, **quiet())
    module = Predicting()
    trainer.fit(module, part(trainer.global_rank), loader(), ckpt_path=str(OUT / "first"))
    said["trainer"] = distance(weights(module.net), by_hand(2))
    expected = trained_by_hand()(data().tensors[0])
    for name, predicting in {"predicted": trainer, "predicted by another": Trainer(**made, **quiet())}.items():
        predicting.validate(module, loader(), verbose=False)
        said[name] = distance([torch.cat(predicting.predict(module, loader()))], [expected])

    fabric = Fabric(**made)
    fabric.launch()
    net = network()
    model, optimizer = fabric.setup(net, sgd(net))
    for _ in range(EPOCHS):
        for inputs, targets in fabric.setup_dataloaders(loader()):
            optimizer.zero_grad()
            fabric.backward(nn.functional.cross_entropy(model(inputs), targets))
            optimizer.step()
    said["fabric"] = distance(weights(net), by_hand(2))
    fabric.save(OUT / "fabric", {"model": model, "optimizer": optimizer})
    trained = weights(net)
    optimizer.step()
    fabric.load(OUT / "fabric", {"model": model, "optimizer": optimizer})
    said["reloaded"] = distance(weights(net), trained)
    name = next(iter(net.state_dict()))
    given = {name: torch.zeros(net.state_dict()[name].shape), "unknown": torch.zeros(1)}
    fabric.strategy.load_module_state_dict(model, given, strict=False)
    said["not strict"] = distance(weights(net), [torch.zeros_like(trained[0]), *trained[1:]])
    say(fabric.global_rank, said)
