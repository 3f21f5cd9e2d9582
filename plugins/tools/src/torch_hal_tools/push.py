"""The verb ``torch-hal push``: upload a checkpoint's weights to a hub, with a model card."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch_hal.commands.verb_parser import VerbParser
from torch_hal.errors import CheckpointError, CoreError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from torch_hal.checkpoints import Manifest

__all__ = ["main", "write_folder"]

WEIGHTS, CONFIG, CARD = "model.safetensors", "config.json", "README.md"
"""What is uploaded: tensors by name, the hyperparameters, the model card."""


def write_folder(path: str, folder: Path, name: str, license_name: str | None = None) -> None:
    """Write what is uploaded: the weights, the hyperparameters if there are any, and the card.

    Args:
        path: A checkpoint: of torch-hal, in any format, or of Lightning, Accelerate or Transformers.
        folder: An empty directory.
        name: The model's name, for the card.
        license_name: Of the model, such as ``"apache-2.0"``.

    Raises:
        CheckpointError: The checkpoint is missing or damaged, or does not hold the weights of one module.
    """
    from torch_hal.checkpoints import read_manifest
    from torch_hal.convert import read_parts, write_weights

    parts = read_parts(path, weights_only=True)
    write_weights(parts, path, folder / WEIGHTS)
    found = parts.get("hyper_parameters")  # what save_hyperparameters has kept
    hyperparameters = dict(found) if isinstance(found, Mapping) else {}
    if hyperparameters:
        (folder / CONFIG).write_text(json.dumps(hyperparameters, indent=2, default=str) + "\n", "utf-8")
    try:
        manifest = read_manifest(path)
    except CheckpointError:
        manifest = None  # another library's
    (folder / CARD).write_text(_card(folder / WEIGHTS, name, license_name, hyperparameters, manifest), "utf-8")


def _card(
    weights: Path, name: str, license_name: str | None, hyperparameters: Mapping[str, Any], manifest: Manifest | None
) -> str:
    from huggingface_hub import ModelCardData
    from safetensors import safe_open

    with safe_open(weights, "pt") as tensors:
        slices = {key: tensors.get_slice(key) for key in tensors.keys()}  # noqa: SIM118 - it is no dict
        shapes = {key: (each.get_shape(), each.get_dtype()) for key, each in slices.items()}
    elements = sum(_product(shape) for shape, _ in shapes.values())
    dtypes = ", ".join(sorted({dtype for _, dtype in shapes.values()}))
    data = ModelCardData(library_name="torch-hal", license=license_name, tags=["pytorch", "torch-hal"])
    lines = [
        "---",
        data.to_yaml(),
        "---",
        "",
        f"# {name}",
        "",
        f"{elements:,} values in {len(shapes)} tensors, {dtypes}; trained with torch-hal.",
        "",
        "```python",
        "from huggingface_hub import hf_hub_download",
        "from safetensors.torch import load_file",
        "",
        f'module.load_state_dict(load_file(hf_hub_download("{name}", "{WEIGHTS}")))',
        "```",
    ]
    if manifest is not None:
        facts = {
            "epochs": manifest.epoch,
            "steps": manifest.step,
            "strategy": manifest.strategy,
            "processes": manifest.world_size,
            "saved": manifest.saved_at[:19] + " UTC",
            **{f"version of {key}": value for key, value in manifest.versions.items()},
        }
        lines += _table("Training", {key: value for key, value in facts.items() if value is not None})
        lines += _table("Metrics", {key: f"{value:.6g}" for key, value in manifest.metrics.items()})
    lines += _table("Hyperparameters", hyperparameters)
    return "\n".join(lines) + "\n"


def _table(title: str, rows: Mapping[str, Any]) -> list[str]:
    """A heading and a table; nothing without rows."""
    if not rows:
        return []
    cells = [f"| {key} | {str(value).replace('|', '&#124;').replace(chr(10), ' ')} |" for key, value in rows.items()]
    return ["", f"## {title}", "", "| | |", "|---|---|", *cells]


def _product(sizes: Sequence[int]) -> int:
    product = 1
    for size in sizes:
        product *= size
    return product


def main(arguments: Sequence[str] | None = None, program: str = "python -m torch_hal_tools.push") -> int:
    """Upload and print the address; returns the exit code: 0, or 2 if it cannot be done.

    Args:
        arguments: The command line without the program's name; this process's own by default.
        program: How the user called this command, for messages.
    """
    parser = VerbParser(
        program,
        description="Upload the weights of a checkpoint as safetensors to a hub, with its hyperparameters and a model "
        "card of what the checkpoint says of its training. The hub is Hugging Face's, or the one in HF_ENDPOINT; log "
        "in with 'hf auth login', or set HF_TOKEN.",
        epilog=f"example: {program} core_logs/version_0/checkpoints/last.ckpt me/my-model --private",
    )
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help="the checkpoint's file or directory")
    parser.add_argument("repo", metavar="REPO", help="where to, as OWNER/NAME; it is created if it is missing")
    parser.add_argument("--private", action="store_true", help="create it private")
    parser.add_argument("--license", metavar="NAME", help="the model's license, such as apache-2.0, for the card")
    parser.add_argument("--message", metavar="TEXT", help="what the hub shows for this version")
    parser.add_argument("--to-folder", metavar="DIR", help="write the files into DIR, and upload nothing")
    options = parser.read(arguments)
    try:
        from huggingface_hub import HfApi
    except ImportError:
        sys.stderr.write(f"{program}: huggingface_hub is not installed. Run: pip install 'torch-hal-tools[hub]'\n")
        return 2
    try:
        if options.to_folder is not None:
            folder = Path(options.to_folder)
            if folder.exists() and any(folder.iterdir()):
                parser.error(f"--to-folder {options.to_folder!r} is not empty")
            folder.mkdir(parents=True, exist_ok=True)
            write_folder(options.checkpoint, folder, options.repo, options.license)
            sys.stdout.write(f"{folder}\n")
            return 0
        with tempfile.TemporaryDirectory() as directory:
            write_folder(options.checkpoint, Path(directory), options.repo, options.license)
            api = HfApi()
            api.create_repo(options.repo, private=options.private or None, exist_ok=True)
            said = options.message or f"Upload {os.path.basename(os.path.normpath(options.checkpoint))}"
            done = api.upload_folder(repo_id=options.repo, folder_path=directory, commit_message=said)
    except CoreError as error:
        sys.stderr.write(f"{program}: {error}\n")
        return 2
    except Exception as error:  # noqa: BLE001 - the client raises its own, the network's and ValueError
        sys.stderr.write(f"{program}: {options.repo}: {type(error).__name__}: {error}\n")
        return 2
    sys.stdout.write(f"{done.commit_url}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
