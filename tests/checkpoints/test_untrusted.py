"""A checkpoint of anyone's: reading it runs no code, follows no link, and does not fill the memory."""

from __future__ import annotations

import io
import os
import pickle
import shutil
import sys
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from enum import Enum
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch
from python_processes import run_python
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

import core
from core.checkpoints import (
    SHARD,
    FileRecord,
    Manifest,
    ShardedCheckpointIO,
    TorchCheckpointIO,
    read_shard,
    refuse_code,
)
from core.convert import convert
from core.errors import CheckpointError

SCRIPT = Path(__file__).parent / "scripts" / "save_shards.py"


class Attack:
    """What an attacker writes: unpickling it creates a file."""

    def __init__(self, proof: Path) -> None:
        self.proof = proof

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.proof),)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sharded checkpoint as it should be."""
    folder = tmp_path_factory.mktemp("good")
    run_python(SCRIPT, folder / "c", 1, cwd=folder, warnings="ignore")
    return folder / "c"


@pytest.fixture
def checkpoint(good: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(good, tmp_path / "c"))


def forge(directory: Path, name: str, content: bytes) -> None:
    """Write a file of the checkpoint, and its size and checksum into the manifest: it looks undamaged."""
    (directory / name).write_bytes(content)
    seal(directory)


def seal(directory: Path) -> None:
    manifest = Manifest.read(directory)
    files = {name: FileRecord.of(directory / name) for name in manifest.files}
    Manifest(files=files, checkpoint_io=manifest.checkpoint_io).write(directory)


def metadata(directory: Path) -> Any:
    return pickle.loads((directory / ".metadata").read_bytes())


READERS: list[Callable[[Path], Any]] = [lambda path: ShardedCheckpointIO().load_checkpoint(path), convert]


def test_what_was_saved_is_read(checkpoint: Path) -> None:
    """The checks let through what belongs there."""
    read = ShardedCheckpointIO().load_checkpoint(checkpoint)
    assert torch.equal(read["rows"], torch.ones(40, 25))
    assert read["step"] == 1


class ByName(pickle.Pickler):
    """Pickles members of an Enum as Python 3.11.0 to 3.11.3 does."""

    def reducer_override(self, given: Any) -> Any:
        return (getattr, (type(given), given.name)) if isinstance(given, Enum) else NotImplemented


@pytest.mark.parametrize("pickler", [pickle.Pickler, ByName])
@pytest.mark.parametrize("module", ["pathlib", "pathlib._local"])
def test_every_python_reads_what_every_other_one_has_saved(
    pickler: type[pickle.Pickler], module: str, checkpoint: Path
) -> None:
    """Python before 3.11.4 pickles members of an Enum, and Python 3.13 paths, in its own way."""
    written = io.BytesIO()
    pickler(written, protocol=2, fix_imports=False).dump(metadata(checkpoint))
    path = f"c{type(checkpoint).__module__}\nPosixPath\n".encode()
    assert path in written.getvalue()
    assert (b"getattr" in written.getvalue()) == (pickler is ByName or sys.version_info < (3, 11, 4))
    forge(checkpoint, ".metadata", written.getvalue().replace(path, f"c{module}\nPosixPath\n".encode()))
    assert torch.equal(ShardedCheckpointIO().load_checkpoint(checkpoint)["rows"], torch.ones(40, 25))


@pytest.mark.parametrize("read", READERS, ids=["load_checkpoint", "convert"])
def test_the_metadata_file_runs_no_code(read: Callable[[Path], Any], checkpoint: Path, tmp_path: Path) -> None:
    """Wherever in it the code is; the error names the file and what it would have called."""
    content = metadata(checkpoint)
    for attack in (
        Attack(tmp_path / "proof"),
        Metadata({}, storage_data=Attack(tmp_path / "proof")),
        Metadata(content.state_dict_metadata, planner_data={"x": [Attack(tmp_path / "proof")]}),
    ):
        forge(checkpoint, ".metadata", pickle.dumps(attack))
        with pytest.raises(CheckpointError, match=rf"{checkpoint}/\.metadata is not read: it contains posix\.mkdir"):
            read(checkpoint)
    assert not (tmp_path / "proof").exists()


@pytest.mark.parametrize(
    "pickled",
    [
        b"cbuiltins\neval\n(V1\ntR.",
        b"\x80\x04\x8c\x05torch\x8c\x04load\x93.",
        b"\x80\x04\x8c\x08builtins\x8c\x07getattr\x93.",
        b"cbuiltins\ngetattr\n(ctorch.distributed.checkpoint.metadata\nMetadata\nV__init__\ntR.",
        b"cbuiltins\ngetattr\n(ctorch.distributed.checkpoint.metadata\n_MEM_FORMAT_ENCODING\nV__init_subclass__\ntR.",
        b"cbuiltins\ngetattr\n(cbuiltins\nset\nV__init__\ntR.",
        b"cbuiltins\ngetattr\n(VtextVformat\ntR.",
        b"cbuiltins\ngetattr\n(}Vclear\ntR.",
        b"\x80\x04\x8c\x2ctorch.distributed.checkpoint.metadata\x00\x00\x00\x00\x00\x00\x00\x8c\x01x\x93.",
        b"(ios\nsystem\n.",
        b"",
        b".",
        b"\x80\x04}.",
        b"\x80\x04" + b"]" * 10000 + b"a" * 9999 + b".",
    ],
)
def test_no_other_pickle_is_read(pickled: bytes, checkpoint: Path) -> None:
    """Functions, attributes of what is allowed, and rubbish are refused as CheckpointError, which names the file."""
    forge(checkpoint, ".metadata", pickled)
    with pytest.raises(CheckpointError, match=r"\.metadata"):
        ShardedCheckpointIO().load_checkpoint(checkpoint)


def test_a_pickle_does_not_change_torchs_classes(checkpoint: Path) -> None:
    """Setting attributes of an allowed class is the pickle's way around a list of allowed classes."""
    before = dict(vars(Metadata))
    name = b"ctorch.distributed.checkpoint.metadata\nMetadata\n"
    forge(checkpoint, ".metadata", b"\x80\x02" + name + b"(N}X\x07\x00\x00\x00versionX\x03\x00\x00\x00badst\x86b.")
    with pytest.raises(CheckpointError, match=r"\.metadata"):
        ShardedCheckpointIO().load_checkpoint(checkpoint)
    assert dict(vars(Metadata)) == before


def test_an_item_that_would_be_unpickled_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    """torch unpickles entries that are not tensors."""
    item = io.BytesIO()
    torch.save(Attack(tmp_path / "proof"), item)
    (checkpoint / "__0_0.distcp").write_bytes(item.getvalue())
    place = _StorageInfo("__0_0.distcp", 0, len(item.getvalue()))
    forged = Metadata({"rows": BytesStorageMetadata()}, storage_data={MetadataIndex("rows"): place})
    forge(checkpoint, ".metadata", pickle.dumps(forged))
    with pytest.raises(CheckpointError, match=r"'rows' is not a tensor"):
        ShardedCheckpointIO().load_checkpoint(checkpoint)
    assert not (tmp_path / "proof").exists()


def test_a_shard_that_holds_code_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    """Both the tensors' shards and the shard of everything else."""
    item = io.BytesIO()
    torch.save(Attack(tmp_path / "proof"), item)
    content = metadata(checkpoint)
    content.storage_data = {
        index: _StorageInfo("__0_0.distcp", 0, len(item.getvalue())) for index in content.storage_data
    }
    content.state_dict_metadata["rows"].size = torch.Size([1])
    content.state_dict_metadata["rows"].chunks[0].sizes = torch.Size([1])
    (checkpoint / "__0_0.distcp").write_bytes(item.getvalue())
    forge(checkpoint, ".metadata", pickle.dumps(content))
    with pytest.raises(CheckpointError, match=r"posix\.mkdir"):
        ShardedCheckpointIO().load_checkpoint(checkpoint)
    forge(checkpoint, "shard-00000.pt", item.getvalue())
    with pytest.raises(CheckpointError, match=r"posix\.mkdir"):
        ShardedCheckpointIO().load_checkpoint(checkpoint)
    assert not (tmp_path / "proof").exists()


def elsewhere(path: str) -> Callable[[Any], None]:
    def change(content: Any) -> None:
        content.storage_data = {index: _StorageInfo(path, 0, 100) for index in content.storage_data}

    return change


def enlarge(content: Any) -> None:
    content.state_dict_metadata["rows"].size = torch.Size([2**40, 25])


def encode(content: Any) -> None:
    for place in content.storage_data.values():
        place.transform_descriptors = ["zstd"]


def beyond(content: Any) -> None:
    for place in content.storage_data.values():
        place.length = 2**40


def rename(content: Any) -> None:
    content.state_dict_metadata = {"other": content.state_dict_metadata["rows"]}


def no_tensor(content: Any) -> None:
    content.state_dict_metadata["rows"] = 3


def half(content: Any) -> None:
    content.state_dict_metadata["rows"].chunks.clear()


def repeat(content: Any) -> None:
    """A thousand chunks that are the same bytes: the tensor takes a thousand times what the shards have."""
    rows = content.state_dict_metadata["rows"]
    (place,) = content.storage_data.values()
    offsets = [torch.Size([40 * number, 0]) for number in range(1000)]
    rows.size = torch.Size([40 * 1000, 25])
    rows.chunks = [ChunkStorageMetadata(offset, torch.Size([40, 25])) for offset in offsets]
    content.storage_data = {MetadataIndex("rows", offset): place for offset in offsets}


def overlap(content: Any) -> None:
    (index,) = content.storage_data
    place = content.storage_data[index]
    content.storage_data[MetadataIndex("other")] = _StorageInfo(place.relative_path, place.offset + 1, 5)


@pytest.mark.parametrize(
    "change",
    [
        *(elsewhere(path) for path in ("../secret", "/etc/passwd", "/dev/zero", "none")),
        *(enlarge, encode, beyond, rename, no_tensor, half, repeat, overlap),
    ],
)
def test_facts_that_are_not_true_are_refused(change: Callable[[Any], None], checkpoint: Path) -> None:
    """Other files, sizes that no shard has, encodings, missing tensors and chunks, the same bytes twice."""
    content = metadata(checkpoint)
    change(content)
    forge(checkpoint, ".metadata", pickle.dumps(content))
    with pytest.raises(CheckpointError, match=str(checkpoint)):
        ShardedCheckpointIO().load_checkpoint(checkpoint)


def compressed(content: bytes) -> bytes:
    """The same archive with its entries compressed, which torch reads as well."""
    result = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(content)) as old,
        zipfile.ZipFile(result, "w", zipfile.ZIP_DEFLATED) as new,
    ):
        for entry in old.infolist():
            new.writestr(entry.filename, old.read(entry))
    return result.getvalue()


def test_a_shard_that_unpacks_to_more_than_its_size_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    """A file of 20 KB would fill 20 MB: torch reads compressed archives."""
    plain = io.BytesIO()
    torch.save({"content": {"x": torch.zeros(5_000_000)}, "places": {}}, plain)
    bomb = compressed(plain.getvalue())
    assert len(bomb) < 30_000
    assert torch.load(io.BytesIO(bomb), weights_only=True)["content"]["x"].numel() == 5_000_000
    forge(checkpoint, "shard-00000.pt", bomb)
    with pytest.raises(CheckpointError, match=r"shard-00000\.pt is not read: it is compressed"):
        ShardedCheckpointIO().load_checkpoint(checkpoint)
    forge_file(tmp_path / "file", bomb)
    with pytest.raises(CheckpointError, match="file is not read: it is compressed"):
        TorchCheckpointIO().load_checkpoint(tmp_path / "file")


def forge_file(path: Path, content: bytes) -> None:
    """Write a checkpoint of one file with this content and the right checksums."""
    path.write_bytes(content)
    Manifest(files={"content": FileRecord.of(path)}, checkpoint_io="torch").write(path)


def test_a_file_that_holds_code_is_refused(tmp_path: Path) -> None:
    """The sums are right, as whoever writes the file can make them."""
    content = io.BytesIO()
    torch.save({"x": Attack(tmp_path / "ran")}, content)
    forge_file(tmp_path / "file", content.getvalue())
    with pytest.raises(CheckpointError, match="file cannot be loaded"):
        TorchCheckpointIO().load_checkpoint(tmp_path / "file")
    assert not (tmp_path / "ran").exists()


def test_a_compressed_shard_of_a_tensor_is_refused(checkpoint: Path) -> None:
    """The same for each part of a file."""
    bomb = compressed((checkpoint / "__0_0.distcp").read_bytes())
    content = metadata(checkpoint)
    content.state_dict_metadata["rows"] = TensorStorageMetadata(TensorProperties(torch.int8), torch.Size([1]), [])
    for place in content.storage_data.values():
        place.length = len(bomb)
    content.state_dict_metadata["rows"].chunks = metadata(checkpoint).state_dict_metadata["rows"].chunks
    content.state_dict_metadata["rows"].size = torch.Size([40, 25])
    (checkpoint / "__0_0.distcp").write_bytes(bomb)
    forge(checkpoint, ".metadata", pickle.dumps(content))
    with pytest.raises(CheckpointError, match=r"__0_0\.distcp is not read: it is compressed|tensors take"):
        ShardedCheckpointIO().load_checkpoint(checkpoint)


def test_engines_files_are_checked_before_an_engine_reads_them(tmp_path: Path) -> None:
    """As of DeepSpeed, which loads them with ``weights_only=False``: what they name, without unpickling it."""
    for number, content in enumerate(
        [{"module": {"w": torch.ones(3)}, "shapes": [OrderedDict(w=torch.Size([3]))]}, {"scaler": Fraction(1, 2)}]
    ):
        torch.save(content, tmp_path / f"{number}.pt")
    refuse_code(tmp_path / "0.pt")
    with pytest.raises(CheckpointError, match=r"1\.pt is not read: it contains fractions\.Fraction"):
        refuse_code(tmp_path / "1.pt")
    refuse_code(tmp_path / "1.pt", {"fractions.Fraction"})
    for protocol in (2, 4, 5):
        torch.save({"x": Attack(tmp_path / "proof")}, tmp_path / "attack.pt", pickle_protocol=protocol)
        with pytest.raises(CheckpointError, match=r"attack\.pt"):
            refuse_code(tmp_path / "attack.pt", {"fractions.Fraction"})
    (tmp_path / "plain.pt").write_bytes(pickle.dumps(Attack(tmp_path / "proof")))
    torch.save(Attack(tmp_path / "proof"), tmp_path / "legacy.pt", _use_new_zipfile_serialization=False)
    for name in ("plain.pt", "legacy.pt"):
        with pytest.raises(CheckpointError, match=r"not a file that torch\.save has written"):
            refuse_code(tmp_path / name)
    assert not (tmp_path / "proof").exists()


@pytest.mark.parametrize("name", [".metadata", "shard-00000.pt", "__0_0.distcp"])
def test_a_file_that_the_manifest_does_not_list_is_not_read(name: str, checkpoint: Path) -> None:
    """No one has checked it: each reader names it, also one that a plugin's CheckpointIO calls."""
    manifest = Manifest.read(checkpoint)
    files = {other: record for other, record in manifest.files.items() if other != name}
    Manifest(files=files, checkpoint_io=manifest.checkpoint_io).write(checkpoint)
    readers: list[Callable[[Path], Any]] = [*READERS]
    if name == SHARD:
        readers.append(lambda path: read_shard(path, "cpu"))
    for read in readers:
        with pytest.raises(CheckpointError, match=rf"does not list {name}|'{name}', which is not a file of this"):
            read(checkpoint)


@pytest.mark.parametrize("is_link", [False, True])
def test_gradients_that_the_manifest_does_not_list_are_not_read(
    is_link: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As if they were not there, which a warning says; a link to them is an error."""

    def run(runtime: core.Runtime) -> torch.nn.Module:
        model: torch.nn.Module = runtime.prepare(torch.nn.Linear(2, 1))
        return model

    path, name = tmp_path / "state", "gradients-00000.pt"
    with core.Runtime(accelerator="cpu", devices=1, gradient_accumulation_steps=2) as runtime:
        model = run(runtime)
        with runtime.accumulate(model):
            runtime.backward(model(torch.ones(1, 2)).sum())
        runtime.save_state(path)
    manifest = Manifest.read(path)
    if is_link:
        (path / name).rename(tmp_path / name)
        (path / name).symlink_to(tmp_path / name)
    else:
        files = {other: record for other, record in manifest.files.items() if other != name}
        Manifest(files=files, checkpoint_io=manifest.checkpoint_io).write(path)
    with core.Runtime(accelerator="cpu", devices=1, gradient_accumulation_steps=2) as runtime:
        model = run(runtime)
        if is_link:
            with pytest.raises(CheckpointError, match=rf"{name} is a link"):
                runtime.load_state(path)
        else:
            runtime.load_state(path)
            assert "its accumulated gradients are not in the checkpoint" in caplog.text
        assert all(parameter.grad is None for parameter in model.parameters())
