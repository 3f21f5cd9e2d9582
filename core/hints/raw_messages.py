"""What to do about errors of torch and Python that a user's data or step raises, added to them as notes."""

from __future__ import annotations

import re

__all__ = ["SHARED_MEMORY_IS_FULL", "add_remedy"]

SHARED_MEMORY_IS_FULL = (
    "Shared memory (/dev/shm) is full: workers of a loader pass their batches through it. Enlarge it (docker run "
    "--shm-size=8g), use fewer workers or smaller batches, or set num_workers=0."
)
REMEDIES = {
    # While a loader is read.
    "allocate shared memory|out of shared memory": SHARED_MEMORY_IS_FULL,
    "stack expects each tensor to be equal size|each element in list of batch should be of equal size": (
        "The items of a batch have different shapes. Pad them in a collate_fn, for example with "
        "torch.nn.utils.rnn.pad_sequence, or set batch_size=1."
    ),
    "default_collate: batch must contain": (
        "An item has a part that is no tensor, array, number, string, dict or list of these. Convert it in the data "
        "set's __getitem__, or pass a collate_fn."
    ),
    # In a step.
    r"must be Tensor, not (list|tuple|dict)": "Take the tensors out of the batch, as in inputs, targets = batch.",
    r"must be Tensor, not numpy.ndarray|^'numpy.ndarray' object has no attribute": (
        "The loader yields NumPy arrays. A torch DataLoader converts them; otherwise use torch.from_numpy."
    ),
    r"^Torch not compiled with|^Found no NVIDIA driver": (
        "Remove .cuda() and .to('cuda'): batches and modules are moved to the device that is used. For tensors that "
        "you create, use device=self.device, or runtime.device in a loop of your own."
    ),
    r"[Ee]xpected all tensors to be on the same device|^Tensor on device \S+ is not on the expected": (
        "Batches and the module are on the device that is used. Create other tensors there, with device=self.device, "
        "or register them as buffers."
    ),
    r"^expected target dtype|^expected scalar type Long|^result type Float can't be cast": (
        "The loss function needs targets of another dtype: class indices are .long(), for example in cross_entropy; "
        "probabilities and values are .float()."
    ),
    r"must have the same dtype|type .* should be the same$": (
        "The input has another dtype than the parameters. Convert it, for example with .float(); NumPy's arrays are "
        "often float64."
    ),
    r"^Expected tensor for argument .*'indices' to have": "Indices are integers: convert them with .long().",
    r"^index out of range in self": "An index is negative, or not below num_embeddings of an embedding.",
    r"^Target \S+ is out of bounds": (
        "A class index is negative, or not below the number of classes, which is the size of the scores' dimension 1."
    ),
    r"^mat1 and mat2 shapes cannot be multiplied": (
        "The input of a linear layer does not have in_features as its last dimension."
    ),
}
"""What torch or Python says, as a regular expression; and what to do. Tests hold torch to these words."""


def add_remedy(error: BaseException) -> None:
    """Add a note to ``error`` that says what to do, if its message is one of those known here."""
    message = str(error)
    for pattern, remedy in REMEDIES.items():
        if re.search(pattern, message, re.MULTILINE):
            error.add_note(remedy)
            return
