"""Every byte and every length of a small checkpoint's every file: damage is found, or what is loaded is equal."""

from __future__ import annotations

import logging
import random
import warnings
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from python_processes import run_script

from core.checkpoints import is_committed, latest
from core.errors import CheckpointError, CoreError

from .small import IOS, is_same, save_small

MOST = 4000
"""Positions in a file, beyond which a sample is drawn."""


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Warnings of damaged checkpoints are expected, thousands of times."""
    logging.disable(logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    logging.disable(logging.NOTSET)


def damages(content: bytes, draws: int | None) -> Iterator[tuple[str, bytes]]:
    """``content`` with one byte changed, for each byte and three ways; and cut after each byte."""
    generator = random.Random(1)
    count = len(content)
    if draws is None and count <= MOST:
        places: list[int] = [*range(count)]
    else:
        places = sorted(generator.sample(range(count), min(count, draws or MOST)))
    for place in places:
        for mask in (0xFF, 1 << generator.randrange(8)):
            yield f"byte {place} ^ {mask}", content[:place] + bytes([content[place] ^ mask]) + content[place + 1 :]
        yield f"cut to {place}", content[:place]
    yield "longer", content + b"\0"


def check(name: str, folder: Path, draws: int | None) -> tuple[int, int]:
    """Damage each file; returns how much was found, and how much was harmless."""
    expected, io = save_small(name, folder / "c"), IOS[name]()
    found, harmless = 0, []
    place = folder / "c"
    for file in sorted(place.iterdir()) if place.is_dir() else [place]:
        content = file.read_bytes()
        for what, damaged in damages(content, draws):
            file.write_bytes(damaged)
            try:
                loaded: Any = io.load_checkpoint(folder / "c")
            except CheckpointError as error:
                assert str(folder) in str(error), f"{file.name}, {what}: {error}"  # noqa: PT017
                found += 1
            else:
                assert is_same(expected, loaded), f"{file.name}, {what}: loaded {loaded}"
                harmless.append(f"{file.name} {what}")
                assert file.name == "manifest.json", f"{file.name}, {what}: not found"
            if len(damaged) % 50 == 0:
                is_committed(folder / "c")
                with suppress(CoreError):
                    latest(folder)
        file.write_bytes(content)
    assert is_same(expected, io.load_checkpoint(folder / "c"))
    return found, len(harmless)


@pytest.mark.parametrize("name", ["torch", "sharded"])
def test_a_draw_of_damages(tmp_path: Path, name: str) -> None:
    """Thirty places in each file: one changed byte, or a file that is cut, never gives other values."""
    found, harmless = check(name, tmp_path, 30)
    assert found > 10 * (harmless + 1)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["torch", "sharded"])
def test_every_byte_and_every_length(tmp_path: Path, name: str) -> None:
    """Only white space of the manifest can be changed without being found: then what is loaded is equal."""
    found, harmless = check(name, tmp_path, None)
    assert found > 5000
    assert harmless < found / 50


@pytest.mark.parametrize(
    "draws", [pytest.param(3, marks=pytest.mark.slow), pytest.param(60, marks=pytest.mark.exhaustive)]
)
def test_damage_to_the_shards_of_three_processes(draws: int, tmp_path: Path) -> None:
    """Each process verifies a part of the files: what one finds is an error in all, that names the file."""
    script = Path(__file__).parent / "scripts" / "damaged_shards.py"
    outcome = run_script(script, tmp_path / "out", draws)
    assert set(outcome["said"]) == {
        "manifest.json",
        ".metadata",
        "shard-00000.pt",
        *(f"__{n}_0.distcp" for n in range(3)),
    }
    for file, cases in outcome["said"].items():
        assert len(cases) == 2 * draws + 2
        for told in cases:
            assert len(told) == 3
            assert all(file in text for text in told) or (file == "manifest.json" and told == ["equal"] * 3), told
    assert outcome["longest"] < 20
