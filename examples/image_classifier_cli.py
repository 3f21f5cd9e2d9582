"""The image classifier with a command line.

Run it as ``python examples/image_classifier_cli.py fit --trainer.max_epochs=3 --model.lr=0.01 --data.batch_size=64``.
"""

from __future__ import annotations

import torch
from image_classifier import Classifier, DigitsData

from core.cli import CLI


class DigitsCLI(CLI):
    """Tests after training."""

    def before_instantiate_classes(self) -> None:
        torch.set_num_threads(1)  # more only wait for each other on images this small

    def after_fit(self) -> None:
        """Test, and print the accuracy once."""
        self.trainer.test(self.model, datamodule=self.datamodule)
        if self.trainer.is_global_zero:
            print(f"test accuracy {float(self.trainer.callback_metrics['test_accuracy']):.4f}")


def main() -> None:
    """Run the sub-command."""
    DigitsCLI(Classifier, DigitsData, trainer_defaults={"max_epochs": 8})


if __name__ == "__main__":
    main()
