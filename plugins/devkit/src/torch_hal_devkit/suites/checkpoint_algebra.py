"""T1 of checkpoint IOs: drawn checkpoints and orders of calls, links, long names, and instances, threads and errors."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

from torch_hal import CheckpointIO
from torch_hal.errors import CheckpointError, CoreError
from torch_hal_devkit import drawn
from torch_hal_devkit.backend import BackendUnderTest
from torch_hal_devkit.marks import skip_by_declaration, tier
from torch_hal_devkit.process_state import changes, draw, recorded, unusual
from torch_hal_devkit.suites.base import copied

__all__ = ["CheckpointAlgebraTests"]

_LONG = 200
"""Characters of a name: fewer than the 255 of most file systems, as a name for a temporary file is longer."""
_CALLS = 24


class _Unsaveable:
    """An object that no checkpoint can hold."""

    def __reduce__(self) -> Any:
        raise TypeError("planted by the conformance kit")


class CheckpointAlgebraTests:
    """Tests of tier T1."""

    # -- drawn values --------------------------------------------------------------------------------------------

    @tier("T1")
    @pytest.mark.parametrize("seed", drawn.SEEDS)
    def test_a_drawn_checkpoint_comes_back(self, round_trip: Callable[..., Any], seed: int) -> None:
        """Nested values and tensors of any layout come back equal, with types, order, dtypes, shapes and bits."""
        given, expected = (drawn.checkpoint(Random(seed)) for _ in range(2))
        difference = drawn.same(round_trip(given), expected)
        assert not difference, f"seed {seed}: in the loaded checkpoint {difference}"
        changed = drawn.same(given, expected)
        assert not changed, f"seed {seed}: saving changes the checkpoint: {changed}"

    @tier("T1")
    @pytest.mark.parametrize("seed", drawn.SEEDS)
    def test_a_drawn_order_of_calls(self, backend: BackendUnderTest, path: Path, seed: int) -> None:
        """Saves, loads, removals and teardowns in any order, by two instances, act as on a dict of checkpoints."""
        order = Random(seed)
        ios: list[CheckpointIO] = [backend.create(), backend.create()]
        places = [path.with_name(name) for name in ("a", "a.b", "ab")]
        expected: dict[Path, dict[str, Any]] = {}
        done: list[str] = []
        for number in range(_CALLS):
            which, place = order.randrange(2), order.choice(places)
            call = order.choice(["save", "save", "load", "load", "remove", "teardown"])
            done.append(f"{call} {place.name} ({which})")
            if call == "save":
                made = {"number": number, "tensor": torch.arange(number), f"key {number}": None}
                ios[which].save_checkpoint(made, place)
                expected[place] = {**made, "tensor": torch.arange(number)}
            elif call == "remove":
                ios[which].remove_checkpoint(place)
                expected.pop(place, None)
            if call != "load" or order.random() < 0.5:
                ios[which].teardown()  # another instance does not wait for this one
            if call == "load" and place in expected:
                difference = drawn.same(ios[which].load_checkpoint(place), expected[place])
                assert not difference, f"after {', '.join(done)}: {difference}"
            elif call == "load":
                _check_absent(ios[which], place, f"after {', '.join(done)}")
            found, names = sorted(os.listdir(path.parent)), sorted(one.name for one in expected)
            assert found == names, f"after {', '.join(done)} there are {found}. Expected: {names}"

    @tier("T1")
    def test_views_share_their_memory(self, io: CheckpointIO, round_trip: Callable[..., Any]) -> None:
        """Tensors that are overlapping views of one memory are views of one memory after loading, too."""
        if not io.keeps_views:
            skip_by_declaration("keeps_views is False: each of several views of one memory gets its own")
        whole = torch.arange(10.0)
        matrix = torch.arange(6.0).reshape(2, 3)
        found = round_trip({"head": whole[:6], "tail": whole[3:], "matrix": matrix, "turned": matrix.t()})
        found["head"][4] = 77.0
        assert found["tail"][1] == 77.0, "a change of one view is not seen in another one of the same memory"
        found["matrix"][0, 1] = 77.0
        assert found["turned"][1, 0] == 77.0, "a change of a matrix is not seen in its transpose, of the same memory"
        assert found["head"].tolist() == [0.0, 1.0, 2.0, 3.0, 77.0, 5.0]

    @tier("T1")
    def test_what_is_loaded_is_the_users_own(self, round_trip: Callable[..., Any]) -> None:
        """A loaded checkpoint is a plain dict whose tensors can be written in place and trained, on the CPU."""
        found = round_trip({"a": torch.ones(3), "b": {"c": torch.zeros(2, 2).t()}}, map_location="cpu")
        assert type(found) is dict, f"load_checkpoint() returned a {type(found).__name__}. Expected: a dict"
        for value in (found["a"], found["b"]["c"]):
            assert value.device.type == "cpu", f"map_location='cpu' loaded a tensor on {value.device}"
            value.add_(1.0)
            value.requires_grad_().sum().backward()
            assert value.grad is not None, "a loaded tensor cannot be trained"

    @tier("T1")
    def test_saving_leaves_each_tensor(self, io: CheckpointIO, path: Path) -> None:
        """Saving leaves each tensor where it is, with its gradient, its version and whether it requires one."""
        leaf = torch.arange(4.0, requires_grad=True)
        (leaf * 2).sum().backward()  # type: ignore[no-untyped-call]
        tensors = {"leaf": leaf, "view": torch.arange(8.0)[::2], "turned": torch.arange(6.0).reshape(2, 3).t()}
        before = {name: _facts(tensor) for name, tensor in tensors.items()}
        io.save_checkpoint({"tensors": tensors, "parameter": torch.nn.Parameter(torch.ones(2))}, path)
        io.teardown()
        after = {name: _facts(tensor) for name, tensor in tensors.items()}
        assert after == before, f"after saving, tensors are {after}. Expected: {before}"

    # -- paths ---------------------------------------------------------------------------------------------------

    @tier("T1")
    def test_long_names_are_kept(self, io: CheckpointIO, path: Path) -> None:
        """Checkpoints whose names differ only after two hundred characters are two, and so are keys of a dict."""
        places = [path.with_name("n" * (_LONG - 1) + end) for end in "ab"]
        keys = ["k" * 2000 + end for end in "ab"]
        for number, place in enumerate(places):
            io.save_checkpoint({key: torch.tensor(number + i) for i, key in enumerate(keys)}, place)
        io.teardown()
        found = sorted(os.listdir(path.parent))
        assert found == [place.name for place in places], f"long names became {[name[-20:] for name in found]}"
        for number, place in enumerate(places):
            loaded = {key: int(value) for key, value in io.load_checkpoint(place).items()}
            expected = {key: number + i for i, key in enumerate(keys)}
            assert loaded == expected, f"of long keys, {len(loaded)} were loaded: {[*loaded.values()]}"
        io.remove_checkpoint(places[0])
        assert os.listdir(path.parent) == [places[1].name], "removing one of two long names removes the other"

    @tier("T1")
    def test_a_link_is_not_its_target(self, io: CheckpointIO, path: Path) -> None:
        """A checkpoint is loaded through a link; removing the link, or saving to it, leaves a whole target."""
        link = path.with_name("link")
        io.save_checkpoint({"step": 1}, path)
        io.teardown()
        for what in ("removing", "saving to"):
            link.symlink_to(path, target_is_directory=path.is_dir())
            found = io.load_checkpoint(link)
            assert found == {"step": 1}, f"through a link, loaded {found}"
            if what == "saving to":
                io.save_checkpoint({"step": 2}, link)
                io.teardown()
                found = io.load_checkpoint(link)
                assert found == {"step": 2}, f"after saving to a link, loaded {found} through it"
            io.remove_checkpoint(link)
            io.teardown()
            assert not os.path.lexists(link), f"after remove_checkpoint(link) the link is still there ({what})"
            target = io.load_checkpoint(path) if path.exists() else "nothing"
            expected = ({"step": 1},) if what == "removing" else ({"step": 1}, {"step": 2})
            assert target in expected, f"after {what} a link, its target is {target}. Expected: {expected[0]}"

    @tier("T1")
    def test_a_folder_that_is_a_link(self, io: CheckpointIO, path: Path) -> None:
        """In a folder that is reached by a link, checkpoints are saved, loaded and removed; the folder stays."""
        linked = path.with_name("linked")
        (path.parent / "real").mkdir()
        linked.symlink_to(path.parent / "real", target_is_directory=True)
        io.save_checkpoint({"a": 1}, linked / "checkpoint")
        io.teardown()
        assert io.load_checkpoint(path.parent / "real" / "checkpoint") == {"a": 1}
        io.remove_checkpoint(linked / "checkpoint")
        assert linked.is_symlink(), "removing a checkpoint removes the link by which its folder was reached"
        assert not os.listdir(linked), f"after remove_checkpoint() the folder has {os.listdir(linked)}"

    @tier("T1")
    def test_a_users_folder_is_left_alone(self, io: CheckpointIO, path: Path) -> None:
        """A folder that is no checkpoint is neither replaced nor removed; where that is told, by a CheckpointError."""
        path.mkdir()
        (path / "notes.txt").write_text("of the user")
        calls: tuple[Callable[[], object], ...] = (
            lambda: io.remove_checkpoint(path),
            lambda: io.save_checkpoint({"a": 1}, path),
            io.teardown,
        )
        for call in calls:
            with suppress(CheckpointError):
                call()
            found = [file.name for file in path.glob("*.txt")] if path.is_dir() else "no folder"
            assert found == ["notes.txt"], f"of a folder with the user's notes.txt there is {found}"

    # -- instances, threads and errors ---------------------------------------------------------------------------

    @tier("T1")
    @pytest.mark.parametrize("how", ["pickled", "copied"])
    def test_a_copy_of_it_works(self, io: CheckpointIO, path: Path, how: str) -> None:
        """A pickled or deeply copied instance, as a started process gets one, reads what the first one wrote."""
        io.save_checkpoint({"a": 1}, path)
        io.teardown()
        other: Any = copied(io, how)
        names = [getattr(one, "name", None) for one in (other, io)]
        assert names[0] == names[1], f"a {how} instance has the name {names[0]!r}. Expected: {names[1]!r}"
        assert other.load_checkpoint(path) == {"a": 1}
        other.save_checkpoint({"a": 2}, path)
        other.teardown()
        assert io.load_checkpoint(path) == {"a": 2}

    @tier("T1")
    def test_other_threads_save_and_load(self, io: CheckpointIO, path: Path) -> None:
        """Threads other than the main one save and load, one after another."""
        found: dict[int, Any] = {}

        def run(number: int) -> None:
            io.save_checkpoint({"tensor": torch.full((2000,), float(number))}, path)
            io.wait()
            found[number] = float(io.load_checkpoint(path)["tensor"].sum())

        for number in range(2):
            thread = threading.Thread(target=run, args=(number,))
            thread.start()
            thread.join()
        io.teardown()
        assert found == {0: 0.0, 1: 2000.0}, f"by number of the thread, sums are {found}"

    @tier("T1")
    def test_after_an_error_it_goes_on(self, io: CheckpointIO, path: Path) -> None:
        """A save that is refused leaves the old checkpoint and no file; the same instance saves and loads on."""
        io.save_checkpoint({"step": 1, "tensor": torch.ones(2)}, path)
        io.teardown()
        for _ in range(2):
            try:
                io.save_checkpoint({"step": 2, "tensor": torch.zeros(2), "object": _Unsaveable()}, path)
                io.teardown()
            except CoreError:
                pass
            else:
                pytest.fail("an object that cannot be pickled is saved. Expected: core.errors.CheckpointError")
            found = io.load_checkpoint(path)
            assert (found["step"], found["tensor"].tolist()) == (1, [1.0, 1.0]), f"after a refused save, loaded {found}"
            assert os.listdir(path.parent) == [path.name], f"a refused save leaves {os.listdir(path.parent)}"
        io.save_checkpoint({"step": 3}, path)
        io.teardown()
        assert io.load_checkpoint(path) == {"step": 3}, "after a refused save, a later one is not there"

    @tier("T1")
    def test_what_waits_for_a_commit(self, io: CheckpointIO, path: Path) -> None:
        """``when_committed`` calls its function once, with the checkpoint in its place; ``wait`` waits for both."""
        seen: list[bool] = []
        io.save_checkpoint({"a": torch.ones(2**16)}, path)
        io.when_committed(lambda: seen.append(path.exists()))
        io.check()
        io.wait()
        io.wait()
        assert seen == [True], f"when_committed() called its function with (checkpoint is there) {seen}. Expected: once"
        io.teardown()
        assert seen == [True], "teardown() calls the function of when_committed() again"

    @tier("T1")
    def test_checking_writes_nothing(self, io: CheckpointIO, path: Path) -> None:
        """``check_checkpoint`` accepts what ``save_checkpoint`` takes, and neither writes nor changes it."""
        given, expected = (drawn.checkpoint(Random(1)) for _ in range(2))
        io.check_checkpoint(given, path)
        assert not os.listdir(path.parent), f"check_checkpoint() writes {os.listdir(path.parent)}"
        changed = drawn.same(given, expected)
        assert not changed, f"check_checkpoint() changes the checkpoint: {changed}"

    @tier("T1")
    @pytest.mark.parametrize("umask", [0o077, 0o002], ids=oct)
    def test_its_files_follow_the_umask(self, io: CheckpointIO, path: Path, umask: int) -> None:
        """Files and folders of a checkpoint have the permissions that the process's umask leaves."""
        before = os.umask(umask)
        try:
            io.save_checkpoint({"tensor": torch.ones(3)}, path / "below")
            io.teardown()
        finally:
            os.umask(before)
        for place in (path, *path.rglob("*")):
            expected = (0o777 if place.is_dir() else 0o666) & ~umask
            found = place.stat().st_mode & 0o777
            assert found == expected, (
                f"{place.name} has the permissions {oct(found)}. Expected: {oct(expected)}, as a file that open() or "
                "Path.touch() creates"
            )

    @tier("T1")
    def test_the_process_stays_as_it_was(self, io: CheckpointIO, path: Path) -> None:
        """Saving, loading and removing, also where they fail, leave a process as it is, whatever its settings are."""
        with unusual():
            before = recorded()
            io.save_checkpoint({"tensor": torch.ones(10), "list": [1]}, path)
            draw()
            drawn_before = recorded(("random state",))
            found = io.load_checkpoint(path)["tensor"]
            assert found.dtype is torch.float64, "the dtype of a tensor of the default dtype is not kept"
            for call in (
                lambda: io.save_checkpoint({"object": _Unsaveable()}, path),
                lambda: io.load_checkpoint(path / "nothing"),
                io.teardown,
            ):
                try:
                    call()
                except CoreError:
                    continue
            io.remove_checkpoint(path)
            changed = {**changes(before, recorded()), "random state": ""}
            changed |= changes(drawn_before, recorded(("random state",)))
        left = {aspect: text for aspect, text in changed.items() if text}
        assert not left, f"a process with unusual settings is changed: {left}. Expected: no change"


def _facts(tensor: torch.Tensor) -> dict[str, Any]:
    return {
        "place": tensor.data_ptr(),
        "version": tensor._version,
        "strides": tensor.stride(),
        "requires gradient": tensor.requires_grad,
        "gradient": None if tensor.grad is None else tensor.grad.tolist(),
        "values": tensor.tolist(),
    }


def _check_absent(io: CheckpointIO, path: Path, when: str) -> None:
    try:
        found = io.load_checkpoint(path)
    except CheckpointError:
        return
    raise AssertionError(f"{when}: a removed checkpoint is loaded: {found}. Expected: core.errors.CheckpointError")
