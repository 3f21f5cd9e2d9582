"""What was learnt about plugins is kept for later runs: only the user's own file is read, and only while it is true."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from broken_kinds import KINDS, PLUGIN, Kind, write_site
from installing import lay_down

from core.discovery import plugin_answers, probe
from core.discovery.cache import Cache, fingerprint
from core.discovery.registry import Registry
from core.errors import BackendError, ConfigurationError
from core.plan import Request, resolve


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    site = lay_down(tmp_path / "site", {"vendor/__init__.py": "", "vendor/code.py": "x = 1\n"})
    monkeypatch.syspath_prepend(str(site))
    return site


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"XDG_CACHE_HOME": str(tmp_path / "cache"), "CORE_PROBE_TIMEOUT": "20"}


def file_of(environ: dict[str, str]) -> Path:
    (file,) = Path(environ["XDG_CACHE_HOME"], "torch-hal", "plugins").iterdir()
    return file


def keep(environ: dict[str, str], answer: Any = 1) -> None:
    Cache(environ).put({"key": ("vendor.code", answer)})


def kept(environ: dict[str, str], **options: Any) -> Any:
    return Cache(environ).get("key", "vendor.code", **options)


def test_answers_are_kept(site: Path, environ: dict[str, str]) -> None:
    """A later run reads what an earlier one has written; two that write at once keep both."""
    assert kept(environ) is None
    one, other = Cache(environ), Cache(environ)
    one.put({"key": ("vendor", {"a": [1]})})
    other.put({"other": ("vendor", 2)})
    assert kept(environ) == {"a": [1]}
    assert Cache(environ).get("other", "vendor") == 2


@pytest.mark.parametrize("change", ["edited", "added", "removed", "time"])
def test_answer_is_dropped_when_the_package_changes(change: str, site: Path, environ: dict[str, str]) -> None:
    """A source file of the package that is edited, added, removed or written again makes the answer void."""
    keep(environ)
    assert kept(environ) == 1
    code = site / "vendor" / "code.py"
    if change == "edited":
        code.write_text("x = 22\n")
    elif change == "added":
        (site / "vendor" / "more.py").write_text("")
    elif change == "removed":
        code.unlink()
    else:
        os.utime(code, (1, 1))
    assert kept(environ) is None


def test_answer_is_dropped_when_a_distribution_changes(site: Path, environ: dict[str, str]) -> None:
    """Another version of any distribution, on which the plugin may depend, makes all answers void."""
    (site / "acmelib-1.0.dist-info").mkdir()
    keep(environ)
    assert kept(environ) == 1
    (site / "acmelib-1.0.dist-info").rename(site / "acmelib-1.1.dist-info")
    assert kept(environ) is None


def test_answer_ages(site: Path, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer with a limit is void after it, and where the clock was put back."""
    keep(environ)
    now = time.time()
    assert kept(environ, limit=60) == 1
    for moment in (now + 61, now - 60):
        monkeypatch.setattr(time, "time", lambda moment=moment: moment)
        assert kept(environ, limit=60) is None
        assert kept(environ) == 1


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b'{"format": 1, "entries": {"key": 3}}', b"[" * 100000])
def test_damaged_file_is_no_answer(content: bytes, site: Path, environ: dict[str, str]) -> None:
    """Whatever the file holds, the run goes on as without it, and replaces it."""
    keep(environ)
    file_of(environ).write_bytes(content)
    assert kept(environ) is None
    keep(environ)
    assert kept(environ) == 1


def test_file_that_others_can_write_is_not_read(
    site: Path, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It names a module that is imported: one that another user owns or can write, or a link, is not read."""
    keep(environ)
    file = file_of(environ)
    for path in (file, file.parent):
        mode = path.stat().st_mode
        for added in (0o020, 0o002):
            path.chmod(mode | added)
            assert kept(environ) is None
        path.chmod(mode)
    assert kept(environ) == 1
    assert "another user can write it" in caplog.text
    uid = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: uid + 1)
    assert kept(environ) is None
    keep(environ, 2)
    monkeypatch.undo()
    monkeypatch.syspath_prepend(str(site))
    assert kept(environ) == 1  # and the other's file was not replaced
    file.rename(file.with_suffix(".moved"))
    file.symlink_to(file.with_suffix(".moved"))
    assert kept(environ) is None


@pytest.mark.parametrize("home", ["file", "relative", "none"])
def test_no_place_to_keep_it(home: str, site: Path, tmp_path: Path) -> None:
    """Where nothing can be written, nothing is kept, and nothing fails."""
    (tmp_path / "file").write_text("")
    environ = {"file": {"XDG_CACHE_HOME": str(tmp_path / "file")}, "relative": {"XDG_CACHE_HOME": "here"}, "none": {}}
    keep(environ[home])
    assert kept(environ[home]) is None


def test_old_files_are_removed(site: Path, environ: dict[str, str]) -> None:
    """Files of distributions that were replaced long ago do not pile up."""
    keep(environ)
    old = file_of(environ).with_name("0.json")
    old.write_text("")
    os.utime(old, (1, 1))
    keep(environ)
    assert file_of(environ).name != old.name


def test_fingerprint_imports_nothing(site: Path) -> None:
    """It is taken without running the package's code, also where there is no such package."""
    (site / "vendor" / "__init__.py").write_text("1 / 0")
    assert fingerprint("vendor.code") != fingerprint("not_installed")


# -- the registry ------------------------------------------------------------------------------------------------------


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What processes that query plugins were asked."""
    asked: list[str] = []
    ask = probe.ask

    def noted(jobs: list[dict[str, Any]], *arguments: Any, **options: Any) -> Any:
        asked.extend(job["do"] for job in jobs)
        return ask(jobs, *arguments, **options)

    monkeypatch.setattr(plugin_answers, "ask", noted)
    return asked


def test_plugin_is_asked_once(site: Path, environ: dict[str, str], started: list[str]) -> None:
    """What a plugin says is asked in one process for all plugins, and not again in later runs."""
    for name in ("one", "two"):
        write_site(site, name, Kind("", detect=None), name)
    for _ in range(2):
        assert {"one", "two"} < {spec.name for spec in Registry.read(environ).specs("accelerator")}
        assert started == ["learn", "learn"]


def test_failure_is_asked_again_where_the_user_names_it(
    site: Path, environ: dict[str, str], started: list[str]
) -> None:
    """A broken plugin costs a process once in an hour; whoever names it gets the cause of today."""
    write_site(site, "broken", KINDS["import_raises"])
    for _ in range(2):
        Registry.read(environ).specs("accelerator")
        assert started == ["learn"]
    registry = Registry.read(environ)
    registry.specs("accelerator")
    with pytest.raises(BackendError, match="no driver"):
        registry.find("accelerator", "acme")
    assert started == ["learn", "learn"]


def test_values_that_are_no_plain_data(site: Path, environ: dict[str, str]) -> None:
    """Arguments that have no form as plain data are read here, once the backend is used, and not before."""
    hook = PLUGIN.replace("priority=90", "init_args={'of': frozenset({1})}, priority=90")
    write_site(site, "odd", Kind("", hook=hook))
    registry = Registry.read(environ)
    (spec,) = registry.find("accelerator", "acme")
    assert spec.init_args == {}
    assert registry.complete(spec).init_args == {"of": frozenset({1})}


def test_core_alone_starts_no_process(monkeypatch: pytest.MonkeyPatch, environ: dict[str, str]) -> None:
    """Without plugins of others, a Plan starts no process and keeps nothing."""

    def refuse(*arguments: Any, **options: Any) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr(probe._Worker, "__init__", refuse)
    plan = resolve(Request.read(environ={**environ, "CORE_PLUGINS": "torch-hal"}, precision="bf16"))
    assert plan.precision.name == "bf16-mixed"
    assert not Path(environ["XDG_CACHE_HOME"]).exists()


@pytest.mark.parametrize("text", ["0", "-1", "soon", "nan"])
def test_time_limit_is_checked(text: str) -> None:
    """A time limit that is not a number of seconds is refused."""
    with pytest.raises(ConfigurationError, match="CORE_PROBE_TIMEOUT"):
        Registry.read({"CORE_PROBE_TIMEOUT": text})


def test_file_is_plain_json(site: Path, environ: dict[str, str]) -> None:
    """The file is JSON: reading it runs no code."""
    keep(environ, {"a": None})
    assert json.loads(file_of(environ).read_text())["entries"]["key"]["answer"] == {"a": None}
