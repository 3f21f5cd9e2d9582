"""``core/hints/remedies.toml``: each name stands once, is none of torch-hal's own, and its place exists."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import operator
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from installing import import_packages_from_here

import core
from core import callbacks, profilers, strategies
from core.__main__ import main
from core.commands.verbs import available_verbs
from core.discovery.registry import Registry
from core.hints import remedies as module
from core.hints.remedies import known_names
from core.kinds import KINDS
from core.runtime.prepare import wrappers
from core.utilities.lazy import lazy_names

TABLES: dict[str, Any] = tomllib.loads(Path(module.__file__).with_suffix(".toml").read_text("utf-8"))
PLACES = [(place, owner) for place in ("arguments", "attributes", "methods") for owner in TABLES[place]]


def owner_of(path: str) -> Any:
    """A class that core exports, or a method of one; ``Checkpoint`` stands for all that write checkpoints."""
    name, _, method = path.partition(".")
    homes = (core, callbacks, profilers, strategies, wrappers)
    kind = next(getattr(home, name) for home in homes if name in vars(home) or name in getattr(home, "__all__", ()))
    return operator.attrgetter(method)(kind) if method else kind


@pytest.mark.parametrize(("place", "owner"), PLACES, ids=".".join)
def test_what_has_a_remedy_is_not_there(place: str, owner: str) -> None:
    """The class or method exists, and lacks each argument, attribute or method of the table."""
    there = inspect.signature(owner_of(owner)).parameters if place == "arguments" else dir(owner_of(owner))
    for name, remedy in TABLES[place][owner].items():
        assert name not in there
        assert remedy.endswith(".")


def test_no_name_stands_twice() -> None:
    """TOML itself refuses two lines in a table; these tables are read together."""
    assert not TABLES["imports"].keys() & TABLES["elsewhere"].keys()
    assert not TABLES["methods"]["Callback"].keys() & TABLES["methods"]["Module"].keys()


OTHERWISE = {
    "cli/command_line.py": "the help of its subcommands",
    "trainer/member_checks.py": "attributes that a module has, and that cannot be assigned",
}
"""Files of core with sentences by name that are no remedies for other names."""


def test_remedies_stand_in_one_file() -> None:
    """No Python file of core has another such table: a mapping of names to sentences."""
    folder, found = Path(core.__file__).parent, set()
    for file in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            pairs = zip(node.keys, node.values, strict=True) if isinstance(node, ast.Dict) else ()
            texts = [
                str(value.value)
                for key, value in pairs
                if isinstance(key, ast.Constant) and isinstance(value, ast.Constant)
            ]
            if sum(text[:1].isupper() and text.endswith(".") for text in texts) > 1:
                found.add(file.relative_to(folder).as_posix())
    assert found == set(OTHERWISE)


@pytest.mark.parametrize("name", TABLES["elsewhere"])
def test_what_is_elsewhere_can_be_imported(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The line that the error says works."""
    find, _ = lazy_names("torch_hal.callbacks", {})
    with pytest.raises(AttributeError, match="Write: from ") as caught:
        find(name)
    line = str(caught.value).partition("Write: ")[2].rstrip(".")
    import_packages_from_here(monkeypatch)
    if "core.cli" in line:
        pytest.importorskip("jsonargparse")
    found: dict[str, Any] = {}
    exec(line, found)
    assert name in found


@pytest.mark.parametrize("name", [name for name in TABLES["imports"] if not name.startswith("_")])
def test_an_import_says_what_to_do(name: str) -> None:
    """``from core import NAME`` does, also for a function; a module of core is still imported."""
    with pytest.raises(ImportError, match=re.escape(f"core has no {name!r}. ")) as caught:
        exec(f"from core import {name}", {})
    assert str(caught.value).endswith(module.remedies("imports")[name])
    assert not importlib.util.find_spec(f"core.{name}")


@pytest.mark.parametrize(("verb", "instead"), TABLES["verbs"].items())
def test_a_verb_of_other_tools(verb: str, instead: str, capsys: pytest.CaptureFixture[str]) -> None:
    """It is none of torch-hal's; the one that the error names is."""
    verbs = {*available_verbs({}), "--help", "--version"}
    assert verb not in verbs
    assert instead in verbs
    assert main([verb]) == 2
    assert f"Did you mean {instead!r}?" in capsys.readouterr().err


@pytest.mark.parametrize("kind", TABLES["names"])
def test_a_backend_that_is_called_otherwise(kind: str) -> None:
    """No backend has the name; core or a known package has the one here."""
    own = {*Registry.read({}).names(kind), *known_names(kind)}
    assert kind in KINDS
    for name, here in TABLES["names"][kind].items():
        assert name not in own
        assert here in own
