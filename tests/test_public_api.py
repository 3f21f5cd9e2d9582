"""What users and plugins rely on, written down in ``public_api.txt``: a change of it is seen, and is never an accident.

``python tests/test_public_api.py`` writes the file.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest

from core import kinds, specs
from core.kinds import CLASS_KINDS, KINDS

ROOT = Path(__file__).parents[1]
FILE = Path(__file__).with_name("public_api.txt")
WITH_MEMBERS = {
    *(kind.base_name for kind in (*KINDS.values(), *CLASS_KINDS.values())),
    *("Callback", "DataModule", "Module", "Runtime", "Trainer"),
}
"""The classes whose members users and plugins call or override."""
LONGEST = 200
NEEDS_PACKAGES = ("core.cli",)
REMEDY = (
    "The public API is not what tests/public_api.txt says. If it is meant to change, run: "
    "python tests/test_public_api.py "
    'and follow "Versions" in docs/plugins.md: what plugins use keeps its former name for one minor version, and '
    "core.kinds.INTERFACE rises. After the first release, also write a fragment in changelog.d."
)


class Text:
    """Shown as it is, where inspect would show a repr."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def shown(value: Any) -> str:
    """A value, alike in every process and in every version of Python."""
    if isinstance(value, type) or inspect.isroutine(value):
        return str(value.__qualname__)
    text = re.sub(r"mappingproxy\((.*)\)", r"\1", re.sub(r"<(\w+\.\w+): [^>]*>", r"\1", repr(value)))
    return re.sub(r"<[\w.]*?(\w+) object at 0x\w+>", r"<\1>", text)


def typed(annotation: Any) -> str:
    """An annotation as it stands in the source."""
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


def signed(path: str, function: Any) -> Iterator[str]:
    """A name with its parameters and result, on one line; of a long one, each parameter has a line."""
    found = signature(function)
    line = f"{path}{found}"
    if len(line) <= LONGEST:
        yield line
        return
    yield f"{path}{found.replace(parameters=[])}".replace("()", "(...)")
    for one in found.parameters.values():
        star = "*, " if one.kind is one.KEYWORD_ONLY else ""
        yield f"{path.rpartition(' ')[2]}({star}{one})"


def signature(function: Any) -> inspect.Signature:
    """The signature, whose types and defaults are shown as they stand in the source."""
    found = inspect.signature(function)
    parameters = [
        one.replace(
            annotation=one.annotation if one.annotation is one.empty else Text(typed(one.annotation)),
            default=one.default if one.default is one.empty else Text(shown(one.default)),
        )
        for one in found.parameters.values()
    ]
    result = found.return_annotation
    return found.replace(
        parameters=parameters, return_annotation=result if result is found.empty else Text(typed(result))
    )


def public_modules() -> list[str]:
    """The modules and names of core in the API reference."""
    pages = "\n".join(page.read_text("utf-8") for page in (ROOT / "docs" / "api").glob("*.md"))
    entries = {"core", *re.findall(r"^::: (core\S*)", pages, re.MULTILINE)}
    return sorted(entry for entry in entries if not entry.startswith(NEEDS_PACKAGES))


def names() -> Iterator[str]:
    """Each public name of core on one line, with its signature or type; below a class, its members."""
    seen: dict[int, str] = {}
    for entry in public_modules():
        try:
            module = importlib.import_module(entry)
        except ModuleNotFoundError:  # the entry is one name of a module
            path, _, name = entry.rpartition(".")
            found = {entry: getattr(importlib.import_module(path), name)}
        else:
            found = {f"{entry}.{name}": getattr(module, name) for name in getattr(module, "__all__", ())}
        for path, value in found.items():
            first = seen.setdefault(id(value), path) if callable(value) else path
            yield from described(path, value) if first == path else [f"{path} is {first}"]


def described(path: str, value: Any) -> Iterator[str]:
    """The lines of one name."""
    if isinstance(value, type):
        if issubclass(value, specs.BackendSpec):
            yield f"class {path}"
            yield from (f"{path}({field.name}: {typed(field.type)}{given(field)})" for field in attrs.fields(value))
            return
        yield from constructor(path, value)
        if value.__name__ in WITH_MEMBERS:
            yield from members(path, value)
    elif inspect.isroutine(value):
        yield from signed(path, value)
    else:
        yield f"{path}: {type(value).__name__}"


def given(field: Any) -> str:
    """The default of a spec's field."""
    is_made = isinstance(field.default, attrs.Factory)  # type: ignore[arg-type]
    return (
        "" if field.default is attrs.NOTHING else f" = {field.default.factory() if is_made else shown(field.default)}"
    )


def constructor(path: str, cls: type[Any]) -> list[str]:
    """A class and its parameters; none for one that Python itself makes objects of, such as an exception."""
    try:
        return [*signed(f"class {path}", cls)]
    except ValueError:
        return [f"class {path}"]


def members(path: str, cls: type[Any]) -> Iterator[str]:
    """The public methods and attributes of a class, also those of its bases in core."""
    bases = [base for base in cls.__mro__ if base.__module__.partition(".")[0] in ("core", "torch_hal")]
    types = {name: hint for base in reversed(bases) for name, hint in inspect.get_annotations(base).items()}
    found = {name: value for base in reversed(bases) for name, value in vars(base).items()}
    abstract: frozenset[str] = getattr(cls, "__abstractmethods__", frozenset())
    for name in sorted({*types, *found}):
        if name.startswith("_"):
            continue
        value = found.get(name)
        function = getattr(value, "__func__", value)
        if isinstance(value, property):
            yield f"{path}.{name}: property{'' if value.fset is None else ' that can be set'}"
        elif inspect.isfunction(function):
            how = type(value).__name__ if isinstance(value, classmethod | staticmethod) else ""
            words = [*(["abstract"] if name in abstract else []), *([how] if how else []), f"{path}.{name}"]
            yield from signed(" ".join(words), function)
        else:
            default = f" = {shown(value)}" if name in found and isinstance(value, str | int | float | tuple) else ""
            yield f"{path}.{name}: {typed(types.get(name, type(value)))}{default}"


def written() -> list[str]:
    """All lines of the file."""
    groups = [f"entry points {kind.group}: hook {kind.hook}" for kind in KINDS.values()]
    groups += [f"entry points {kind.group}: a class" for kind in CLASS_KINDS.values()]
    return [f"plugin interface {kinds.INTERFACE}, from {kinds.OLDEST_INTERFACE}", *groups, *dict.fromkeys(names())]


def test_the_public_api_is_as_written() -> None:
    """Names, signatures and fields are those of the file, line by line."""
    lines = FILE.read_text("utf-8").splitlines()
    difference = [
        line
        for line in difflib.unified_diff(lines, written(), lineterm="", n=0)
        if not line.startswith(("---", "+++", "@@"))
    ]
    assert not difference, "\n".join([REMEDY, *difference])


def entries(lines: Iterable[str]) -> set[str]:
    """The names, attributes and fields that lines of the file describe, without signatures and types."""
    plain = (re.sub(r"^((abstract|class|classmethod|staticmethod) )+", "", line) for line in lines)
    return {re.split(r": | is |(?<!Spec)\(", line)[0].replace("...)", "") for line in plain}


def removed(before: Sequence[str], after: Sequence[str]) -> list[str]:
    """What is gone of an earlier release, without a rise of the oldest version of the interface that is supported."""
    oldest = [int(lines[0].rpartition(" ")[2]) for lines in (before, after)]
    return sorted(entries(before[1:]) - entries(after[1:])) if oldest[0] == oldest[1] else []


def of_the_last_release() -> list[str]:
    """The file as it was in the last release that this one's history has; empty before the first one."""
    if shutil.which("git") is None:
        return []
    options: dict[str, Any] = {"cwd": ROOT, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    tag = subprocess.run(["git", "describe", "--tags", "--abbrev=0", "--match=v*"], check=False, **options)
    if not tag.stdout:
        return []
    shown = subprocess.run(["git", "show", f"{tag.stdout.strip()}:tests/{FILE.name}"], check=True, **options)
    return str(shown.stdout).splitlines()


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("abstract core.Strategy.module_state(self) -> int", "core.Strategy.module_state"),
        ("core.Strategy.name: str = ''", "core.Strategy.name"),
        ("core.Strategy.num_peers: property", "core.Strategy.num_peers"),
        ("core.specs.StrategySpec(target: str | None = None)", "core.specs.StrategySpec(target"),
        ("core.Trainer is core.trainer.Trainer", "core.Trainer"),
        ("entry points core.precisions: hook core_precisions", "entry points core.precisions"),
    ],
)
def test_what_is_removed_raises_the_oldest_version(line: str, name: str) -> None:
    """An end of a method, an attribute, a field, a name or a group is one, unless former plugins are refused."""
    rest = ["core.Strategy.launch(self) -> None"]
    before = ["plugin interface 2, from 1", line, *rest]
    assert removed(before, ["plugin interface 3, from 1", *rest]) == [name]
    assert removed(before, ["plugin interface 3, from 2", *rest]) == []
    assert removed(before, ["plugin interface 3, from 1", line, *rest, "core.Strategy.more: int"]) == []


def test_nothing_that_was_released_is_removed() -> None:
    """What the last release had is there, or OLDEST_INTERFACE has risen, so that its plugins are not imported."""
    released = of_the_last_release()
    gone = removed(released, written()) if released else []
    assert not gone, f"{gone}: {REMEDY}"


if __name__ == "__main__":
    FILE.write_text("\n".join(written()) + "\n", "utf-8")
