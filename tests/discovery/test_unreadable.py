"""Metadata that ``import torch`` fails of: core names the file before torch is imported."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest
from installing import environment, lay_down, run_list

from core.discovery.metadata import check_before_torch, unreadable
from core.errors import ConfigurationError

GOOD = "Metadata-Version: 2.1\nName: stranger\nVersion: 1.0\n\n"
SITES: dict[str, tuple[str, bytes, str]] = {
    "undecodable": ("stranger-1.0.dist-info/entry_points.txt", b"[x]\na = b\xff\n", "byte 0xff at offset 9"),
    "no equals sign": ("stranger-1.0.dist-info/entry_points.txt", b"[x]\na b\n", "its line 'a b' has no '='"),
    "empty section": ("stranger-1.0.dist-info/entry_points.txt", b"[]\na b\n", "its line 'a b' has no '='"),
    "egg": ("stranger.egg-info/entry_points.txt", b"\xfe[x]\n", "byte 0xfe at offset 0"),
    "no name": ("-1.0.dist-info/METADATA", b"Name: str\xffnger\n", "byte 0xff at offset 9"),
}
HARMLESS: dict[str, tuple[str, bytes]] = {
    "a comment": ("stranger-1.0.dist-info/entry_points.txt", b"# comment\n[x]\n#a b\na=b\n"),
    "before any section": ("stranger-1.0.dist-info/entry_points.txt", b"a b\n[x]\n"),
    "empty": ("stranger-1.0.dist-info/entry_points.txt", b""),
    "not ASCII": ("stranger-1.0.dist-info/entry_points.txt", "[x]\nä = b\n".encode()),
    "metadata": ("stranger-1.0.dist-info/METADATA", b"Name: str\xffnger\n"),
}


def site_with(directory: Path, file: str, content: bytes) -> Path:
    folder = file.partition("/")[0]
    return lay_down(directory, {f"{folder}/METADATA": GOOD, f"{folder}/entry_points.txt": "[x]\n", file: content})


@pytest.mark.parametrize("site", SITES)
def test_what_importlib_fails_to_read_is_named(site: str, tmp_path: Path) -> None:
    """The one file that makes ``importlib.metadata.entry_points()`` raise is found, with the place in it."""
    file, content, problem = SITES[site]
    site_with(tmp_path, file, content)
    with pytest.raises((UnicodeDecodeError, TypeError)):
        [list(found.entry_points) for found in importlib.metadata.distributions(path=[str(tmp_path)]) if found.name]
    (damage,) = unreadable([str(tmp_path)])
    assert (damage.file, damage.breaks_torch) == (str(tmp_path / file), True)
    assert problem in damage.problem


@pytest.mark.parametrize("site", HARMLESS)
def test_what_importlib_reads_is_not_named(site: str, tmp_path: Path) -> None:
    """What ``importlib.metadata.entry_points()`` reads, or does not read, is no damage to torch."""
    site_with(tmp_path, *HARMLESS[site])
    for found in importlib.metadata.distributions(path=[str(tmp_path)]):
        list(found.entry_points)
    assert unreadable([str(tmp_path)]) == []


def test_shadowed_distribution_is_not_read(tmp_path: Path) -> None:
    """As importlib, it reads a distribution that is found twice only where it is found first."""
    good = lay_down(tmp_path / "good", {"stranger-1.0.dist-info/entry_points.txt": "[x]\na = b\n"})
    bad = site_with(tmp_path / "bad", *SITES["undecodable"][:2])
    assert unreadable([str(good), str(bad)]) == []
    assert len(unreadable([str(bad), str(good)])) == 1


def test_all_metadata_on_request(tmp_path: Path) -> None:
    """An undecodable METADATA breaks other tools, not torch: it is found on request, and says so."""
    site_with(tmp_path, *HARMLESS["metadata"])
    (damage,) = unreadable([str(tmp_path)], metadata=True)
    assert not damage.breaks_torch
    assert damage.file == str(tmp_path / "stranger-1.0.dist-info/METADATA")
    assert "torch" not in str(damage).removeprefix(damage.file).lower().replace("torch-hal", "")


@pytest.mark.parametrize("code", ["from core import Trainer", "import core.explain; core.explain.main([])"])
def test_core_names_the_file_before_torch_is_imported(code: str, tmp_path: Path) -> None:
    """``import torch`` says only that a byte cannot be decoded; core names the file and what to do, and is quick."""
    file, content, _ = SITES["undecodable"]
    environ = environment(site_with(tmp_path, file, content))
    code = f"import sys\ntry:\n    {code}\nfinally:\n    sys.stdout.write(str('torch' in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=False)
    assert done.stdout == "False"
    assert f"ConfigurationError: {tmp_path / file} cannot be read, so that import torch fails" in done.stderr
    assert "TORCH_DEVICE_BACKEND_AUTOLOAD=0" in done.stderr


def test_nothing_to_say_where_torch_does_not_read_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where torch's autoload is off, torch works, and so does core."""
    monkeypatch.syspath_prepend(str(site_with(tmp_path, *SITES["undecodable"][:2])))
    with pytest.raises(ConfigurationError):
        check_before_torch({})
    check_before_torch({"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"})


def test_listing_names_the_file(tmp_path: Path) -> None:
    """The listing works, and warns."""
    file, content, _ = SITES["undecodable"]
    done = run_list(environ=environment(site_with(tmp_path, file, content)))
    assert done.returncode == 0
    assert str(tmp_path / file) in done.stdout.replace("\n", "")
    assert "Install its distribution again" in " ".join(done.stdout.split())
