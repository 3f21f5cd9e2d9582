"""Reading a checkpoint of whichever format: of core's, or what other libraries have written.

What others have written are files of torch and safetensors, and directories of such files. It is read as data: code in
a pickle is not run. It becomes a dict of parts, as a checkpoint of ours is one. It has no part ``"core"``, by which the
two are told apart.
"""

from __future__ import annotations

import importlib
import json
import os
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..errors import CheckpointError, ConfigurationError, quoted
from ..utilities.torch_private import uncompiled_names
from .locations import absolute, local_copy, read_manifest
from .manifest import DamagedError, FileRecord, Manifest, NotOursError, open_file, read_small
from .safe_unpickling import load_tensors, refuse_code
from .safetensors_io import SafetensorsCheckpointIO, read_safetensors
from .sharded import ShardedCheckpointIO

if TYPE_CHECKING:
    from torch.distributed.checkpoint.metadata import Metadata

LIGHTNING = "pytorch-lightning_version"
"""The part that each checkpoint of Lightning has, and each of our Trainer's, so that Lightning reads its weights."""

_WEIGHTS_FILE = re.compile(r"(?:model|pytorch_model)(?P<number>_\d+)?\.(?:safetensors|bin)(?:\.index\.json)?")
_STATE_FILE = re.compile(r"((?:optimizer|scheduler|scaler|custom_checkpoint)(?:_\d+)?)\.(?:bin|pt|pkl)")
_ENGINES_FOLDER = re.compile(r"(?:pytorch_model(?:_fsdp)?|optimizer)(?:_\d+)?")
"""Where Accelerate's ``save_state`` lets FSDP and DeepSpeed write."""
_WRAPPERS = re.compile(r"(?:(?<=\.)|^)(?:module|_orig_mod)\.")
"""What ``DistributedDataParallel`` and ``torch.compile`` add to the names of parameters."""


def load_any(
    load: Callable[[], dict[str, Any]],
    path: str | os.PathLike[str],
    weights_only: bool = False,
    *,
    complete: bool = False,
) -> dict[str, Any]:
    """What ``load`` returns for a checkpoint of ours at ``path``, and the parts of what another library wrote there.

    Every process reads a file of others by itself, with tensors on the CPU. Weights alone are the part ``"model"``.

    Args:
        load: Reads a checkpoint of ours.
        path: The path or URL.
        weights_only: Whether, of a directory of others, only the weights are read, as ``"state_dict"`` too.
        complete: Whether it is an error if a directory of others has parts that are not read.

    Raises:
        CheckpointError: From ``load``; or a file of others cannot be read, or holds a class that could run code; or a
            part is not read.
        ConfigurationError: It has safetensors' format, and that package is not installed.
    """
    try:
        return load()
    except NotOursError:
        with local_copy(absolute(path)) as place:
            found = _read_file(place) if place.is_file() else read_directory(place, weights_only)
            if (complete or not found) and place.is_dir():
                _refuse_unread(place)
        if not found:
            raise
    if not is_foreign(found):
        raise DamagedError(
            f"{os.fspath(path)} is damaged, or another CheckpointIO wrote it: it has parts of a torch-hal checkpoint "
            "and no manifest. Set checkpoint_io=... to the one that wrote it."
        )
    if weights_only and isinstance(found.get("model"), dict):
        found.setdefault("state_dict", found["model"])
    return found


def is_foreign(checkpoint: Mapping[str, Any]) -> bool:
    """Whether another library has written it."""
    return "core" not in checkpoint


def is_lightnings(checkpoint: Mapping[str, Any]) -> bool:
    """Whether Lightning's Trainer has written it."""
    return LIGHTNING in checkpoint and is_foreign(checkpoint)


# -- files -----------------------------------------------------------------------------------------------------------


def _read_file(path: Path) -> dict[str, Any]:
    head = _head(path)
    if not head.startswith((b"PK", b"\x80")) and head[8:] != b"{":
        return {}  # no format that is read here
    content = _content(path)
    is_state = isinstance(content, OrderedDict) or all(isinstance(value, Tensor) for value in content.values())
    return {"model": content} if content and is_state else content


def _content(path: Path) -> dict[str, Any]:
    """The dict in a file of torch or safetensors."""
    path, head = path.resolve(), _head(path)  # model hubs keep links to their files
    if head[8:] == b"{":
        return _read_safetensors(path)
    if head.startswith(b"PK"):
        refuse_code(path)
        content = load_tensors(path, "cpu")
    else:
        content = _read_old(path)
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} holds a {type(content).__name__}, not a dict.")
    return content


def _head(path: Path) -> bytes:
    """The first nine bytes, which show the format."""
    try:
        with open_file(path.resolve()) as file:
            return file.read(9)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error


def _read_old(path: Path) -> Any:
    """The content of a file in the format that torch wrote before 1.6."""
    try:
        return torch.load(path, "cpu", weights_only=True)
    except Exception as error:  # whatever torch raises for the content of a file
        raise CheckpointError(f"{path} cannot be read with torch.load(weights_only=True): {error}") from error


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    try:
        importlib.import_module("safetensors.torch")
    except ImportError as error:
        raise ConfigurationError(
            f"{path} has the format of safetensors, which cannot be imported ({error}). Run: pip install safetensors"
        ) from error
    try:
        return read_safetensors(path)
    except Exception as error:  # its own class
        raise CheckpointError(f"{path} is damaged: {error}") from error


# -- directories -----------------------------------------------------------------------------------------------------


def read_directory(directory: Path, weights_only: bool = False) -> dict[str, Any]:
    """The parts in a directory, by file name without suffix: ``model``, ``model_1``, ``optimizer`` and so on.

    Of a directory of ``torch.distributed.checkpoint``, only the weights are read.

    Args:
        directory: Where the files are.
        weights_only: Whether only those of weights are read.

    Returns:
        The parts; none if there are no weights.

    Raises:
        CheckpointError: A file in it cannot be read.
        ConfigurationError: A file has safetensors' format, and that package is not installed.
    """
    from .shard_files import METADATA  # imports torch.distributed.checkpoint

    if (directory / METADATA).is_file():
        return _read_shards(directory)
    files: dict[str, Path] = {}
    # Where the same weights are there twice, those of safetensors count, as in the libraries that write them.
    for name in sorted(os.listdir(directory), key=lambda name: (".safetensors" in name, name)):
        if (found := _WEIGHTS_FILE.fullmatch(name)) is not None:
            files[f"model{found['number'] or ''}"] = directory / name
        elif not weights_only and (found := _STATE_FILE.fullmatch(name)) is not None:
            files[found[1]] = directory / name
    if "model" not in files:
        return {}
    return {part: (_read_in_parts if file.suffix == ".json" else _content)(file) for part, file in files.items()}


def _read_in_parts(index: Path) -> dict[str, Tensor]:
    """The weights in the files that an index lists."""
    try:
        with open_file(index.resolve()) as file:
            text = read_small(file)
        names = sorted(set(json.loads(text)["weight_map"].values()))
        if any(not isinstance(name, str) or os.path.basename(name) != name for name in names):
            raise ValueError("it lists files outside of its folder")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{index} is damaged: {type(error).__name__}: {error}") from error
    weights: dict[str, Tensor] = {}
    for name in names:
        weights |= _content(index.parent / name)
    return weights


def _refuse_unread(directory: Path) -> None:
    """Reject a directory with parts that :func:`read_directory` leaves out.

    Raises:
        CheckpointError: It has some; the message names them.
    """
    from .shard_files import METADATA

    if (directory / METADATA).is_file():
        content, wanted, places = _facts_of_shards(directory)
        unread = {places[key][0] for key in content.state_dict_metadata if key not in wanted}
        advice = "Of torch.distributed.checkpoint, only weights are: give FILE the suffix .safetensors."
    else:
        folders = [name for name in os.listdir(directory) if _ENGINES_FOLDER.fullmatch(name)]
        unread = {name for name in folders if (directory / name).is_dir()}
        shards = sorted(name for name in unread if name[0] == "p" and (directory / name / METADATA).is_file())
        advice = "The engine that wrote them reads them."
        if shards:
            advice += f" For the weights alone, give the path {directory / shards[0]}."
    if unread:
        raise CheckpointError(f"{directory}: its parts {quoted(sorted(unread))} cannot be converted. {advice}")


def _facts_of_shards(directory: Path) -> tuple[Metadata, dict[str, str], dict[str, tuple[str, ...]]]:
    """The content of the shards; the names of the weights by key; and the path of each key."""
    from .shard_files import read_facts

    files = {name: FileRecord((directory / name).stat().st_size, "") for name in os.listdir(directory)}
    content = read_facts(directory, Manifest(files=files, checkpoint_io=""), tensors_only=False)
    # What was saved as nested dicts has its keys joined there, and here each one's path.
    paths = content.planner_data if isinstance(content.planner_data, dict) else {}
    places = {key: tuple(map(str, paths.get(key, (key,)))) for key in content.state_dict_metadata}
    top = next(
        (name for name in ("state_dict", "model") if any(len(at) > 1 and at[0] == name for at in places.values())), None
    )
    wanted = {
        key: ".".join(at if top is None else at[1:])
        for key, at in places.items()
        if hasattr(content.state_dict_metadata[key], "chunks") and (top is None or (len(at) > 1 and at[0] == top))
    }
    return content, wanted, places


def _read_shards(directory: Path) -> dict[str, Any]:
    from .sharded import read_tensors

    content, wanted, _ = _facts_of_shards(directory)
    tensors = read_tensors(directory, content, wanted, lambda size, dtype: torch.empty(size, dtype=dtype))
    return {"model": {wanted[key]: tensor for key, tensor in tensors.items()}}


def weights_for(module: nn.Module, weights: Mapping[str, Any]) -> Mapping[str, Any]:
    """``weights`` from another library, renamed to the parameter names of ``module``.

    Wrappers in a name, of torch.compile and of DistributedDataParallel, may be on either side. Of tied parameters
    safetensors' format holds one; the other is added. What fits no name is left as it is, for the error that names it.
    """
    known = module.state_dict(keep_vars=True)
    if weights.keys() == known.keys():
        return weights
    plain = {_WRAPPERS.sub("", name): name for name in known}
    renamed = {name if name in known else plain.get(_WRAPPERS.sub("", name), name): name for name in weights}
    if len(plain) == len(known) and len(renamed) == len(weights):
        weights = {name: weights[given] for name, given in renamed.items()}
    tied = {id(known[name]): value for name, value in weights.items() if isinstance(known.get(name), Tensor)}
    missing = {name: tied[id(value)] for name, value in known.items() if name not in weights and id(value) in tied}
    return {**weights, **missing}


def compiled_alike(module: nn.Module, state: Any) -> Any:
    """A state of ours for ``module``, renamed if torch.compile wraps modules here and has not there, or vice versa."""
    if not isinstance(state, Mapping):
        return state
    names = dict(module.named_parameters())
    is_compiled, was_compiled = (uncompiled_names(each).keys() != each.keys() for each in (names, state))
    return weights_for(module, state) if is_compiled != was_compiled else state


def load_whole(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The checkpoint at a path or URL, which any CheckpointIO of core has written, with its tensors on the CPU.

    Raises:
        CheckpointError: It is missing, uncommitted or damaged, or a plugin's CheckpointIO has written it.
        ConfigurationError: It has safetensors' format, and that package is not installed.
    """
    try:
        written_by = read_manifest(path).checkpoint_io
    except CheckpointError:
        written_by = ""  # reading it says more
    if written_by == "safetensors":
        return SafetensorsCheckpointIO().load_checkpoint(path)
    return ShardedCheckpointIO().load_checkpoint(path)
