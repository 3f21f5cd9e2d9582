"""TorchCheckpointIO: what is saved comes back, what is damaged is refused, and memory does not grow with size."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import math
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from manifest_files import manifest_bytes, write_manifest
from torch import nn

from core.checkpoints import TorchCheckpointIO, is_committed, latest, read_manifest
from core.checkpoints.foreign import load_any
from core.convert import convert
from core.errors import CheckpointError, ConfigurationError, WrongTypeError

IO = TorchCheckpointIO()

DTYPES = [
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.complex128, torch.bool),
    *(torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.uint16, torch.uint32, torch.uint64),
    *(torch.float8_e4m3fn, torch.float8_e5m2),
]


def bits(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.contiguous().reshape(-1).view(torch.uint8).tolist())


@pytest.mark.parametrize("shape", [(), (0,), (3, 5)])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_tensors_of_every_dtype_come_back_bit_for_bit(
    dtype: torch.dtype, shape: tuple[int, ...], tmp_path: Path
) -> None:
    """Whatever the bits mean: scalars, empty tensors, nan payloads and denormals included."""
    size = math.prod(shape) * dtype.itemsize
    raw = torch.randint(0, 2 if dtype is torch.bool else 256, (size,), dtype=torch.uint8)
    tensor = raw.view(dtype).reshape(shape) if size else torch.empty(shape, dtype=dtype)
    IO.save_checkpoint({"x": tensor}, tmp_path / "c")
    found = IO.load_checkpoint(tmp_path / "c")["x"]
    assert (found.dtype, found.shape) == (dtype, tensor.shape)
    assert bits(found) == bits(tensor)


def test_nested_python_values_come_back() -> None:
    """Containers, numbers, strings and torch's own small types keep value and type."""
    value: dict[str, Any] = {
        "numbers": [0, -1, 2**40, 2**100, 1.5, math.inf, 1 + 2j, True],
        "text": ("ä", b"\x00\xff", "", None),
        "mapping": OrderedDict([("b", 1), ("a", {3: "three", (1, 2): 4.0})]),
        "torch": [torch.Size([2, 3]), torch.bfloat16, torch.device("cpu"), torch.strided],
        "counted": Counter("aab"),
        "set": {1, 2},
        "empty": [{}, [], (), set()],
    }
    with tempfile.TemporaryDirectory() as folder:
        IO.save_checkpoint(value, os.path.join(folder, "c"))
        found = IO.load_checkpoint(os.path.join(folder, "c"))
    assert found == value
    assert list(found["mapping"]) == ["b", "a"]
    assert type(found["mapping"]) is OrderedDict


def test_a_training_state_resumes_bit_for_bit(tmp_path: Path) -> None:
    """Module, optimizer, scheduler and generator states continue as the uninterrupted run does."""

    def build() -> tuple[nn.Module, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
        optimizer = torch.optim.AdamW(module.parameters(), lr=0.1)
        return module, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 2)

    def step(module: nn.Module, optimizer: Any, scheduler: Any) -> None:
        module(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()

    def parts(built: Any) -> list[Any]:
        return list(built)

    whole = build()
    for _ in range(3):
        step(*whole)
    state: dict[str, Any] = {str(i): part.state_dict() for i, part in enumerate(parts(whole))}
    state["rng"] = torch.get_rng_state()
    IO.save_checkpoint(state, tmp_path / "c")
    for _ in range(3):
        step(*whole)
    resumed = build()
    loaded = IO.load_checkpoint(tmp_path / "c")
    for i, part in enumerate(parts(resumed)):
        part.load_state_dict(loaded[str(i)])
    torch.set_rng_state(loaded["rng"])
    for _ in range(3):
        step(*resumed)
    for expected, found in zip(whole[0].state_dict().values(), resumed[0].state_dict().values(), strict=True):
        assert torch.equal(expected, found)


def test_tensors_that_share_memory_share_it_again(tmp_path: Path) -> None:
    """Tied weights and views are stored once, and are still tied after loading."""
    weight = torch.zeros(1000, 1000)
    IO.save_checkpoint({"a": weight, "b": weight, "row": weight[3]}, tmp_path / "c")
    assert sum(record.size for record in read_manifest(tmp_path / "c").files.values()) < 1.1 * 4e6
    found = IO.load_checkpoint(tmp_path / "c")
    found["a"][3] = 7
    assert found["b"][3].eq(7).all()
    assert found["row"].eq(7).all()


def test_loaded_tensors_do_not_depend_on_the_file(tmp_path: Path) -> None:
    """They can be changed, and live on when the checkpoint is removed."""
    IO.save_checkpoint({"x": torch.ones(100_000)}, tmp_path / "c")
    found = IO.load_checkpoint(tmp_path / "c")["x"]
    IO.remove_checkpoint(tmp_path / "c")
    assert found.add_(1).sum() == 200_000


def test_map_location_is_torchs(tmp_path: Path) -> None:
    """Names, devices and functions decide where tensors go."""
    IO.save_checkpoint({"x": torch.ones(2)}, tmp_path / "c")
    assert IO.load_checkpoint(tmp_path / "c", map_location="meta")["x"].device.type == "meta"
    asked: list[str] = []
    IO.load_checkpoint(tmp_path / "c", map_location=lambda storage, location: asked.append(location))
    assert asked == ["cpu"]


def test_it_is_a_file_as_torch_writes_it(tmp_path: Path) -> None:
    """torch.load reads it, mapped into memory as well, and unzip finds nothing wrong, with hundreds of tensors."""
    state = {f"layer{number}": torch.randn(3) for number in range(700)}
    IO.save_checkpoint(state, tmp_path / "x.ckpt")
    assert os.path.isfile(tmp_path / "x.ckpt")
    for mmap in (False, True):
        loaded = torch.load(tmp_path / "x.ckpt", weights_only=True, mmap=mmap)
        assert loaded.keys() == state.keys()
        assert all(torch.equal(loaded[name], tensor) for name, tensor in state.items())
    with zipfile.ZipFile(tmp_path / "x.ckpt") as archive:
        assert archive.testzip() is None
        assert len(archive.namelist()) == len(set(archive.namelist()))
    assert os.listdir(tmp_path) == ["x.ckpt"]


def test_the_manifest_says_what_the_strategy_says_of_the_run(tmp_path: Path) -> None:
    """World size, strategy and versions stand in readable JSON, next to size and checksum of the content."""
    run = {"world_size": 4, "strategy": "ddp", "versions": {"torch-hal-acme": "1.2"}, "more": torch.ones(1)}
    IO.save_checkpoint({"core": run}, tmp_path / "c")
    content = json.loads(manifest_bytes(tmp_path / "c"))
    assert (content["format_version"], content["world_size"], content["strategy"]) == (4, 4, "ddp")
    assert content["versions"]["torch-hal-acme"] == "1.2"
    assert content["versions"]["torch"] == torch.__version__
    assert content["versions"]["python"] == ".".join(map(str, sys.version_info[:3]))
    record = content["files"]["content"]
    head = subprocess.run(["head", "-c", str(record["size"]), tmp_path / "c"], capture_output=True, check=True).stdout
    assert f"{zlib.crc32(head):08x}" == record["crc32"]
    assert torch.load(io.BytesIO(head), weights_only=True)["core"]["world_size"] == 4


def test_a_checkpoint_that_says_nothing_of_its_run(tmp_path: Path) -> None:
    """Then the manifest holds null, not a guess."""
    IO.save_checkpoint({}, tmp_path / "c")
    manifest = read_manifest(tmp_path / "c")
    assert (manifest.world_size, manifest.strategy) == (None, None)


@pytest.mark.parametrize("run", [3, {"world_size": "4"}, {"strategy": 1}, {"versions": ["1"]}])
def test_the_reserved_key_in_another_form_is_refused(run: Any, tmp_path: Path) -> None:
    """The message names the key, and nothing is written."""
    with pytest.raises(CheckpointError, match=r"checkpoint\['core'\]"):
        IO.save_checkpoint({"core": run}, tmp_path / "c")
    assert os.listdir(tmp_path) == []


# -- damage --------------------------------------------------------------------------------------------------------


def refused(path: Path) -> str:
    """The message of the error that loading it raises."""
    with pytest.raises(CheckpointError) as caught:
        IO.load_checkpoint(path)
    return str(caught.value)


def test_every_flipped_bit_is_found(tmp_path: Path) -> None:
    """One bit in each byte: of the content, torch's list of entries, the manifest, the tail and the trailer."""
    IO.save_checkpoint({"x": torch.arange(10)}, tmp_path / "c")
    written = (tmp_path / "c").read_bytes()
    for place in range(len(written)):
        changed = bytearray(written)
        changed[place] ^= 1 << place % 8
        (tmp_path / "c").write_bytes(changed)
        assert f"{tmp_path}/c" in refused(tmp_path / "c"), place
        if place >= 4:  # else it does not begin as a file of torch's
            assert "is damaged" in refused(tmp_path / "c"), place


def test_every_end_that_is_missing_is_found(tmp_path: Path) -> None:
    """Also if what is left is all that torch has written, which torch.load would read, or there is more at the end."""
    IO.save_checkpoint({"core": {}, "x": torch.arange(10)}, tmp_path / "c")
    written = (tmp_path / "c").read_bytes()
    content = read_manifest(tmp_path / "c").files["content"].size
    assert torch.load(io.BytesIO(written[:content]), weights_only=True)["x"].tolist() == list(range(10))
    for size in [*range(4, len(written), 5), content]:
        (tmp_path / "c").write_bytes(written[:size])
        with pytest.raises(CheckpointError, match="is damaged"):
            load_any(lambda: IO.load_checkpoint(tmp_path / "c"), tmp_path / "c")
        assert not is_committed(tmp_path / "c")
    (tmp_path / "c").write_bytes(written + b"\0")
    assert "is damaged" in refused(tmp_path / "c")


def change(path: Path, **changes: Any) -> None:
    """Change a manifest together with all checksums."""
    content = json.loads(manifest_bytes(path)) | changes
    del content["sha256"]
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    content["sha256"] = hashlib.sha256(text.encode()).hexdigest()
    write_manifest(path, json.dumps(content).encode())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"files": {}}, "its manifest does not list content"),
        ({"files": {"content": {"size": 1, "crc32": "0" * 8}}}, "is damaged: it has .* bytes, but had 1"),
        ({"files": {"../x": {"size": 1, "crc32": "0" * 8}}}, "is outside of the checkpoint"),
        ({"format_version": 99}, "format version 99, and this torch-hal reads version 4. Run: pip install --upgrade"),
        ({"format_version": 3}, "there is no format version 3"),
        ({"checkpoint_io": "acme"}, "Set checkpoint_io='acme'"),
    ],
)
def test_a_manifest_that_was_changed(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    IO.save_checkpoint({"x": torch.ones(3)}, tmp_path / "c")
    change(tmp_path / "c", **changes)
    assert re.search(message, refused(tmp_path / "c"))


@pytest.mark.parametrize(
    "path", ["a\0b", "\ud800", "a/\ud800/b", "x" * 300, "a\0/b", ".core-old", ".core-tmp-x+y", ".core-old/x"]
)
@pytest.mark.parametrize("action", ["save", "load", "remove", "latest", "is_committed", "convert"])
def test_paths_that_no_file_can_have(path: str, action: str, tmp_path: Path) -> None:
    """NUL, lone surrogates, names that are too long, and those that saves use: an error of ours, or nothing found."""
    place = f"{tmp_path}/{path}"
    actions: dict[str, Callable[[], Any]] = {
        "save": lambda: IO.save_checkpoint({}, place),
        "load": lambda: IO.load_checkpoint(place),
        "remove": lambda: IO.remove_checkpoint(place),
        "latest": lambda: latest(place),
        "is_committed": lambda: is_committed(place),
        "convert": lambda: convert(place),
    }
    found: Any = "an error"
    with contextlib.suppress(CheckpointError):
        found = actions[action]()
    assert found in ("an error", None, False)
    assert found == "an error" or action in ("latest", "is_committed") or (action == "remove" and "core" not in path)
    assert os.listdir(tmp_path) == []


def test_what_is_absent_is_refused(tmp_path: Path) -> None:
    """A path where nothing is, and a single file of someone else's, are named as such."""
    with pytest.raises(CheckpointError, match="not a committed checkpoint"):
        IO.load_checkpoint(tmp_path / "none")
    torch.save({}, tmp_path / "file.ckpt")
    with pytest.raises(CheckpointError, match=r"file\.ckpt is a file without a manifest"):
        IO.load_checkpoint(tmp_path / "file.ckpt")


# -- what cannot be written ----------------------------------------------------------------------------------------


@pytest.fixture
def read_only_directory() -> Iterator[Path]:
    """A directory that this process may read but not write, also where the tests run as root."""
    parent = Path(tempfile.mkdtemp())
    folder = parent / "folder"
    folder.mkdir()
    IO.save_checkpoint({"x": 1}, folder / "old")
    parent.chmod(0o755)
    folder.chmod(0o555)
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(65534)
    yield folder
    if is_root:
        os.seteuid(0)
    folder.chmod(0o755)
    shutil.rmtree(parent)


@pytest.mark.parametrize("name", ["new", "old", "sub/new"])
def test_a_read_only_directory_is_an_error(name: str, read_only_directory: Path) -> None:
    """The message names path and cause; what was there can still be loaded."""
    with pytest.raises(CheckpointError, match=f"{read_only_directory}/{name} cannot be written: .*Permission denied"):
        IO.save_checkpoint({"x": 2}, read_only_directory / name)
    with pytest.raises(CheckpointError, match=r"old cannot be removed: .*Permission denied"):
        IO.remove_checkpoint(read_only_directory / "old")
    assert IO.load_checkpoint(read_only_directory / "old") == {"x": 1}


def test_a_full_disk_is_an_error(tmp_path: Path) -> None:
    """The write that fails is named with its cause, no rest stays, and the old checkpoint does."""
    IO.save_checkpoint({"x": 1}, tmp_path / "c")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, hard))
    try:
        with pytest.raises(CheckpointError, match=f"{tmp_path}/c cannot be written: .*File too large"):
            IO.save_checkpoint({"x": torch.ones(1_000_000)}, tmp_path / "c")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert IO.load_checkpoint(tmp_path / "c") == {"x": 1}
    assert os.listdir(tmp_path) == ["c"]


def test_a_file_in_place_of_a_parent_directory_is_an_error(tmp_path: Path) -> None:
    """It is named, and not replaced."""
    (tmp_path / "file").write_text("mine")
    with pytest.raises(CheckpointError, match=f"{tmp_path}/file/c cannot be written"):
        IO.save_checkpoint({}, tmp_path / "file" / "c")
    assert (tmp_path / "file").read_text() == "mine"


def test_what_torch_cannot_write_is_an_error(tmp_path: Path) -> None:
    """torch's reason is passed on: here, one memory under two dtypes."""
    x = torch.ones(4)
    with pytest.raises(CheckpointError, match=f"{tmp_path}/c cannot be written: .*different types"):
        IO.save_checkpoint({"x": x, "y": x.view(torch.int32)}, tmp_path / "c")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (([1], "c"), WrongTypeError, "checkpoint must be a dict, not list"),
        (({}, 3), WrongTypeError, "path=3"),
        (({}, ""), CheckpointError, "path=''"),
        (({}, "/"), CheckpointError, "path='/'"),
        (({}, "nowhere://bucket/c"), CheckpointError, "path='nowhere://bucket/c': Protocol not known"),
        (({}, "c", {"a": 1}), ConfigurationError, "storage_options"),
    ],
)
def test_wrong_arguments_are_refused(
    arguments: Any, error: type[Exception], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message names the argument and what was given, and nothing is written."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=message):
        IO.save_checkpoint(*arguments)
    assert os.listdir(tmp_path) == []


# -- memory --------------------------------------------------------------------------------------------------------

MEASURE = """
import resource, sys, torch
from core.checkpoints import TorchCheckpointIO

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

io, path = TorchCheckpointIO(), sys.argv[1]
io.save_checkpoint({"x": torch.ones(1)}, path)
state = {"x": torch.ones(128 * 2**20)}
before = peak()
io.save_checkpoint(state, path)
saved = peak()
io.load_checkpoint(path)
print(saved - before, peak() - saved)
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_what_is_saved(tmp_path: Path) -> None:
    """Saving 512 MiB takes under 64 MiB more at its peak; loading them takes them once."""
    run = subprocess.run(
        [sys.executable, "-c", MEASURE, tmp_path / "c"], capture_output=True, text=True, check=True, timeout=120
    )
    saving, loading = map(float, run.stdout.split())
    assert saving < 64
    assert loading < 512 + 64
