"""Data sets and loaders of other libraries, where they are installed; and those that a library has sharded."""

from __future__ import annotations

import importlib.util
import io
import tarfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch.utils.data import DataLoader, IterableDataset

from core.data import DataSettings
from core.errors import ConfigurationError

from .loaders import Numbers, Stream, flat, gathered, prepared


def needs(package: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(importlib.util.find_spec(package) is None, reason=f"{package} is not installed")


class Position(IterableDataset[int]):
    """A stream that restores its own position."""

    def __init__(self, items: int) -> None:
        self.items, self.next, self.read = items, 0, 0

    def __iter__(self) -> Iterator[int]:
        for item in range(self.next, self.items):
            self.next, self.read = item + 1, self.read + 1
            yield item
        self.next = 0

    def state_dict(self) -> dict[str, Any]:
        return {"next": self.next}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.next = state["next"]


@needs("torchdata")
@pytest.mark.filterwarnings("ignore")  # from the library
@pytest.mark.parametrize("make", [Numbers, Stream])
@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("workers", [0, 2])
def test_stateful_data_loader(workers: int, shards: int, make: Any) -> None:
    """Is sharded and resumed like a DataLoader."""
    from torchdata.stateful_dataloader import StatefulDataLoader

    def loaders() -> Any:
        return prepared(lambda: StatefulDataLoader(make(26), 4, num_workers=workers), shards)

    assert sorted(item for step in gathered(loaders()) for item in step) == list(range(26))
    loader, resumed = loaders()[0], loaders()[0]
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    rest = [flat([batch]) for batch in batches]
    resumed.load_state_dict(state)
    assert [flat([batch]) for batch in resumed] == rest


@needs("torchdata")
@pytest.mark.filterwarnings("ignore")  # from the library
def test_use_stateful_dataloader() -> None:
    """A data set with its own state does not read again what it had read."""
    settings = DataSettings(use_stateful_dataloader=True)
    loader = prepared(lambda: DataLoader(Position(20), 4), 1, settings=settings)[0]
    batches = iter(loader)
    next(batches), next(batches)
    state = loader.state_dict()
    dataset = Position(20)
    resumed = prepared(lambda: DataLoader(dataset, 4), 1, settings=settings)[0]
    resumed.load_state_dict(state)
    assert flat(list(resumed)) == list(range(8, 20))
    assert dataset.read == 12


@pytest.mark.skipif(importlib.util.find_spec("torchdata") is not None, reason="torchdata is installed")
def test_use_stateful_dataloader_without_torchdata() -> None:
    """The error says what to install; map-style data does not need it."""
    settings = DataSettings(use_stateful_dataloader=True)
    with pytest.raises(ConfigurationError, match="pip install torchdata"):
        prepared(lambda: DataLoader(Stream(4), 4), 1, settings=settings)
    assert flat(list(prepared(lambda: DataLoader(Numbers(4), 4), 1, settings=settings)[0])) == [0, 1, 2, 3]


@needs("webdataset")
@pytest.mark.filterwarnings("ignore")  # from the library
def test_webdataset(tmp_path: Path) -> None:
    """Is sharded, unless it splits its shards among the processes itself."""
    import webdataset

    for shard in range(2):
        with tarfile.open(tmp_path / f"{shard}.tar", "w") as archive:
            for item in range(13 * shard, 13 * shard + 13):
                content = str(item).encode()
                info = tarfile.TarInfo(f"{item:04}.txt")
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))

    def make(**options: Any) -> DataLoader[Any]:
        shards = [str(tmp_path / f"{shard}.tar") for shard in range(2)]
        dataset = webdataset.WebDataset(shards, shardshuffle=False, **options).decode().to_tuple("txt")
        return DataLoader(dataset.map(lambda item: int(item[0])), 4)

    found = gathered(prepared(make, 2))
    assert [item for step in found for item in step] == list(range(26))
    for options in ({"nodesplitter": webdataset.split_by_node}, {"resampled": True}):
        loader = prepared(partial(make, **options), 2)[0]
        assert loader._share.shards == 1


class Split(Stream):
    """A stream as Hugging Face's ``split_dataset_by_node`` marks it."""

    def __init__(self, rank: int, world_size: int) -> None:
        super().__init__(8)
        self._distributed = SimpleNamespace(rank=rank, world_size=world_size)

    def __iter__(self) -> Iterator[int]:
        return iter(range(self._distributed.rank, 8, self._distributed.world_size))


def test_a_stream_that_is_split_by_node() -> None:
    """Is not sharded twice, and is refused where it is for other processes."""
    ranks = iter(range(2))
    loaders = prepared(lambda: DataLoader(Split(next(ranks), 2), 2), 2)
    assert [flat(list(loader)) for loader in loaders] == [[0, 2, 4, 6], [1, 3, 5, 7]]
    with pytest.raises(ConfigurationError, match=r"world_size=2, rank=0\): this is process 0 of 3"):
        prepared(lambda: DataLoader(Split(0, 2), 2), 3)
