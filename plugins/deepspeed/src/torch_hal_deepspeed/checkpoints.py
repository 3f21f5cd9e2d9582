"""The CheckpointIO of DeepSpeed's engine: each process writes its part, and one rename commits the whole."""

from __future__ import annotations

import copyreg
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from enum import Enum
from io import StringIO
from pathlib import Path
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Any

import attrs
import torch
import torch.distributed as dist

from torch_hal.checkpoints import (
    SHARD,
    CheckpointIO,
    FileRecord,
    Manifest,
    TorchCheckpointIO,
    check_arguments,
    check_shared,
    committed_directory,
    locate,
    read_shard,
    refuse_code,
    refuse_unreadable,
    remove_committed,
    run_on_each_rank,
    run_on_rank_zero,
    unlisted_files,
    write_shard,
)
from torch_hal.errors import CheckpointError
from torch_hal.utilities.nested import map_tensors
from torch_hal_deepspeed import drive
from torch_hal_deepspeed.library import PICKLED, load_file, part, quiet

if TYPE_CHECKING:
    from torch_hal_deepspeed.engine import Engine

__all__ = ["DeepSpeedCheckpointIO", "EngineState", "SavedEngine"]


NAME = "deepspeed"
TAG = "engine"
"""The folder in the checkpoint directory that the engine writes."""
_MARK = "deepspeed engine"
_ALIKE = ((0,), (1, 2), (3,))
"""Stages whose optimizer states have the same format."""
_UNREADABLE = (OSError, RuntimeError, ValueError, KeyError, AssertionError, UnpicklingError)
"""What DeepSpeed and torch raise for files with arbitrary content."""


class EngineState:
    """Represents, in a checkpoint, the state that ``engine`` writes by itself.

    Args:
        engine: The engine.
        prefix: The prefix of the module's parameter names in the engine; ``None`` for the optimizer's part.
    """

    def __init__(self, engine: Engine, prefix: str | None = None) -> None:
        self.engine = engine
        self.prefix = prefix

    def described(self) -> dict[str, Any]:
        """The values that are written in its place."""
        return {
            _MARK: TAG,
            "prefix": self.prefix,
            "stage": self.engine.stage,
            "processes": dist.get_world_size(),
        }


@attrs.frozen
class SavedEngine:
    """The state that an engine wrote, in a loaded checkpoint."""

    directory: Path
    prefix: str | None
    stage: int
    processes: int

    @classmethod
    def read(cls, value: Any, directory: Path) -> Any:
        """``value``; if it represents an engine's state, or is a list with one, an object that reads it instead."""
        if type(value) is list:
            return [cls.read(item, directory) for item in value]
        if not isinstance(value, dict) or _MARK not in value:
            return value
        prefix, stage, processes = (value.get(key) for key in ("prefix", "stage", "processes"))
        if not isinstance(prefix, str | None) or stage not in (0, 1, 2, 3) or not isinstance(processes, int):
            raise CheckpointError(f"{directory} is damaged: it describes DeepSpeed's engine as {str(value)[:200]}.")
        return cls(directory, prefix, stage, processes)

    @property
    def is_module(self) -> bool:
        """Whether it represents the module's state, not the optimizer's."""
        return self.prefix is not None

    def weights(self) -> dict[str, Any]:
        """The module's full weights in float32 and its buffers, by the names of its state dict, on the CPU.

        Raises:
            CheckpointError: They cannot be read.
        """
        try:
            if self.stage == 0:
                file = self.directory / TAG / "mp_rank_00_model_states.pt"
                named = load_file(file, "cpu")["module"]
            else:
                read = part("utils.zero_to_fp32").get_fp32_state_dict_from_zero_checkpoint
                with redirect_stdout(StringIO()), redirect_stderr(StringIO()):  # it prints its progress
                    named = read(str(self.directory), TAG)
        except _UNREADABLE as error:
            raise CheckpointError(f"{self.directory}: DeepSpeed cannot read the weights: {error}") from error
        prefix = self.prefix or ""
        own = {name.removeprefix(prefix): value for name, value in named.items() if name.startswith(prefix)}
        whole: dict[str, Any] = map_tensors(_widened, own)
        return whole

    def load_into(self, engine: Engine) -> None:
        """Load everything into ``engine``: weights, optimizer state, counters. All processes call it.

        Raises:
            CheckpointError: The stage that wrote it has another format of state, or DeepSpeed cannot load it.
        """
        valid = next(stages for stages in _ALIKE if self.stage in stages)
        if engine.stage not in valid:
            raise CheckpointError(
                f"{self.directory} was saved with stage={self.stage}. This run has stage={engine.stage}, whose "
                f"optimizer state has another format. Set stage={' or '.join(map(str, valid))}, or load only the "
                "module."
            )
        same = self.stage == engine.stage and self.processes == dist.get_world_size()
        with ExitStack() as stack:
            directory = self.directory if same or self.stage == 0 else stack.enter_context(self._universal())
            run_on_each_rank(lambda: stack.enter_context(drive.mapped(engine.engine)))
            engine.engine._config.load_universal_checkpoint = directory is not self.directory
            try:
                with quiet():
                    loaded = engine.engine.load_checkpoint(str(directory), TAG, load_lr_scheduler_states=False)[0]
            except _UNREADABLE as error:
                raise CheckpointError(f"{self.directory}: DeepSpeed cannot load it: {error}") from error
            finally:
                engine.engine._config.load_universal_checkpoint = False
            run_on_each_rank(lambda: _check_loaded(loaded, self.directory))
        engine.restore_clipping()

    @contextmanager
    def _universal(self) -> Iterator[Path]:
        """The checkpoint in DeepSpeed's universal format, which any number of processes can load."""
        made: list[Path] = []

        def convert() -> str:
            made.append(Path(tempfile.mkdtemp(prefix=".universal-", dir=self.directory.parent)))
            convert_to_universal(self.directory / TAG, made[0] / TAG)
            return str(made[0])

        try:
            yield Path(run_on_rank_zero(convert))
            run_on_each_rank(lambda: None)
        finally:
            for directory in made:
                shutil.rmtree(directory)


def convert_to_universal(source: Path, target: Path) -> None:
    """Let DeepSpeed's converter write ``target``, in a separate process.

    Raises:
        CheckpointError: It failed, for example because the optimizer is not a variant of Adam.
    """
    options = ["--input_folder", str(source), "--output_folder", str(target), "--inject_missing_state"]
    command = [sys.executable, "-m", "deepspeed.checkpoint.ds_to_universal", *options, "--num_extract_workers", "1"]
    environ = {**os.environ, "DS_ACCELERATOR": "cpu"}
    ended = subprocess.run(
        [*command, "--num_merge_workers", "1"], env=environ, capture_output=True, text=True, check=False
    )
    if "KeyError: 'exp_avg" in ended.stderr:
        raise CheckpointError(
            f"{source.parent}: to load with another number of processes or another stage, DeepSpeed can only convert "
            "optimizer states with 'exp_avg' and 'exp_avg_sq', such as Adam's. Use as many processes and the same "
            "stage as the run that saved it, or load only the module."
        )
    if ended.returncode:
        raise CheckpointError(
            f"{source.parent}: DeepSpeed's conversion to the universal format failed (exit code {ended.returncode}): "
            f"{ended.stderr[-2000:]}"
        )


class DeepSpeedCheckpointIO(CheckpointIO):
    """A directory with the engine's files of each process, the rest of the checkpoint, and a manifest.

    All processes must see the directory. Before DeepSpeed unpickles its files, sizes and checksums are verified, and
    files that name other classes than DeepSpeed writes, or that the manifest does not list, are refused.
    """

    name = NAME
    is_collective = True

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | os.PathLike[str], storage_options: Any = None
    ) -> None:
        """See the base class. Every process calls it; it returns or raises when all processes have finished.

        Raises:
            CheckpointError: The checkpoint cannot be written, or holds a value that could not be read back.
            ConfigurationError: ``storage_options`` is not ``None``.
            WrongTypeError: ``checkpoint`` is not a dict.
        """
        check_arguments("DeepSpeed's engine", checkpoint, storage_options)
        engines: dict[int, Engine] = {}
        rest = {key: _described(value, engines) for key, value in checkpoint.items()}
        with ExitStack() as stack:

            def stage() -> str:
                refuse_unreadable(rest)
                return str(stack.enter_context(committed_directory(path)))

            staged = Path(run_on_rank_zero(stage))
            run_on_each_rank(lambda: check_shared(staged))
            for engine in engines.values():
                _write_engine(engine, staged)
            records = run_on_each_rank(lambda: _own_records(staged))
            run_on_rank_zero(lambda: _finish(staged, path, rest, records))
            run_on_rank_zero(stack.close)

    def load_checkpoint(self, path: str | os.PathLike[str], map_location: Any = None) -> dict[str, Any]:
        """See the base class; an engine's state is returned as a :class:`SavedEngine`."""
        loaded: list[dict[str, Any]] = []
        run_on_each_rank(lambda: loaded.append(read_checkpoint(path, map_location)))
        return loaded[0]

    def remove_checkpoint(self, path: str | os.PathLike[str]) -> None:
        """See the base class; a directory that is not a checkpoint is not removed, and links are not followed."""
        remove_committed(path)


def read_checkpoint(path: str | os.PathLike[str], map_location: Any = None) -> dict[str, Any]:
    """The checkpoint at ``path``. In a run of several processes, each verifies a part of the checksums.

    Raises:
        CheckpointError: It is absent, uncommitted or damaged, or another CheckpointIO wrote it.
    """
    directory = locate(path)
    manifest = Manifest.read(directory)
    if manifest.checkpoint_io == "torch":
        return TorchCheckpointIO().load_checkpoint(path, map_location)
    if manifest.checkpoint_io != NAME:
        raise CheckpointError(
            f"{directory} was written with checkpoint_io={manifest.checkpoint_io!r}. Set "
            f"checkpoint_io={manifest.checkpoint_io!r}."
        )
    rank, size = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    own = sorted(manifest.files)[rank::size]
    manifest.verify(directory, {SHARD, *own})
    # The engine unpickles whatever it finds in its folder.
    if unlisted := [name for name in unlisted_files(directory) if Path(name).parts[0] == TAG]:
        raise CheckpointError(
            f"{directory / unlisted[0]} does not belong to the checkpoint: its manifest does not list it, and "
            "DeepSpeed would run code in it. Remove the file if you know what it is; else do not trust the checkpoint."
        )
    for name in own:
        if Path(name).parts[0] == TAG:
            refuse_code(manifest.file(directory, name), PICKLED)
    return {key: SavedEngine.read(value, directory) for key, value in read_shard(directory, map_location).items()}


def _described(value: Any, engines: dict[int, Engine]) -> Any:
    """``value`` with the values that are written in place of engines' states; these engines go into ``engines``."""
    if isinstance(value, EngineState):
        engines[id(value.engine)] = value.engine
        return value.described()
    return [_described(item, engines) for item in value] if type(value) is list else value


def _write_engine(engine: Engine, staged: Path) -> None:
    """Let ``engine`` write its folder. After its barriers, an error in one process is raised in all."""
    writer = engine.engine.checkpoint_engine
    failed: list[Exception] = []
    write_enums_by_value()

    def save(state_dict: Any, path: str) -> None:
        try:
            type(writer).save(writer, _with_own_storage(state_dict), path)
        except (OSError, RuntimeError) as error:
            failed.append(error)

    with ExitStack() as stack:
        run_on_each_rank(lambda: stack.enter_context(drive.mapped(engine.engine)))
        writer.save = save
        try:
            engine.engine.save_checkpoint(str(staged), TAG, save_latest=False)
        finally:
            del writer.save
    run_on_each_rank(lambda: _check_written(failed))


def write_enums_by_value() -> None:
    """Let every Python pickle members of DeepSpeed's Enums alike.

    Python 3.11.0 to 3.11.3 writes ``getattr(the class, its name)``, and a file that calls ``getattr`` is not read.
    """
    settings = part("runtime.zero.config")
    for kind in (settings.OffloadDeviceEnum, settings.ZeroStageEnum):
        copyreg.pickle(kind, _by_value)


def _by_value(member: Enum) -> tuple[type[Enum], tuple[Any]]:
    return type(member), (member.value,)


def _with_own_storage(state_dict: Any) -> Any:
    """``state_dict`` with copies of parameters that are views: saving a view would write the whole storage."""
    names = part("checkpoint.constants")
    optimizer = state_dict.get(names.OPTIMIZER_STATE_DICT)
    stepped = names.SINGLE_PARTITION_OF_FP32_GROUPS
    if optimizer is None or stepped not in optimizer:
        return state_dict
    own = [
        tensor if tensor.nbytes == tensor.untyped_storage().nbytes() else tensor.detach().clone()
        for tensor in optimizer[stepped]
    ]
    return {**state_dict, names.OPTIMIZER_STATE_DICT: {**optimizer, stepped: own}}


def _check_written(failed: list[Exception]) -> None:
    if failed:
        raise CheckpointError(f"DeepSpeed's engine could not write its files: {failed[0]}") from failed[0]


def _check_loaded(loaded: Any, directory: Path) -> None:
    if loaded is None:
        raise CheckpointError(f"{directory}: DeepSpeed found no state to load.")


def _own_records(staged: Path) -> dict[str, FileRecord]:
    """The sizes and checksums of this process's share of the files."""
    files = sorted(file.relative_to(staged).as_posix() for file in staged.rglob("*") if file.is_file())
    rank, size = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    return {name: FileRecord.of(staged / name) for name in files[rank::size]}


def _finish(
    staged: Path, path: str | os.PathLike[str], rest: dict[str, Any], records: list[dict[str, FileRecord]]
) -> None:
    files = {name: record for own in records for name, record in own.items()}
    files[SHARD] = write_shard(rest, staged / SHARD, path)
    Manifest.describe(rest.get("core"), files, NAME).write(staged)


def _widened(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor
