"""The suite of checkpoint IOs."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from torch_hal import CheckpointIO
from torch_hal.errors import CheckpointError, CoreError
from torch_hal_devkit.fresh import ask
from torch_hal_devkit.marks import tier
from torch_hal_devkit.suites.base import Suite, reference
from torch_hal_devkit.suites.checkpoint_algebra import CheckpointAlgebraTests
from torch_hal_devkit.suites.checkpoint_values import CheckpointValueTests
from torch_hal_devkit.suites.importing import ImportTests
from torch_hal_devkit.suites.metadata import MetadataTests

__all__ = ["CheckpointIOSuite"]

_DTYPES = [
    *("float64", "float32", "float16", "bfloat16", "complex64", "complex128", "bool"),
    *("uint8", "int8", "int16", "int32", "int64", "float8_e4m3fn", "float8_e5m2"),
]

_VALUES: dict[str, Any] = {
    "strings": {"empty": "", "letters": "äß∂ \n", "bytes": b"\x00\xff"},
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


def _run(text: str) -> str:
    """A function that loading must not call."""
    _ran.append(text)
    return text


class _Code:
    """An object whose pickle calls a function when it is loaded."""

    def __reduce__(self) -> Any:
        return _run, ("called",)


class CheckpointIOSuite(MetadataTests, ImportTests, CheckpointValueTests, CheckpointAlgebraTests, Suite):
    """The conformance suite of checkpoint IOs; all of it on the CPU."""

    kind: ClassVar[str] = "checkpoint_io"

    @pytest.fixture
    def io(self, backend: Any) -> Iterator[CheckpointIO]:
        """A new instance."""
        made: CheckpointIO = backend.create()
        yield made
        made.teardown()

    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        """A path for a checkpoint, in an empty folder."""
        folder = tmp_path / "folder"
        folder.mkdir()
        return folder / "checkpoint"

    @pytest.fixture
    def round_trip(self, io: CheckpointIO, path: Path) -> Callable[..., dict[str, Any]]:
        """Saves a checkpoint and loads it."""

        def round_trip(checkpoint: dict[str, Any], **options: Any) -> dict[str, Any]:
            io.save_checkpoint(checkpoint, path)
            io.teardown()
            return io.load_checkpoint(path, **options)

        return round_trip

    # -- round trips ---------------------------------------------------------------------------------------------

    @tier("T1")
    @pytest.mark.parametrize("dtype", _DTYPES)
    def test_tensors_come_back(self, round_trip: Callable[..., Any], dtype: str) -> None:
        """A tensor is loaded with its dtype, its shape and every bit."""
        bits = torch.randint(0, 2, (2, 64), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)
        kind = getattr(torch, dtype)
        tensor = bits.to(kind) if dtype == "bool" else (bits * 37).view(kind)
        found = round_trip({"tensor": tensor})["tensor"]
        _check_tensor(dtype, found, tensor)

    @tier("T1")
    @pytest.mark.parametrize("shape", _SHAPES)
    def test_shapes_come_back(self, round_trip: Callable[..., Any], shape: str) -> None:
        """A tensor is loaded with its shape, whatever its layout in memory."""
        tensor = _SHAPES[shape]()
        _check_tensor(shape, round_trip({"tensor": tensor})["tensor"], tensor)

    @tier("T1")
    @pytest.mark.parametrize("what", _VALUES)
    def test_plain_values_come_back(self, round_trip: Callable[..., Any], what: str) -> None:
        """Strings, numbers and nested containers are loaded equal and with the same type."""
        found = round_trip({what: _VALUES[what]})
        assert found == {what: _VALUES[what]}, f"{what}: loaded {found[what]!r}. Expected: {_VALUES[what]!r}"
        assert repr(found[what]) == repr(_VALUES[what]), f"{what}: loaded {found[what]!r}. Expected: {_VALUES[what]!r}"

    @tier("T1")
    def test_a_run_comes_back(self, round_trip: Callable[..., Any]) -> None:
        """A module and an optimizer can load their states from the checkpoint."""
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
        """Saving does not change what is saved."""
        inner = {"tensor": torch.arange(3.0, requires_grad=True), "list": [1]}
        checkpoint = {"inner": inner}
        round_trip(checkpoint)
        assert [*checkpoint] == ["inner"], f"after saving, the dict has the keys {[*checkpoint]}. Expected: ['inner']"
        assert checkpoint["inner"] is inner, "saving replaces a part of the dict that is saved"
        assert inner["tensor"].tolist() == [0.0, 1.0, 2.0], "saving changes a tensor"  # type: ignore[attr-defined]
        assert inner["list"] == [1], "saving changes a list"

    @tier("T1")
    def test_later_changes_are_not_saved(self, io: CheckpointIO, path: Path) -> None:
        """Changes after ``save_checkpoint`` has returned are not in the checkpoint, whenever it is written."""
        tensor, values = torch.zeros(2**18), [0]
        io.save_checkpoint({"tensor": tensor, "values": values}, path)
        tensor.fill_(1.0)
        values.append(1)
        io.teardown()
        found = io.load_checkpoint(path)
        assert not found["tensor"].any(), "a change to a tensor after save_checkpoint() is in the checkpoint"
        assert found["values"] == [0], (
            f"a change to a list after save_checkpoint() is in the checkpoint: {found['values']}"
        )

    @tier("T1")
    @pytest.mark.parametrize("spelling", ["str", "PathLike"])
    def test_paths_of_either_kind(self, io: CheckpointIO, path: Path, spelling: str) -> None:
        """Every method takes a str and a PathLike; missing parent folders are created."""
        below = path / "a folder" / "ünïcode"
        given: Any = str(below) if spelling == "str" else below
        io.save_checkpoint({"a": 1}, given)
        io.teardown()
        assert io.load_checkpoint(given) == {"a": 1}
        io.remove_checkpoint(given)

    # -- devices and storage---------------------------------------------------------------------------------------

    @tier("T1")
    @pytest.mark.parametrize("location", ["cpu", torch.device("cpu"), "meta"], ids=str)
    def test_map_location_is_heeded(self, round_trip: Callable[..., Any], location: Any) -> None:
        """Tensors are loaded onto the device ``map_location``."""
        found = round_trip({"a": {"b": [torch.ones(2, 3)]}}, map_location=location)["a"]["b"][0]
        assert found.device.type == str(location), f"map_location={location!r} loaded a tensor on {found.device}"
        assert found.shape == (2, 3), (
            f"map_location={location!r} loaded the shape {tuple(found.shape)}. Expected: (2, 3)"
        )

    @tier("T1")
    def test_unknown_storage_options(self, io: CheckpointIO, path: Path) -> None:
        """Unknown ``storage_options`` are accepted, or refused with a CoreError."""
        try:
            io.save_checkpoint({"a": 1}, path, storage_options={"no such option of any storage": 1})
            io.teardown()
        except CoreError:
            return
        except Exception as error:
            raise AssertionError(
                f"storage_options raised {error!r}. Expected: no exception, or core.errors.CoreError"
            ) from error
        assert io.load_checkpoint(path) == {"a": 1}

    # -- one after another ---------------------------------------------------------------------------------------

    @tier("T1")
    def test_a_later_checkpoint_takes_its_place(self, io: CheckpointIO, path: Path) -> None:
        """Saving to the same path replaces the earlier checkpoint completely."""
        io.save_checkpoint({"first": torch.ones(1000), "both": 1}, path)
        io.save_checkpoint({"second": torch.zeros(3), "both": 2}, path)
        io.teardown()
        found = io.load_checkpoint(path)
        assert [*found] == ["second", "both"], f"the later checkpoint has {[*found]}. Expected: ['second', 'both']"
        assert found["both"] == 2, f"the later checkpoint has the value {found['both']}. Expected: 2"

    @tier("T1")
    def test_two_checkpoints_in_one_folder(self, io: CheckpointIO, path: Path) -> None:
        """Checkpoints at two paths are independent; removing one leaves the other."""
        other = path.with_name("other")
        io.save_checkpoint({"a": 1}, path)
        io.save_checkpoint({"a": 2}, other)
        io.teardown()
        io.remove_checkpoint(path)
        assert io.load_checkpoint(other) == {"a": 2}, "removing a checkpoint changes another one in the folder"

    @tier("T1")
    def test_removing_leaves_nothing(self, io: CheckpointIO, path: Path) -> None:
        """After ``remove_checkpoint`` the checkpoint and all its files are gone."""
        for step in range(2):
            io.save_checkpoint({"step": step}, path)
        io.teardown()
        io.remove_checkpoint(path)
        left = sorted(os.listdir(path.parent))
        assert not left, f"after remove_checkpoint() the folder has {left}. Expected: nothing"
        _check_absent(io, path, "a removed checkpoint")

    @tier("T1")
    def test_removing_a_missing_checkpoint(self, io: CheckpointIO, path: Path) -> None:
        """``remove_checkpoint`` of a missing or removed checkpoint is not an error."""
        io.remove_checkpoint(path)
        io.save_checkpoint({"a": 1}, path)
        io.teardown()
        io.remove_checkpoint(path)
        io.remove_checkpoint(path)

    @tier("T1")
    def test_teardown_can_be_called_twice(self, io: CheckpointIO, path: Path) -> None:
        """``teardown`` can be called twice, even with nothing to finish."""
        io.teardown()
        io.save_checkpoint({"a": 1}, path)
        io.teardown()
        io.teardown()
        assert io.load_checkpoint(path) == {"a": 1}

    # -- what is refused -----------------------------------------------------------------------------------------

    @tier("T1")
    @pytest.mark.parametrize("existing", ["nothing", "an empty file", "an empty folder", "another file"])
    def test_loading_something_else_is_refused(self, io: CheckpointIO, path: Path, existing: str) -> None:
        """``load_checkpoint`` of something that is not a checkpoint raises a CheckpointError."""
        if existing == "an empty folder":
            path.mkdir()
        elif existing != "nothing":
            path.write_bytes(b"" if existing == "an empty file" else b"PK\x03\x04 no checkpoint" * 100)
        _check_absent(io, path, existing)

    @tier("T1")
    @pytest.mark.parametrize("damage", ["truncated", "a byte changed", "emptied", "missing"])
    def test_a_damaged_checkpoint_is_refused(self, io: CheckpointIO, path: Path, damage: str) -> None:
        """A checkpoint with any file truncated, changed, emptied or missing raises a CheckpointError."""
        for place, file in _one_for_each_file(io, path):
            _damage(file, damage)
            _check_absent(io, place, f"a checkpoint with {file.name} {damage}")

    @tier("T1")
    def test_objects_of_a_class_are_refused(self, io: CheckpointIO, path: Path) -> None:
        """An object whose pickle needs code raises a CheckpointError, at the latest when it is loaded."""
        _ran.clear()
        try:
            io.save_checkpoint({"object": _Code()}, path)
            io.teardown()
            io.load_checkpoint(path)
        except CheckpointError:
            assert not _ran, "loading a checkpoint calls a function that its pickle names. Expected: weights_only=True"
            return
        except Exception as error:
            raise AssertionError(f"an object of a class raises {error!r}. Expected: CheckpointError") from error
        pytest.fail(
            "an object whose pickle calls a function is loaded. Expected: CheckpointError, as with weights_only=True"
        )

    @tier("T1")
    def test_planted_code_is_not_run(self, io: CheckpointIO, path: Path) -> None:
        """If a checkpoint's file is replaced by a pickle with code, loading is refused and the code does not run."""
        for place, file in _one_for_each_file(io, path):
            torch.save({"object": _Code()}, file)
            _ran.clear()
            _check_absent(io, place, f"a checkpoint with code in {file.name}")
            assert not _ran, f"loading runs the code that was planted in {file.name}. Expected: weights_only=True"

    @tier("T1")
    def test_a_path_that_cannot_be_written(self, io: CheckpointIO, path: Path) -> None:
        """Saving to a path that cannot be written raises a CheckpointError."""
        path.write_text("a file")
        try:
            io.save_checkpoint({"a": 1}, path / "below")
            io.teardown()
        except CheckpointError:
            return
        except Exception as error:
            raise AssertionError(
                f"saving below a file raised {error!r}. Expected: core.errors.CheckpointError"
            ) from error
        pytest.fail("saving below a file raised nothing. Expected: core.errors.CheckpointError")

    # -- all or nothing ------------------------------------------------------------------------------------------

    @tier("T1")
    @pytest.mark.parametrize("when", ["at each step", "in time"])
    def test_a_killed_save_leaves_a_whole_checkpoint(self, backend: Any, tmp_path: Path, when: str) -> None:
        """If a process is killed while it saves, the old or the new checkpoint is intact, and the next save works."""
        probe = f"torch_hal_devkit.checkpoint_probes:killed_{when.replace(' ', '_')}"
        kills = ask(probe, reference(backend), str(tmp_path / "killed"), limit=240).value
        assert kills, "saving performs no file operation that could be interrupted"
        for moment, found, next_found in kills:
            assert found in ("old", "new"), (
                f"a save over an older checkpoint was killed ({moment}); loaded then: {found}. "
                "Expected: the old checkpoint or the new one"
            )
            assert next_found == "newest", (
                f"a save was killed ({moment}); loaded after the next save: {next_found}. Expected: newest"
            )

    @tier("T1")
    @pytest.mark.parametrize("before", ["over another", "at a new path"])
    def test_a_failed_save_leaves_what_was_there(self, backend: Any, tmp_path: Path, before: str) -> None:
        """A save without enough space raises a CheckpointError and leaves the old checkpoint, or nothing."""
        probe = "torch_hal_devkit.checkpoint_probes:out_of_space"
        answer = ask(probe, reference(backend), str(tmp_path / "full"), before == "at a new path", limit=60).value
        assert answer["raised"].startswith("CheckpointError"), (
            f"a save without enough space gives {answer['raised']!r}. Expected: core.errors.CheckpointError"
        )
        expected = "old" if before == "over another" else "CheckpointError"
        assert answer["read"].startswith(expected), (
            f"after a save {before} without enough space, loaded: {answer['read']}. Expected: {expected}"
        )


def _one_for_each_file(io: CheckpointIO, path: Path) -> Iterator[tuple[Path, Path]]:
    """Save a checkpoint for each file of one; yield its path and that file."""
    number = 0
    while True:
        place = path.with_name(f"{path.name}-{number}")
        io.save_checkpoint({"tensor": torch.arange(5000.0), "text": "w"}, place)
        io.teardown()
        files = [place] if place.is_file() else sorted(file for file in place.rglob("*") if file.is_file())
        assert files, f"after save_checkpoint() no file exists at {place.name}"
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
    elif damage == "truncated":
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
        raise AssertionError(f"load_checkpoint() of {what} raised {error!r}. Expected: CheckpointError") from error
    raise AssertionError(
        f"load_checkpoint() of {what} returned {str(found)[:200]}. Expected: core.errors.CheckpointError"
    )


def _check_tensor(what: str, found: Any, expected: Tensor) -> None:
    assert isinstance(found, Tensor), f"{what}: loaded a {type(found).__name__}. Expected: a tensor"
    kinds = (found.dtype, found.shape), (expected.dtype, expected.shape)
    assert kinds[0] == kinds[1], f"{what}: loaded (dtype, shape) {kinds[0]}. Expected: {kinds[1]}"
    same = _bytes(found) == _bytes(expected)
    assert same, f"{what}: loaded different values. Expected: the same, bit for bit"


def _bytes(tensor: Tensor) -> list[int]:
    flat: list[int] = tensor.detach().cpu().contiguous().flatten().view(torch.uint8).tolist()
    return flat
