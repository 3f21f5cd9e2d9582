"""The same through the Runtime; the strategy's name is the first argument."""

import sys

from problem import EPOCHS, leave, model, optimizer, shuffled
from torch import nn

from core import Runtime, seed_everything


def train(runtime: Runtime) -> None:
    seed_everything(0)
    module = model()
    stepper = optimizer(module)
    ddp, stepper, loader = runtime.prepare(module, stepper, shuffled())
    for _ in range(EPOCHS):
        for inputs, targets in loader:
            stepper.zero_grad()
            runtime.backward(nn.functional.mse_loss(ddp(inputs), targets))
            stepper.step()
    leave(module, runtime.process_index)


if __name__ == "__main__":
    Runtime(accelerator="cpu", strategy=sys.argv[1], devices=2).launch(train)
