"""The scan of installed metadata: the answer of importlib.metadata, in a fixed order, and no exception."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import importlib_metadata  # noqa: F401  puts a finder on sys.meta_path, which must outlive the test that first needs it
import pytest
from installing import environment, files_of, lay_down

from core.discovery.scan import Row, scan
from core.kinds import CLASS_KINDS, COMMAND, COMMANDS, KINDS

GROUPS = {kind.group: kind.name for kind in (*KINDS.values(), *CLASS_KINDS.values())} | {COMMANDS: COMMAND}


def by_scan() -> set[tuple[str, str, str, str]]:
    return {(row.kind, row.name, row.module, row.version) for row in scan()}


def by_importlib() -> set[tuple[str, str, str, str]]:
    return {
        (GROUPS[entry.group], entry.name, entry.value, entry.dist.version if entry.dist else "")
        for group in GROUPS
        for entry in importlib.metadata.entry_points(group=group)
    }


def acme(version: str = "1.2", name: str = "acme") -> dict[str, str]:
    return files_of(f"torch-hal-{name}", version, f"[core.accelerators]\n{name} = torch_hal_{name}.plugin\n")


def rows_of(distribution: str, path: list[str] | None = None) -> list[Row]:
    return [row for row in scan(path) if row.distribution == distribution]


def test_agrees_with_importlib_here() -> None:
    """In the environment that the tests run in, the scan finds what entry_points() finds."""
    assert by_scan() == by_importlib()
    found = {row[:3] for row in by_scan()}
    assert {("accelerator", "cpu", "torch_hal.builtin"), ("logger", "csv", "torch_hal.loggers:CSVLogger")} <= found


ODD_ENTRY_POINTS = """\
# a comment
[console_scripts]
tool = torch_hal_odd.cli:main

  [core.accelerators]
spaced   =   torch_hal_odd.plugin
; = torch_hal_odd.plugin
with space=torch_hal_odd.plugin
#commented = torch_hal_odd.plugin
[core.strategies]\r
crlf = torch_hal_odd.plugin\r
[core.accelerators.more]
not_ours = torch_hal_odd.plugin
[core.precisions]
"""


def test_agrees_with_importlib_on_odd_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Comments, blanks, other groups, line ends: the scan reads entry_points.txt as importlib does."""
    lay_down(tmp_path, files_of("Torch_HAL.odd", "2.0", ODD_ENTRY_POINTS))
    monkeypatch.syspath_prepend(tmp_path)
    assert by_scan() == by_importlib()
    assert {row.name for row in rows_of("Torch_HAL.odd")} == {"spaced", ";", "with space", "crlf"}


def test_earlier_path_entry_shadows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two installations of one distribution the first on sys.path counts, even if it declares no backend."""
    first = lay_down(tmp_path / "first", {**acme("1.0"), **files_of("Torch.Hal_Silent", "1", "[console_scripts]\n")})
    second = lay_down(tmp_path / "second", {**acme("2.0"), **acme("3.0", "silent")})
    monkeypatch.setattr(sys, "path", [str(first), str(second), str(tmp_path / "absent"), *sys.path])
    assert by_scan() == by_importlib()
    assert [row.version for row in rows_of("torch-hal-acme")] == ["1.0"]
    assert rows_of("torch-hal-silent") == []


def test_reads_egg_info(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Old forms of metadata are read as importlib reads them."""
    entry_points = "[core.accelerators]\nold = torch_hal_old.plugin\n"
    headers = "Metadata-Version: 1.1\nName: torch-hal-old\nVersion: 0.9\n"
    lay_down(
        tmp_path, {"torch_hal_old.egg-info/PKG-INFO": headers, "torch_hal_old.egg-info/entry_points.txt": entry_points}
    )
    egg = tmp_path / "torch_hal_egg-3.0-py3.egg"
    headers = headers.replace("old", "egg").replace("0.9", "3.0")
    lay_down(egg, {"EGG-INFO/PKG-INFO": headers, "EGG-INFO/entry_points.txt": entry_points.replace("old", "egg")})
    lay_down(tmp_path, {"torch_hal_file-1.0.egg-info": headers.replace("egg", "file")})
    monkeypatch.setattr(sys, "path", [str(tmp_path), str(egg), *sys.path])
    assert by_scan() == by_importlib()
    assert {("old", "0.9"), ("egg", "3.0")} <= {row[1::2] for row in by_scan()}


def test_reads_zip_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A zip file on sys.path is served, in its turn among the other entries."""
    archive = tmp_path / "site.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for name, content in {**acme("1.0"), **acme("1.0", "zipped")}.items():
            file.writestr(name, content)
    directory = lay_down(tmp_path / "site", acme("2.0"))
    monkeypatch.setattr(sys, "path", [str(directory), str(archive), *sys.path])
    assert by_scan() == by_importlib()
    assert [row.version for row in rows_of("torch-hal-acme")] == ["2.0"]
    assert [row.requires for row in rows_of("torch-hal-zipped")] == [("torch-hal>=0.1,<1",)]


class OtherFinder:
    """What another tool puts on sys.meta_path."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        return None

    def find_distributions(self, context: object = None) -> Iterator[importlib.metadata.Distribution]:
        for info in sorted(self.directory.glob("*.dist-info")):
            yield importlib.metadata.PathDistribution(info)


def test_asks_other_finders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Distributions that only another finder of sys.meta_path knows are found, and shadow what comes after it."""
    hidden = lay_down(tmp_path / "hidden", {**acme("1.0"), **acme("1.0", "hidden")})
    visible = lay_down(tmp_path / "visible", acme("2.0"))
    monkeypatch.syspath_prepend(visible)
    monkeypatch.setattr(sys, "meta_path", [OtherFinder(hidden), *sys.meta_path])
    assert by_scan() == by_importlib()
    assert [row.version for row in rows_of("torch-hal-acme")] == ["1.0"]


def test_broken_finder_hides_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Another tool's finder that raises is logged, and the path is searched all the same."""
    monkeypatch.syspath_prepend(lay_down(tmp_path, acme()))
    finder = OtherFinder(tmp_path)
    monkeypatch.setattr(finder, "find_distributions", lambda context: 1 / 0)
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    assert [row.state for row in rows_of("torch-hal-acme")] == ["installed"]
    assert "cannot list its distributions" in caplog.text


def test_path_is_searched_without_any_finder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no finder of sys.meta_path says that it finds distributions, the path is searched all the same."""
    monkeypatch.setattr(sys, "meta_path", [])
    assert [row.state for row in rows_of("torch-hal-acme", [str(lay_down(tmp_path, acme()))])] == ["installed"]


def test_order_is_not_the_file_systems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are sorted by kind, name and distribution, whatever order the directory lists its files in."""
    for name in ("zeta", "beta", "alpha"):
        lay_down(tmp_path, acme(name=name))
    lay_down(tmp_path, files_of("another", "1", "[core.accelerators]\nzeta = a\n[core.strategies]\naa = a\n"))
    listdir = os.listdir
    monkeypatch.setattr(os, "listdir", lambda path: sorted(listdir(path), reverse=True))
    backwards = [repr(row) for row in scan([str(tmp_path)]) if not row.is_core]
    monkeypatch.setattr(os, "listdir", lambda path: sorted(listdir(path)))
    assert backwards == [repr(row) for row in scan([str(tmp_path)]) if not row.is_core]
    assert [row.split("'")[1] for row in backwards] == ["alpha", "beta", "zeta", "zeta", "aa"]


METADATA = b"Metadata-Version: 2.1\nName: torch-hal-acme\nVersion: 1.2\nRequires-Dist: torch-hal>=0.1\n\ntext \xff\n"
ENTRY_POINTS = b"[core.accelerators]\nacme = torch_hal_acme.plugin\n"


@pytest.mark.parametrize(
    ("entry_points", "metadata", "reason"),
    [
        (ENTRY_POINTS + b"# \xff", METADATA, "entry_points.txt is not UTF-8: byte 0xff at offset 51"),
        (ENTRY_POINTS, METADATA.replace(b"acme", b"\xe4cme"), "Name in METADATA is not UTF-8: byte 0xe4"),
        (ENTRY_POINTS, METADATA.replace(b"1.2", b"\xff"), "Version in METADATA is not UTF-8"),
        (ENTRY_POINTS, METADATA.replace(b"Name:", b"Nome:"), "its METADATA has no name"),
        (ENTRY_POINTS, METADATA.replace(b"Version: 1.2\n", b""), "its METADATA has no version"),
        (ENTRY_POINTS, METADATA.replace(b"acme", b"other"), "its METADATA says that it is 'torch-hal-other'"),
        (ENTRY_POINTS, None, "its METADATA is missing"),
        (b"[core.accelerators]\n= torch_hal_acme.plugin\n", METADATA, "declares the empty name ''"),
        (b"[core.accelerators]\na\x07c = torch_hal_acme.plugin\n", METADATA, "declares the unprintable name 'a\\x07c'"),
        (b"[core.accelerators]\nacme\n", METADATA, "has the line 'acme'. Valid: <name> = <package.module>"),
        (b"[core.accelerators]\nacme =\n", METADATA, "gives 'acme' the value '', which is not a module name"),
        (b"[core.accelerators]\nacme = a:b\n", METADATA, "gives 'acme' the value 'a:b', which is not a module name"),
        (ENTRY_POINTS + b"acme = other\n", METADATA, "declares 'acme' twice"),
    ],
)
def test_damaged_metadata_is_a_row(
    entry_points: bytes, metadata: bytes | None, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Metadata that cannot be used becomes a failed row with the reason, and hides no other distribution."""
    info = "torch_hal_acme-1.2.dist-info"
    lay_down(tmp_path, {f"{info}/entry_points.txt": entry_points, **acme(name="fine")})
    if metadata is not None:
        lay_down(tmp_path, {f"{info}/METADATA": metadata})
    (row,) = (row for row in scan([str(tmp_path)]) if row.location.endswith(info))
    assert row.state == "failed"
    assert reason in row.reason
    assert [row.state for row in rows_of("torch-hal-fine", [str(tmp_path)])] == ["installed"]


def test_undecodable_bytes_elsewhere_do_no_harm(tmp_path: Path) -> None:
    """Only what is needed of METADATA has to be readable: a description in another encoding is not a fault."""
    info = "torch_hal_acme-1.2.dist-info"
    lay_down(tmp_path, {f"{info}/entry_points.txt": ENTRY_POINTS, f"{info}/METADATA": METADATA})
    (row,) = rows_of("torch-hal-acme", [str(tmp_path)])
    assert (row.state, row.version, row.requires) == ("installed", "1.2", ("torch-hal>=0.1",))


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_description_is_no_header(line_end: str, tmp_path: Path) -> None:
    """What looks like a requirement in the description below the headers is none."""
    files = acme()
    files["torch_hal_acme-1.2.dist-info/METADATA"] += "Requires-Dist: torch-hal>=99\nVersion: 7\n"
    lay_down(tmp_path, {name: content.replace("\n", line_end) for name, content in files.items()})
    (row,) = rows_of("torch-hal-acme", [str(tmp_path)])
    assert (row.version, row.requires) == ("1.2", ("torch-hal>=0.1,<1",))


def test_two_versions_in_one_directory(tmp_path: Path) -> None:
    """A distribution with two versions in one directory is a failed row: whose files lie there is unknown."""
    lay_down(tmp_path, {**acme("1.0"), **acme("1.1")})
    (row,) = rows_of("torch-hal-acme", [str(tmp_path)])
    assert row.state == "failed"
    assert "installed twice" in row.reason
    assert "torch_hal_acme-1.1.dist-info" in row.reason


def test_what_pip_left_behind_is_passed_over(tmp_path: Path) -> None:
    """A directory that pip renamed and could not remove is not a second claimant."""
    leftover = {name.replace("torch_hal", "~orch_hal", 1): content for name, content in acme("1.0").items()}
    lay_down(tmp_path, {**acme("1.1"), **leftover})
    rows = [row for row in scan([str(tmp_path)]) if not row.is_core]
    assert [(row.version, row.state) for row in rows] == [("1.1", "installed")]


def test_only_requirements_on_core_count(tmp_path: Path) -> None:
    """Every requirement on torch-hal is kept in whatever spelling, and none on a distribution that only begins so."""
    needs = ["torch-hal-base>=3", "Torch_HAL (>=0.1)", "torch.hal<1; extra == 'x'", "torch>=2"]
    lay_down(tmp_path, files_of("torch-hal-acme", "1", "[core.accelerators]\nacme = a\n", needs))
    assert rows_of("torch-hal-acme", [str(tmp_path)])[0].requires == ("Torch_HAL (>=0.1)", "torch.hal<1; extra == 'x'")


@pytest.fixture
def source_tree(tmp_path: Path) -> Path:
    root = Path(__file__).parents[2]
    shutil.copytree(root / "core", tmp_path / "core", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "torch_hal").symlink_to("core")
    shutil.copy(root / "pyproject.toml", tmp_path)
    return tmp_path


def test_source_tree_that_is_not_installed(source_tree: Path) -> None:
    """Run from a source tree without any installed package, core lists its own backends and version."""
    done = subprocess.run(
        [sys.executable, "-S", "-m", "core.list"],
        cwd=source_tree,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    own = {row.name for row in scan() if row.is_core and row.kind in KINDS}
    assert own <= set(done.stdout.split())
