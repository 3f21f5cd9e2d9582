"""What is asked of every checkpoint_io."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from core import CheckpointIO
from core.errors import CheckpointError, CoreError
from core.testing.fresh import ask
from core.testing.suites.base import Suite, reference
from core.testing.suites.importing import ImportTests
from core.testing.suites.metadata import MetadataTests
from core.testing.tiers import tier

__all__ = ["CheckpointIOSuite"]

_DTYPES = [
    *("float64", "float32", "float16", "bfloat16", "complex64", "complex128", "bool"),
    *("uint8", "int8", "int16", "int32", "int64", "float8_e4m3fn", "float8_e5m2"),
]

_VALUES: dict[str, Any] = {
    "words": {"empty": "", "letters": "äß∂ \n", "bytes": b"\x00\xff"},
    "numbers": [0, -1, 2**62, 0.1, -0.0, float("inf"), 1e-300, True, False, None, 2j],
    "nested": {"a": [{"b": ({"c": [1, (2, 3)]},)}], "empty": [{}, [], ()]},
    "keys": {1: "one", "1": "text", (1, "a"): "tuple"},
    "ordered": OrderedDict([("z", 1), ("a", 2)]),
}

_SHAPES: dict[str, Callable[[], Tensor]] = {
    "scalar": lambda: torch.tensor(1.5),
    "empty": lambda: torch.empty(0, 3),
    "transposed": lambda: torch.arange(6.0).reshape(2, 3).t(),
    "part of another": lambda: torch.arange(100.0)[10:20:2],
    "expanded": lambda: torch.tensor([1.0]).expand(4),
}

_ran: list[str] = []


def _run(word: str) -> str:
    """What no loading may call."""
    _ran.append(word)
    return word


class _Code:
    """An object whose pickle calls a function when it is read."""

    def __reduce__(self) -> Any:
        return _run, ("called",)


class CheckpointIOSuite(MetadataTests, ImportTests, Suite):
    """The conformance suite of checkpoint IOs; all of it on the CPU."""

    kind: ClassVar[str] = "checkpoint_io"

    @pytest.fixture
    def io(self, backend: Any) -> Iterator[CheckpointIO]:
        """A new instance, torn down in the end."""
        made: CheckpointIO = backend.create()
        yield made
        made.teardown()

    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        """Where a checkpoint may go; nothing else is in its folder."""
        folder = tmp_path / "folder"
        folder.mkdir()
        return folder / "checkpoint"

    @pytest.fixture
    def round_trip(self, io: CheckpointIO, path: Path) -> Callable[..., dict[str, Any]]:
        """Saves a checkpoint and reads it."""

        def round_trip(checkpoint: dict[str, Any], **options: Any) -> dict[str, Any]:
            io.save_checkpoint(checkpoint, path)
            io.teardown()
            return io.load_checkpoint(path, **options)

        return round_trip

    # -- what comes back -----------------------------------------------------------------------------------------

    @tier("T1")
    @pytest.mark.parametrize("dtype", _DTYPES)
    def test_tensors_come_back(self, round_trip: Callable[..., Any], dtype: str) -> None:
        """A tensor comes back with its dtype, its shape and every bit."""
        bits = torch.randint(0, 2, (2, 64), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)
        kind = getattr(torch, dtype)
        tensor = bits.to(kind) if dtype == "bool" else (bits * 37).view(kind)
        found = round_trip({"tensor": tensor})["tensor"]
        _check_tensor(dtype, found, tensor)

    @tier("T1")
    @pytest.mark.parametrize("shape", _SHAPES)
    def test_shapes_come_back(self, round_trip: Callable[..., Any], shape: str) -> None:
        """A tensor comes back in its shape, however it lies in memory."""
        tensor = _SHAPES[shape]()
        _check_tensor(shape, round_trip({"tensor": tensor})["tensor"], tensor)

    @tier("T1")
    @pytest.mark.parametrize("what", _VALUES)
    def test_plain_values_come_back(self, round_trip: Callable[..., Any], what: str) -> None:
        """Words, numbers and containers, however nested, come back equal and of the same type."""
        found = round_trip({what: _VALUES[what]})
        assert found == {what: _VALUES[what]}, f"{what}: {found[what]!r} comes back. Expected: {_VALUES[what]!r}"
        assert repr(found[what]) == repr(_VALUES[what]), (
            f"{what}: {found[what]!r} comes back. Expected: {_VALUES[what]!r}"
        )

    @tier("T1")
    def test_a_run_comes_back(self, round_trip: Callable[..., Any]) -> None:
        """The states of a module and an optimizer come back so that both take them."""
        net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
        optimizer = torch.optim.AdamW(net.parameters())
        net(torch.randn(5, 3)).sum().backward()
        optimizer.step()
        found = round_trip({"net": net.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3})
        for name, tensor in net.state_dict().items():
            _check_tensor(name, found["net"][name], tensor)
        other = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
        other.load_state_dict(found["net"])
        torch.optim.AdamW(other.parameters()).load_state_dict(found["optimizer"])

    @tier("T1")
    def test_saving_leaves_the_checkpoint_as_it_was(self, round_trip: Callable[..., Any]) -> None:
        """What is saved is not changed by it."""
        inner = {"tensor": torch.arange(3.0, requires_grad=True), "list": [1]}
        checkpoint = {"inner": inner}
        round_trip(checkpoint)
        assert [*checkpoint] == ["inner"], f"saving leaves the keys {[*checkpoint]}. Expected: ['inner']"
        assert checkpoint["inner"] is inner, "saving replaces a part of the dict that it is given"
        assert inner["tensor"].tolist() == [0.0, 1.0, 2.0], "saving changes a tensor"  # type: ignore[attr-defined]
        assert inner["list"] == [1], "saving changes a list"

    @tier("T1")
    def test_later_changes_are_not_saved(self, io: CheckpointIO, path: Path) -> None:
        """What changes after ``save_checkpoint`` has returned is not in the checkpoint, whenever it is written."""
        tensor, values = torch.zeros(2**18), [0]
        io.save_checkpoint({"tensor": tensor, "values": values}, path)
        tensor.fill_(1.0)
        values.append(1)
        io.teardown()
        found = io.load_checkpoint(path)
        assert not found["tensor"].any(), "a change to a tensor after save_checkpoint() is in the checkpoint"
        assert found["values"] == [0], f"after save_checkpoint() a list is changed, and {found['values']} comes back"

    @tier("T1")
    @pytest.mark.parametrize("spelling", ["str", "PathLike"])
    def test_paths_of_either_kind(self, io: CheckpointIO, path: Path, spelling: str) -> None:
        """Every method takes a path as a string and as an object; missing folders above it are made."""
        below = path / "a folder" / "ünïcode"
        given: Any = str(below) if spelling == "str" else below
        io.save_checkpoint({"a": 1}, given)
        io.teardown()
        assert io.load_checkpoint(given) == {"a": 1}
        io.remove_checkpoint(given)

    # -- where it goes -------------------------------------------------------------------------------------------

    @tier("T1")
    @pytest.mark.parametrize("location", ["cpu", torch.device("cpu"), "meta"], ids=str)
    def test_map_location_is_heeded(self, round_trip: Callable[..., Any], location: Any) -> None:
        """Tensors are read onto the device that ``map_location`` names."""
        found = round_trip({"a": {"b": [torch.ones(2, 3)]}}, map_location=location)["a"]["b"][0]
        assert found.device.type == str(location), f"map_location={location!r} gives a tensor on {found.device}"
        assert found.shape == (2, 3), (
            f"map_location={location!r} gives the shape {tuple(found.shape)}. Expected: (2, 3)"
        )

    @tier("T1")
    def test_unknown_storage_options(self, io: CheckpointIO, path: Path) -> None:
        """``storage_options`` that it does not know are taken, or refused by a CoreError."""
        try:
            io.save_checkpoint({"a": 1}, path, storage_options={"no such option of any storage": 1})
            io.teardown()
        except CoreError:
            return
        except Exception as error:
            raise AssertionError(
                f"storage_options raises {error!r}. Expected: none, or core.errors.CoreError"
            ) from error
        assert io.load_checkpoint(path) == {"a": 1}

    # -- one after another ---------------------------------------------------------------------------------------

    @tier("T1")
    def test_a_later_checkpoint_takes_its_place(self, io: CheckpointIO, path: Path) -> None:
        """Saving to the same path leaves the later checkpoint alone, and nothing of the one before."""
        io.save_checkpoint({"first": torch.ones(1000), "both": 1}, path)
        io.save_checkpoint({"second": torch.zeros(3), "both": 2}, path)
        io.teardown()
        found = io.load_checkpoint(path)
        assert [*found] == ["second", "both"], f"the later checkpoint has {[*found]}. Expected: ['second', 'both']"
        assert found["both"] == 2, f"the later checkpoint has the value {found['both']}. Expected: 2"

    @tier("T1")
    def test_two_checkpoints_in_one_folder(self, io: CheckpointIO, path: Path) -> None:
        """Checkpoints at two paths do not touch each other; removing one leaves the other."""
        other = path.with_name("other")
        io.save_checkpoint({"a": 1}, path)
        io.save_checkpoint({"a": 2}, other)
        io.teardown()
        io.remove_checkpoint(path)
        assert io.load_checkpoint(other) == {"a": 2}, "removing a checkpoint changes the one beside it"

    @tier("T1")
    def test_removing_leaves_nothing(self, io: CheckpointIO, path: Path) -> None:
        """After ``remove_checkpoint`` the checkpoint is absent, and its folder is empty."""
        for step in range(2):
            io.save_checkpoint({"step": step}, path)
        io.teardown()
        io.remove_checkpoint(path)
        left = sorted(os.listdir(path.parent))
        assert not left, f"after remove_checkpoint() the folder has {left}. Expected: nothing"
        _check_absent(io, path, "a removed checkpoint")

    @tier("T1")
    def test_removing_what_is_not_there(self, io: CheckpointIO, path: Path) -> None:
        """``remove_checkpoint`` of what is not there, or no longer, is no error."""
        io.remove_checkpoint(path)
        io.save_checkpoint({"a": 1}, path)
        io.teardown()
        io.remove_checkpoint(path)
        io.remove_checkpoint(path)

    @tier("T1")
    def test_teardown_can_be_called_twice(self, io: CheckpointIO, path: Path) -> None:
        """``teardown`` can be called again, and with nothing to finish."""
        io.teardown()
        io.save_checkpoint({"a": 1}, path)
        io.teardown()
        io.teardown()
        assert io.load_checkpoint(path) == {"a": 1}

    # -- what is refused -----------------------------------------------------------------------------------------

    @tier("T1")
    @pytest.mark.parametrize("there", ["nothing", "an empty file", "an empty folder", "another file"])
    def test_what_is_no_checkpoint_is_refused(self, io: CheckpointIO, path: Path, there: str) -> None:
        """``load_checkpoint`` where no checkpoint is, is a CheckpointError."""
        if there == "an empty folder":
            path.mkdir()
        elif there != "nothing":
            path.write_bytes(b"" if there == "an empty file" else b"PK\x03\x04 no checkpoint" * 100)
        _check_absent(io, path, there)

    @tier("T1")
    @pytest.mark.parametrize("damage", ["cut off", "a byte changed", "emptied", "missing"])
    def test_a_damaged_checkpoint_is_refused(self, io: CheckpointIO, path: Path, damage: str) -> None:
        """A checkpoint of which any file is cut off, changed, emptied or missing is a CheckpointError."""
        for place, file in _one_for_each_file(io, path):
            _damage(file, damage)
            _check_absent(io, place, f"a checkpoint with {file.name} {damage}")

    @tier("T1")
    def test_objects_of_a_class_are_refused(self, io: CheckpointIO, path: Path) -> None:
        """An object that only code can read back is refused by a CheckpointError, at the latest when it is read."""
        _ran.clear()
        try:
            io.save_checkpoint({"object": _Code()}, path)
            io.teardown()
            io.load_checkpoint(path)
        except CheckpointError:
            assert not _ran, "reading a checkpoint calls a function that its pickle names. Expected: weights_only=True"
            return
        except Exception as error:
            raise AssertionError(f"an object of a class raises {error!r}. Expected: CheckpointError") from error
        pytest.fail(
            "an object whose pickle calls a function is read. Expected: CheckpointError, as of weights_only=True"
        )

    @tier("T1")
    def test_planted_code_is_not_run(self, io: CheckpointIO, path: Path) -> None:
        """Where a checkpoint's files are replaced by a pickle with code, that is refused, and the code is not run."""
        for place, file in _one_for_each_file(io, path):
            torch.save({"object": _Code()}, file)
            _ran.clear()
            _check_absent(io, place, f"a checkpoint with code in {file.name}")
            assert not _ran, f"reading runs the code that was planted in {file.name}. Expected: weights_only=True"

    @tier("T1")
    def test_a_path_that_cannot_be_written(self, io: CheckpointIO, path: Path) -> None:
        """Saving where nothing can be written is a CheckpointError."""
        path.write_text("a file")
        try:
            io.save_checkpoint({"a": 1}, path / "below")
            io.teardown()
        except CheckpointError:
            return
        except Exception as error:
            raise AssertionError(
                f"saving below a file raises {error!r}. Expected: core.errors.CheckpointError"
            ) from error
        pytest.fail("saving below a file raises nothing. Expected: core.errors.CheckpointError")

    # -- all or nothing ------------------------------------------------------------------------------------------

    @tier("T1")
    @pytest.mark.parametrize("when", ["at each step", "in time"])
    def test_a_killed_save_leaves_a_whole_checkpoint(self, backend: Any, tmp_path: Path, when: str) -> None:
        """Whenever a saving process is killed, the old checkpoint is there or the new one, and the next is saved."""
        question = f"core.testing.checkpoint_questions:killed_{when.replace(' ', '_')}"
        kills = ask(question, reference(backend), str(tmp_path / "killed"), limit=240).value
        assert kills, "a save does nothing with files that could be interrupted"
        for moment, found, next_found in kills:
            assert found in ("old", "new"), (
                f"a save over an older checkpoint is killed ({moment}); what is read then: {found}. "
                "Expected: the old checkpoint or the new one"
            )
            assert next_found == "newest", (
                f"a save is killed ({moment}); what is read after the next save: {next_found}. Expected: that one"
            )

    @tier("T1")
    @pytest.mark.parametrize("before", ["over another", "at a new path"])
    def test_a_failed_save_leaves_what_was_there(self, backend: Any, tmp_path: Path, before: str) -> None:
        """A save that runs out of space is a CheckpointError, and leaves what was there: the old one, or nothing."""
        question = "core.testing.checkpoint_questions:out_of_space"
        answer = ask(question, reference(backend), str(tmp_path / "full"), before == "at a new path", limit=60).value
        assert answer["raised"].startswith("CheckpointError"), (
            f"a save that runs out of space gives {answer['raised']!r}. Expected: core.errors.CheckpointError"
        )
        expected = "old" if before == "over another" else "CheckpointError"
        assert answer["read"].startswith(expected), (
            f"after a save that ran out of space, what is read {before} is {answer['read']}. Expected: {expected}"
        )


def _one_for_each_file(io: CheckpointIO, path: Path) -> Iterator[tuple[Path, Path]]:
    """As many checkpoints as one has files, each with another of its files."""
    number = 0
    while True:
        place = path.with_name(f"{path.name}-{number}")
        io.save_checkpoint({"tensor": torch.arange(5000.0), "word": "w"}, place)
        io.teardown()
        files = [place] if place.is_file() else sorted(file for file in place.rglob("*") if file.is_file())
        assert files, f"after save_checkpoint() there is no file at {place.name}"
        if number >= len(files):
            return
        yield place, files[number]
        number += 1


def _damage(file: Path, damage: str) -> None:
    content = file.read_bytes()
    if damage == "missing":
        file.unlink()
    elif damage == "emptied":
        file.write_bytes(b"")
    elif damage == "cut off":
        file.write_bytes(content[: len(content) // 2])
    else:
        middle = len(content) // 2
        file.write_bytes(content[:middle] + bytes([content[middle] ^ 0xFF]) + content[middle + 1 :])


def _check_absent(io: CheckpointIO, path: Path, what: str) -> None:
    try:
        found = io.load_checkpoint(path)
    except CheckpointError:
        return
    except Exception as error:
        raise AssertionError(f"load_checkpoint() of {what} raises {error!r}. Expected: CheckpointError") from error
    raise AssertionError(f"load_checkpoint() of {what} gives {str(found)[:200]}. Expected: core.errors.CheckpointError")


def _check_tensor(what: str, found: Any, expected: Tensor) -> None:
    assert isinstance(found, Tensor), f"{what}: a {type(found).__name__} comes back. Expected: a tensor"
    kinds = (found.dtype, found.shape), (expected.dtype, expected.shape)
    assert kinds[0] == kinds[1], f"{what}: (dtype, shape) {kinds[0]} come back. Expected: {kinds[1]}"
    same = _bytes(found) == _bytes(expected)
    assert same, f"{what}: other values come back. Expected: the same, bit for bit"


def _bytes(tensor: Tensor) -> list[int]:
    flat: list[int] = tensor.detach().cpu().contiguous().flatten().view(torch.uint8).tolist()
    return flat
