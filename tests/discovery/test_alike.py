"""Names and distributions that are easily confused are told: equal priorities, other alphabets, two versions."""

from __future__ import annotations

from pathlib import Path

import pytest
from broken_kinds import ACCELERATOR, ONE, Kind, write_site
from installing import environment, files_of, lay_down, run_list

from core.discovery.registry import Registry
from core.discovery.selection import survey
from core.errors import BackendError
from core.plan import Request, resolve


def warnings_of(*path: Path) -> list[str]:
    return [text for text in survey({}, [str(entry) for entry in path]).warnings if "not installed" not in text]


def test_name_in_another_alphabet_is_told(tmp_path: Path) -> None:
    """A name that reads as another is listed with the letter that differs and how to deny it."""
    lay_down(tmp_path, files_of("torch-hal-gpu", "2.0", "[core.accelerators]\ngpu = a\n[core.strategies]\ngpu = a\n"))
    lay_down(tmp_path, files_of("evil", "1.0", "[core.accelerators]\ngр\u03c5 = a\n"))  # noqa: RUF001
    done = run_list(environ=environment(tmp_path))
    assert done.returncode == 0
    text = " ".join(done.stdout.split())
    assert "of evil 1.0 looks like 'gpu' of torch-hal-gpu 2.0, and is another" in text
    assert "U+0440 CYRILLIC SMALL LETTER ER" in text
    assert "CORE_PLUGINS=-evil" in text


def test_names_in_another_alphabet_alone_are_fine(tmp_path: Path) -> None:
    """A name that is not ASCII is no cause for a warning by itself."""
    lay_down(tmp_path, files_of("torch-hal-x", "2.0", "[core.accelerators]\nбайкал = a\n"))  # noqa: RUF001
    assert warnings_of(tmp_path) == []


def test_shadowed_version_is_told(tmp_path: Path) -> None:
    """A plugin that a later entry of the path has in another version is used once, and the other is told."""
    for folder, version in (("first", "1.0"), ("second", "2.0")):
        lay_down(tmp_path / folder, files_of("torch-hal-acme", version, "[core.accelerators]\nacme = a\n"))
        lay_down(tmp_path / folder, files_of("unrelated", version, "[console_scripts]\nacme = a\n"))
    first, second = tmp_path / "first", tmp_path / "second"
    (warning,) = warnings_of(first, second)
    assert warning.startswith("torch-hal-acme is installed twice: ")
    assert warning.index(str(first)) < warning.index(str(second))
    (tmp_path / "link").symlink_to(first)
    assert warnings_of(first, tmp_path / "link") == []


@pytest.fixture
def tie(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Two accelerators that are present with the same priority; the environment variables."""
    for name in ("borea", "acme"):
        write_site(tmp_path / "site", name, Kind("", accelerator=ACCELERATOR, detect=ONE), name)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    return {"XDG_CACHE_HOME": str(tmp_path / "cache")}


def test_equal_priority_is_told(tie: dict[str, str], caplog: pytest.LogCaptureFixture) -> None:
    """Where only the name has decided, one line says which is used, which is not, and how to decide."""
    assert resolve(Request.read(environ=tie)).accelerator.name == "acme"
    (line,) = [record.getMessage() for record in caplog.records if "same priority" in record.getMessage()]
    assert line.startswith("accelerator 'acme' is used; 'borea' has the same priority (90)")
    caplog.clear()
    decided = {**tie, "CORE_PLUGINS": "-acme"}
    assert f"CORE_PLUGINS={decided['CORE_PLUGINS']}" in line
    assert resolve(Request.read(environ=decided)).accelerator.name == "borea"
    assert resolve(Request.read(environ={**tie, "CORE_ACCELERATOR": "borea"})).accelerator.name == "borea"
    assert "same priority" not in caplog.text


def test_broken_name_is_not_called_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error lists at most ten valid names, and the one that cannot be used is not among them."""
    write_site(tmp_path / "site", "acme", Kind("", detect="def count():\n    return 0\n", accelerator=""))
    names = "".join(f"acme{number} = torch_hal_many.plugin\n" for number in range(30))
    lay_down(tmp_path / "site", files_of("torch-hal-many", "1.0", f"[core.accelerators]\n{names}"))
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    environ = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    with pytest.raises(BackendError) as caught:
        resolve(Request.read(environ=environ, accelerator="acme"))
    valid = str(caught.value).rpartition("Valid:")[2]
    assert "'acme'" not in valid
    assert valid.count("'acme") == 10
    assert "more" in valid
    assert "acme" in Registry.read(environ).names("accelerator")
