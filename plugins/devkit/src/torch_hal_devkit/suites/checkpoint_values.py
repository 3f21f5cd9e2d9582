"""T1 of checkpoint IOs: values that formats are known to lose, and loads that are independent of each other."""

from __future__ import annotations

import gc
import math
import os
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from torch_hal import CheckpointIO
from torch_hal.errors import CheckpointError, CoreError
from torch_hal_devkit.backend import BackendUnderTest
from torch_hal_devkit.marks import tier

__all__ = ["CheckpointValueTests"]

_VALUES: dict[str, Any] = {
    "large integers": [2**53 + 1, -(2**53) - 1, 2**63 - 1, -(2**63)],
    "not a number": [math.nan, {"a": math.nan}, -math.inf],
    "nothing": {"at the top": None, "in a list": [None, 1, None], "in a dict": {"a": None}, "in a tuple": (None,)},
    "order": {"z": 1, "a": 2, "m": {"y": 1, "b": 2}},
    "small differences": [0.1 + 0.2, 1 + 2**-52, 5e-324, 1.7976931348623157e308],
    "alike": [0, False, 0.0, "", "0", "None", "nan", b"0", 1, True, 1.0],
    "long texts": ["x" * 100_000, "line\r\nline\rline\n", "\u2028 \x00 \U0001f600"],
    "numbers as keys": {0: "a", -1: "b", 2**40: "c"},
    "many": [{"number": number} for number in range(2000)],
    "deep": [[[[[[[[[[[[{"a": ({},)}]]]]]]]]]]]],
    "empty ones": {"dict": {}, "list": [], "tuple": (), "text": "", "inner": {"list": [[], {}]}},
    "keys": {"a/b": 1, "a.b": 2, " a": 3, "a ": 4, "A": 5, "a": 6, "": 7, "%41": 8, "ä": 9, "a\u0308": 10},
}

_OF_TORCH: dict[str, Any] = {
    "a dtype": torch.bfloat16,
    "a device": torch.device("cpu"),
    "a size": torch.Size([2, 3]),
    "a set": {1, 2, 3},
}
"""Values that a format may refuse."""

_TENSORS: dict[str, Callable[[], Tensor]] = {
    "not a number": lambda: torch.tensor([math.nan, math.inf, -math.inf, -0.0]),
    "large integers": lambda: torch.tensor([2**53 + 1, 2**63 - 1, -(2**63)]),
    "subnormal": lambda: torch.tensor([1e-45, 5e-40, 1e-38]),
    "five dimensions": lambda: torch.arange(32.0).reshape(2, 2, 2, 2, 2),
    "one of size zero": lambda: torch.empty(3, 0, 2, dtype=torch.int16),
    "requires grad": lambda: torch.arange(3.0, requires_grad=True),
}


_NAMES = [
    *("a name", "50%", "run#1", "a=b,c", "épée", "-last", "last.ckpt"),
    *("~", "$HOME", "a*", "[ab]", ".hidden", "a.tmp", "LAST", "a\nb", "con.tar.gz"),
]
"""Names of checkpoints."""


class CheckpointValueTests:
    """Tests of tier T1."""

    @tier("T1")
    @pytest.mark.parametrize("what", _VALUES)
    def test_values_keep_their_type_and_order(self, round_trip: Callable[..., Any], what: str) -> None:
        """Values come back exactly: integers beyond 2**53, NaN, ``None``, the order of keys, 1 and True and 1.0."""
        found = round_trip({"before": 1, what: _VALUES[what], "after": None})
        shown, expected = repr(found.get(what, "nothing")), repr(_VALUES[what])
        assert shown == expected, f"{what}: loaded {shown[:300]}. Expected: {expected[:300]}"
        assert [*found] == ["before", what, "after"], (
            f"loaded the keys {[*found]}. Expected: ['before', {what!r}, 'after']"
        )

    @tier("T1")
    @pytest.mark.parametrize("what", _OF_TORCH)
    def test_other_values_come_back_or_are_refused(self, io: CheckpointIO, path: Path, what: str) -> None:
        """What hyperparameters also have comes back as it is, or saving raises a CheckpointError."""
        value = _OF_TORCH[what]
        try:
            io.save_checkpoint({"before": 1, "value": value}, path)
            io.teardown()
        except CheckpointError:
            return
        found = io.load_checkpoint(path).get("value")
        assert type(found) is type(value), (
            f"{what}: loaded {found!r}. Expected: {value!r}, or a CheckpointError from save_checkpoint()"
        )
        assert found == value, f"{what}: loaded {found!r}. Expected: {value!r}"

    @tier("T1")
    @pytest.mark.parametrize("what", _TENSORS)
    def test_tensors_keep_their_values(self, round_trip: Callable[..., Any], what: str) -> None:
        """Special values of tensors come back bit for bit, wherever the tensor is in the checkpoint."""
        tensor = _TENSORS[what]()
        found = round_trip({"top": tensor, "list": [1, tensor], "tuple": (tensor,), "dict": {"a": {3: tensor}}})
        for place, value in (
            ("at the top", found["top"]),
            ("in a list", found["list"][1]),
            ("in a tuple", found["tuple"][0]),
            ("in a dict", found["dict"]["a"][3]),
        ):
            assert isinstance(value, Tensor), f"{what}, {place}: loaded a {type(value).__name__}. Expected: a tensor"
            kinds = (value.dtype, value.shape), (tensor.dtype, tensor.shape)
            assert kinds[0] == kinds[1], f"{what}, {place}: loaded (dtype, shape) {kinds[0]}. Expected: {kinds[1]}"
            assert _bits(value) == _bits(tensor), f"{what}, {place}: loaded {value}. Expected: {tensor}, bit for bit"

    @tier("T1")
    def test_tied_tensors_stay_tied(self, round_trip: Callable[..., Any]) -> None:
        """A tensor that is in the checkpoint twice, as tied weights are, is one memory after loading, too."""
        tied = torch.arange(6.0)
        found = round_trip({"a": tied, "inner": {"b": tied}, "other": torch.arange(6.0)})
        found["a"][2] = 77.0
        assert found["inner"]["b"][2] == 77.0, (
            "a change of 'a' is not seen in 'inner.b', which was tied to it. Expected: one memory"
        )
        assert found["other"][2] == 2.0, "a change of 'a' changes another tensor of equal values"

    @tier("T1")
    def test_each_load_is_independent(self, io: CheckpointIO, path: Path) -> None:
        """What a load returned can be changed without a change of the checkpoint, or of another load."""
        io.save_checkpoint({"tensor": torch.arange(4.0), "list": [1], "inner": {"a": 1}}, path)
        io.teardown()
        first, second = io.load_checkpoint(path), io.load_checkpoint(path)
        first["tensor"].fill_(9.0)
        first["list"].append(2)
        first["inner"]["b"] = 2
        first["new"] = 1
        for which, found in (("another load", second), ("a later load", io.load_checkpoint(path))):
            shown = {**found, "tensor": found["tensor"].tolist()}
            expected = {"tensor": [0.0, 1.0, 2.0, 3.0], "list": [1], "inner": {"a": 1}}
            assert shown == expected, f"after a change of what was loaded, {which} has {shown}. Expected: {expected}"

    @tier("T1")
    def test_what_was_loaded_outlives_the_checkpoint(self, io: CheckpointIO, path: Path) -> None:
        """Loaded tensors stay as they are if the checkpoint is replaced, and removed, afterwards."""
        io.save_checkpoint({"tensor": torch.arange(5000.0)}, path)
        io.teardown()
        found = io.load_checkpoint(path)["tensor"]
        io.save_checkpoint({"tensor": torch.zeros(5000)}, path)
        io.teardown()
        io.remove_checkpoint(path)
        assert torch.equal(found, torch.arange(5000.0)), "a loaded tensor changes with the checkpoint's files"

    @tier("T1")
    def test_another_instance_reads_and_removes(self, backend: BackendUnderTest, io: CheckpointIO, path: Path) -> None:
        """A checkpoint is read, replaced and removed by an instance that did not write it."""
        io.save_checkpoint({"step": 1}, path)
        io.teardown()
        other: CheckpointIO = backend.create()
        found = other.load_checkpoint(path)
        assert found == {"step": 1}, f"another instance loaded {found}. Expected: {{'step': 1}}"
        other.save_checkpoint({"step": 2}, path)
        other.teardown()
        found = io.load_checkpoint(path)
        assert found == {"step": 2}, f"after another instance saved, loaded {found}. Expected: {{'step': 2}}"
        backend.create().remove_checkpoint(path)
        assert not path.exists(), "another instance does not remove the checkpoint"

    @tier("T1")
    def test_a_path_relative_to_the_working_directory(
        self, io: CheckpointIO, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A relative path is meant from the working directory at the time of the call."""
        monkeypatch.chdir(path.parent)
        io.save_checkpoint({"a": 1}, "relative")
        (path.parent / "below").mkdir()
        monkeypatch.chdir(path.parent / "below")
        io.teardown()
        found = io.load_checkpoint(path.with_name("relative"))
        assert found == {"a": 1}, f"a relative path: loaded {found}. Expected: {{'a': 1}}"
        assert not os.listdir(), f"a relative path: written below the later working directory: {os.listdir()}"

    @tier("T1")
    @pytest.mark.parametrize("name", _NAMES)
    def test_it_is_where_the_path_says(self, io: CheckpointIO, path: Path, name: str) -> None:
        """A checkpoint is at its path, whatever characters that has, and nothing else is in the folder."""
        io.save_checkpoint({"a": 1}, path.with_name(name))
        io.teardown()
        found = os.listdir(path.parent)
        assert found == [name], f"a checkpoint that is saved to {name!r} leaves {found} in its folder"
        assert io.load_checkpoint(path.with_name(name)) == {"a": 1}

    @tier("T1")
    def test_a_map_location_of_torchs_other_kinds(self, round_trip: Callable[..., Any]) -> None:
        """``map_location`` can be a dict of devices or a function, as in ``torch.load``; or it is refused."""
        asked: list[Any] = []

        def stay(storage: Any, place: str) -> Any:
            asked.append(place)
            return storage

        try:
            found = round_trip({"a": torch.ones(2)}, map_location={"cpu": "meta"})["a"]
        except CoreError:
            pass
        else:
            assert found.device.type == "meta", (
                f"map_location={{'cpu': 'meta'}} loaded a tensor on {found.device}. Expected: meta, or a CoreError"
            )
        try:
            found = round_trip({"a": torch.ones(2)}, map_location=stay)
        except CoreError:
            return
        assert asked, "map_location=function is not called. Expected: a call for each tensor, or a CoreError"

    @tier("T1")
    def test_it_holds_on_to_nothing(self, io: CheckpointIO, path: Path) -> None:
        """After ``teardown`` neither what was saved is kept in memory, nor what was loaded, nor a file open."""
        tensor = torch.ones(1000)
        io.save_checkpoint({"tensor": tensor}, path)  # what is opened once stays out of the count
        io.load_checkpoint(path)
        io.teardown()
        files = _open_files()
        saved, loaded = weakref.ref(tensor), []
        for _ in range(3):
            io.save_checkpoint({"tensor": tensor}, path)
            loaded.append(weakref.ref(io.load_checkpoint(path)["tensor"]))
        io.teardown()
        del tensor
        gc.collect()
        assert saved() is None, "a tensor that was saved is still in memory after teardown()"
        assert not any(reference() is not None for reference in loaded), (
            "a tensor that was loaded is still in memory after teardown()"
        )
        assert _open_files() == files, f"{_open_files() - files} files are open after teardown(). Expected: none"

    @tier("T1")
    def test_its_files_have_the_usual_permissions(self, io: CheckpointIO, path: Path) -> None:
        """The files of a checkpoint have the permissions of a file that the process opens itself."""
        path.with_name("other").touch()
        expected = path.with_name("other").stat().st_mode & 0o777
        io.save_checkpoint({"tensor": torch.ones(3)}, path)
        io.teardown()
        files = [file for file in (path, *path.rglob("*")) if file.is_file()]
        found = {file.name: oct(file.stat().st_mode & 0o777) for file in files}
        assert set(found.values()) == {oct(expected)}, f"permissions are {found}. Expected: {oct(expected)} of each"

    @tier("T1")
    def test_neighbours_are_left_alone(self, io: CheckpointIO, path: Path) -> None:
        """Saving, loading and removing leave the folder's other files and folders as they are."""
        names = ("notes.txt", f"{path.name}-best", f"{path.name}.bak", ".hidden")
        for name in names:
            path.with_name(name).write_text(name)
        (path.parent / "logs").mkdir()
        (path.parent / "logs" / "run").write_text("log")
        for step in range(2):
            io.save_checkpoint({"step": step}, path)
            io.load_checkpoint(path)
        io.teardown()
        io.remove_checkpoint(path)
        left = {
            str(file.relative_to(path.parent)): file.read_text() for file in path.parent.rglob("*") if file.is_file()
        }
        expected = {**{name: name for name in names}, os.path.join("logs", "run"): "log"}
        assert left == expected, f"of the folder's other files there are {left}. Expected: {expected}"

    @tier("T1")
    def test_loading_changes_no_file(self, io: CheckpointIO, path: Path) -> None:
        """Loading leaves the checkpoint's files as they are."""

        def files() -> dict[str, bytes]:
            return {str(file): file.read_bytes() for file in path.parent.rglob("*") if file.is_file()}

        io.save_checkpoint({"tensor": torch.arange(100.0), "list": [1]}, path)
        io.teardown()
        before = files()
        io.load_checkpoint(path)
        after = files()
        changed = sorted(name for name in {*before, *after} if before.get(name) != after.get(name))
        assert not changed, f"loading changes {changed}. Expected: no change"

    @tier("T1")
    def test_several_saves_before_teardown(self, io: CheckpointIO, path: Path) -> None:
        """Saves in a row, to several paths and to one twice, are all complete after ``teardown``."""
        for step in range(5):
            io.save_checkpoint(
                {"step": step, "tensor": torch.full((1000,), float(step))}, path.with_name(f"c{step % 3}")
            )
        io.teardown()
        found = [io.load_checkpoint(path.with_name(f"c{number}")) for number in range(3)]
        steps = [(one["step"], float(one["tensor"].sum())) for one in found]
        expected = [(3, 3000.0), (4, 4000.0), (2, 2000.0)]
        assert steps == expected, f"after saves in a row, (step, sum) are {steps}. Expected: {expected}"

    @tier("T1")
    def test_no_thread_is_left(self, io: CheckpointIO, path: Path) -> None:
        """After ``teardown`` no thread that the IO started is alive."""
        before = set(threading.enumerate())
        io.save_checkpoint({"a": torch.ones(10)}, path)
        io.load_checkpoint(path)
        io.teardown()
        left = [thread.name for thread in threading.enumerate() if thread not in before]
        assert not left, f"after teardown() the threads {left} are alive. Expected: none"


def _bits(tensor: Tensor) -> list[int]:
    flat: list[int] = tensor.detach().cpu().contiguous().flatten().view(torch.uint8).tolist()
    return flat


def _open_files() -> int:
    """The number of this process's open files, or 0 where the system does not tell."""
    return len(os.listdir("/dev/fd")) if os.path.isdir("/dev/fd") else 0
