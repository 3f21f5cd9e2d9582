"""The devices' side: their own copy of weights and of the optimizer's state."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import torch
from stand_ins import device_count
from torch import Tensor, nn

from poptorch import optim
from poptorch.graph import Error

__all__ = ["DeviceSide"]

_in_use: WeakKeyDictionary[DeviceSide, int] = WeakKeyDictionary()
"""How many IPUs each attached model holds."""

_CLASSES = (torch.optim.SGD, torch.optim.AdamW, torch.optim.Adam, torch.optim.RMSprop)


class DeviceSide:
    """What a model has on its devices, from attaching to detaching.

    Args:
        model: Whose weights are copied.
        ipus: How many devices it takes.
        optimizer: The host's, whose settings and, where it hands it out, state are taken.
    """

    def __init__(self, model: nn.Module, ipus: int, optimizer: torch.optim.Optimizer | None) -> None:
        if ipus + sum(_in_use.values()) > device_count("IPU_DEVICES"):
            raise Error(f"Failed to acquire {ipus} IPU(s): {sum(_in_use.values())} are attached to another model.")
        _in_use[self] = ipus
        self._model = model
        self.upload()
        self._optimizer: torch.optim.Optimizer | None = None
        self._host_optimizer = optimizer
        if optimizer is not None:
            self.set_optimizer(optimizer)

    def upload(self) -> None:
        """The host's weights become the device's."""
        self.parameters, self.buffers = (
            {name: tensor.detach().as_subclass(Tensor).clone() for name, tensor in named}
            for named in (self._model.named_parameters(), self._model.named_buffers())
        )

    def download(self) -> None:
        """The device's weights become the host's."""
        host = {**dict(self._model.named_parameters()), **dict(self._model.named_buffers())}
        with torch.inference_mode(False), torch.no_grad():
            for name, tensor in {**self.parameters, **self.buffers}.items():
                host[name].copy_(tensor)

    def set_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Take the settings of ``optimizer``; its state goes on where it is the same kind."""
        groups = [{**group, "params": [self._own(p) for p in group["params"]]} for group in optimizer.param_groups]
        if self._optimizer is None:
            kind = next(kind for kind in _CLASSES if isinstance(optimizer, kind))
            self._optimizer = kind(groups, lr=optimizer.defaults["lr"])
            if isinstance(optimizer, optim.Optimizer) and optimizer.has_state():
                self._optimizer.load_state_dict(
                    {**self._optimizer.state_dict(), "state": optimizer.state_dict()["ipu_state"]}
                )
        else:
            for own, given in zip(self._optimizer.param_groups, groups, strict=True):
                own.update({key: value for key, value in given.items() if key != "params"})
        self._host_optimizer = optimizer

    def step(self, gradients: list[Tensor | None]) -> None:
        """One step of the optimizer."""
        if self._optimizer is None:
            raise Error("no optimizer")
        parameters = list(self.parameters.values())
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        limit = getattr(self._host_optimizer, "max_grad_norm", float("inf"))
        if limit != float("inf"):
            torch.nn.utils.clip_grad_norm_(parameters, limit)
        self._optimizer.step()

    def optimizer_state(self) -> dict[str, Any]:
        """As the library's optimizers hand it out."""
        if self._optimizer is None:
            raise Error("no optimizer")
        state = self._optimizer.state_dict()["state"]
        copied = {
            index: {key: value.clone() if isinstance(value, Tensor) else value for key, value in values.items()}
            for index, values in state.items()
        }
        return {"ipu_state": copied, "ipu_param": {}}

    def release(self) -> None:
        """Give the IPUs back."""
        _in_use.pop(self, None)

    def _own(self, parameter: Tensor) -> Tensor:
        return next(self.parameters[name] for name, host in self._model.named_parameters() if host is parameter)
