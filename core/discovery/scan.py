"""The installed backends, loggers and profilers, read from metadata files alone: no plugin is imported.

The result is that of ``importlib.metadata.entry_points()`` for the groups of :mod:`core.kinds`: an earlier entry of
``sys.path`` shadows a later one. But the order does not depend on the file system, and damaged metadata becomes a
row instead of an exception. Path entries that are not directories, and finders of other tools, are read through
``importlib_metadata``.
"""

from __future__ import annotations

import os
import sys

from ..kinds import CLASS_KINDS, COMMAND, COMMANDS, INTERFACES, KINDS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

CORE = "torch-hal"
"""The name of this distribution."""

_KIND_OF_GROUP = {kind.group: kind.name for kind in (*KINDS.values(), *CLASS_KINDS.values())} | {COMMANDS: COMMAND}
_ORDER_OF_KIND = {name: position for position, name in enumerate(_KIND_OF_GROUP.values())}
_GROUPS = _KIND_OF_GROUP | {INTERFACES: INTERFACES}
_NEEDS = {COMMAND: "package.module:function", **dict.fromkeys(CLASS_KINDS, "package.module:Class")}
"""What an entry point names; that of another kind names a module."""
_OPEN = os.O_RDONLY | getattr(os, "O_BINARY", 0)


class Row:
    """One backend that was found, and its state."""

    __slots__ = (
        "aliases",
        "detail",
        "devices",
        "distribution",
        "interfaces",
        "is_core",
        "kind",
        "location",
        "module",
        "name",
        "reason",
        "requires",
        "seconds",
        "state",
        "version",
    )

    def __init__(
        self,
        *,
        kind: str,
        name: str,
        distribution: str,
        version: str = "",
        module: str = "",
        requires: tuple[str, ...] = (),
        interfaces: tuple[int, ...] = (),
        location: str = "",
        state: str = "installed",
        reason: str = "",
    ) -> None:
        self.kind = kind
        """A key of :data:`core.kinds.KINDS` or :data:`core.kinds.CLASS_KINDS`."""
        self.name = name
        """The backend's name: the entry point's key."""
        self.distribution = distribution
        """The distribution's name as it declares it; ``this process`` for a backend that was registered in code."""
        self.is_core = distribution == CORE or normalized(distribution) == CORE
        """Whether it is one of core's own backends."""
        self.version = version
        """The distribution's version."""
        self.module = module
        """The entry point's value: the module that implements the hooks, or ``module:Class``."""
        self.requires = requires
        """The distribution's requirements on ``torch-hal``, as it declares them."""
        self.interfaces = interfaces
        """The versions of the interface that the distribution says it was written for, in ascending order."""
        self.location = location
        """The folder of its metadata."""
        self.state = state
        """``installed``, ``denied``, ``incompatible``, ``conflict`` or ``failed``; after probing, ``available``
        or ``unavailable``."""
        self.reason = reason
        """Why it has this state."""
        self.aliases: tuple[str, ...] | None = None
        """Its further names; ``None`` until its plugin is activated."""
        self.devices: int | None = None
        """The number of devices that a probe found."""
        self.seconds: float | None = None
        """How long the probe took."""
        self.detail = ""
        """The traceback of a failure, and the plugin's printed output."""

    @property
    def origin(self) -> str:
        """Distribution and version, as messages show them."""
        return f"{self.distribution} {self.version}".rstrip()

    def to_dict(self) -> dict[str, Any]:
        """All attributes as plain data."""
        return {slot: getattr(self, slot) for slot in self.__slots__ if slot != "is_core"}

    @classmethod
    def from_dict(cls, facts: Mapping[str, Any]) -> Row:
        """The row with the attributes that :meth:`to_dict` returned; lists are taken for tuples, as JSON needs."""
        row = cls(kind=facts["kind"], name=facts["name"], distribution=facts["distribution"])
        row.update(facts)
        return row

    def update(self, facts: Mapping[str, Any]) -> None:
        """Set the attributes in ``facts``; lists become tuples."""
        for slot, value in facts.items():
            setattr(self, slot, tuple(value) if isinstance(value, list) else value)

    def __repr__(self) -> str:
        return f"<{self.kind} {self.name!r} of {self.origin}: {self.state}>"


class Damage:
    """A metadata file that cannot be read."""

    __slots__ = ("breaks_torch", "file", "problem")

    def __init__(self, file: str, problem: str, *, breaks_torch: bool = True) -> None:
        self.file = file
        """Its path."""
        self.problem = problem
        """What is wrong with it, and where."""
        self.breaks_torch = breaks_torch
        """Whether ``import torch`` fails of it. torch reads the entry points of all distributions."""

    @property
    def remedy(self) -> str:
        """What to do about it."""
        uninstall = f"Install its distribution again, or remove {os.path.dirname(self.file)}"
        return f"{uninstall}, or set TORCH_DEVICE_BACKEND_AUTOLOAD=0." if self.breaks_torch else f"{uninstall}."

    def __str__(self) -> str:
        effect = ", so that import torch fails" if self.breaks_torch else ""
        return f"{self.file} cannot be read{effect}: {self.problem}. {self.remedy}"


def normalized(distribution: str) -> str:
    """A distribution's normalized name: equal for equivalent spellings."""
    name = distribution.lower().replace("_", "-").replace(".", "-")
    while "--" in name:
        name = name.replace("--", "-")
    return name


def scan(
    path: Sequence[str] | None = None,
    damaged: list[Damage] | None = None,
    shadowed: list[str] | None = None,
) -> list[Row]:
    """Every backend, logger and profiler that installed metadata declares.

    Args:
        path: The folders to search; by default ``sys.path``.
        shadowed: Gets a warning for each plugin distribution that an earlier entry of the path hides.
        damaged: Gets the files of all distributions, plugins or not, that ``importlib.metadata`` fails to read.

    Returns:
        Rows ordered by kind, name, distribution; rows with unusable metadata have the state ``failed``.
    """
    path = sys.path if path is None else path
    damaged = [] if damaged is None else damaged
    shadowed = [] if shadowed is None else shadowed
    rows: list[Row] = []
    seen: dict[str, str] = {}
    for finder in _finders():
        if finder is not None:
            rows += _found_by(finder, path, seen)
            continue
        for root in path:
            if isinstance(root, str):  # Python's import ignores anything else, too
                rows += _in_directory(root, seen, damaged, shadowed)
    if CORE not in seen:
        rows += _source_tree()
    keys = [(_ORDER_OF_KIND[row.kind], row.name, row.distribution, row.module, i) for i, row in enumerate(rows)]
    return [rows[key[-1]] for key in sorted(keys)]


# -- distributions; ``seen`` has what was found at an earlier entry of the path -------------------------


def _finders() -> list[Any]:
    """The finders of ``sys.meta_path`` that find distributions; ``None`` stands for the search along the path."""
    finders: list[Any] = []
    for finder in sys.meta_path:
        if hasattr(finder, "find_distributions"):
            # importlib's own finder and the backport's search the same path
            foreign = getattr(finder, "__module__", "") not in ("_frozen_importlib_external", "importlib_metadata")
            if foreign or None not in finders:
                finders.append(finder if foreign else None)
    return finders if None in finders else [*finders, None]


def _in_directory(root: str, seen: dict[str, str], damaged: list[Damage], shadowed: list[str]) -> list[Row]:
    try:
        children = os.listdir(root or ".")
    except NotADirectoryError:
        return _found_by(None, [root], seen)
    except (OSError, ValueError):  # what Python cannot list, it cannot import from either
        return []
    if root.endswith(".egg"):
        return _found_by(None, [root], seen)
    infos = [child for child in children if child.endswith((".dist-info", ".egg-info"))]
    infos.sort()
    rows: list[Row] = []
    here: dict[str, str] = {}
    prefix = os.path.join(root, "")
    for child in infos:
        name = child.rpartition(".")[0].partition("-")[0].lower().replace("_", "-")
        if "." in name or "--" in name:  # only in old metadata
            name = normalized(name)
        if name in here and name != CORE:
            _installed_twice(here[name], child, rows)
        if name in seen and name not in here and child[0] != "~":
            _note_shadowed(name, prefix + child, seen[name], shadowed)
        if name in seen or child[0] == "~":  # ~ marks what pip could not remove when it replaced a distribution
            continue
        location = seen[name] = here[name] = prefix + child
        if os.access(f"{location}/entry_points.txt", os.R_OK):  # four of five have none: cheaper than an exception
            data = _read(location, "entry_points.txt") or b""
            if problem := _unreadable(data):
                damaged.append(Damage(f"{location}/entry_points.txt", problem))
            if b"[core." in data:
                rows += _declared(name, location, data, _file_reader(location))
        if not name and (problem := _decoded(_read(location, "METADATA") or b"", "METADATA")[1]):
            damaged.append(Damage(f"{location}/METADATA", problem))  # importlib looks for the name there
    return rows


def _note_shadowed(name: str, location: str, first: str, shadowed: list[str]) -> None:
    data = _read(location, "entry_points.txt") or b""
    if name != CORE and b"[core." in data and os.path.realpath(location) != os.path.realpath(first):
        shadowed.append(f"{name} is installed twice: {first} is used, and hides {location}. Uninstall one of them.")


def _unreadable(data: bytes) -> str:
    """Why ``importlib.metadata`` cannot read an entry_points.txt; empty if it can."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return _decoded(data, "it")[1]
    section = None
    for line in map(str.strip, text.splitlines()):
        if line.startswith("[") and line.endswith("]"):
            section = line
        elif section and line and "=" not in line and line[0] != "#":
            return f"its line {line!r} has no '='"
    return ""


def _installed_twice(location: str, other: str, rows: list[Row]) -> None:
    for row in rows:
        if row.location == location:
            row.state = "failed"
            row.reason = f"installed twice: {location} and {other}. Uninstall it and install it again"


def _read(location: str, name: str) -> bytes | None:
    try:
        descriptor = os.open(f"{location}/{name}", _OPEN)
        try:
            return os.read(descriptor, os.fstat(descriptor).st_size)
        finally:
            os.close(descriptor)
    except OSError:
        return None


def _file_reader(location: str) -> Callable[[str], bytes | None]:
    return lambda name: _read(location, name)


def _found_by(finder: Any, path: Sequence[str], seen: dict[str, str]) -> list[Row]:
    """The rows of one finder of ``sys.meta_path``; ``None`` is the standard finder, which also reads zip files."""
    import importlib_metadata

    rows: list[Row] = []
    context = importlib_metadata.DistributionFinder.Context(path=list(path))  # type: ignore[no-untyped-call]
    try:
        for distribution in (finder or importlib_metadata.MetadataPathFinder).find_distributions(context):
            location = str(getattr(distribution, "_path", "") or distribution).rstrip("/")
            name = normalized(_stem(location) or distribution.metadata["Name"])
            if name not in seen:
                seen[name] = location
                read = _text_reader(distribution)
                data = read("entry_points.txt") or b""
                rows += _declared(name, location, data, read) if b"[core." in data else []
    except Exception:  # another tool's finder may raise anything; it is logged
        import logging

        logging.getLogger(__name__).warning("%r cannot list its distributions", finder, exc_info=True)
    return rows


def _stem(location: str) -> str:
    stem, dot, suffix = os.path.basename(location).rpartition(".")
    return stem.partition("-")[0] if dot + suffix in (".dist-info", ".egg-info") else ""


def _text_reader(distribution: Any) -> Callable[[str], bytes | None]:
    def read(name: str) -> bytes | None:
        try:
            text: str | None = distribution.read_text(name)
        except UnicodeDecodeError as error:
            return error.object
        return None if text is None else text.encode()

    return read


# -- one distribution's declarations ----------------------------------------------------------------------------------


def _declared(name: str, location: str, data: bytes, read: Callable[[str], bytes | None]) -> list[Row]:
    text, problem = _decoded(data, "entry_points.txt")
    entries = _entries(text)
    if not entries:
        return []
    distribution, version, requires, unreadable = _headers(read("METADATA") or read("PKG-INFO"))
    if distribution and normalized(distribution) != name:
        distribution, unreadable = name, unreadable or f"its METADATA says that it is {distribution!r}"
    interfaces = tuple(sorted(int(key) for kind, key, _, malformed in entries if kind == INTERFACES and not malformed))
    problem = problem or next((malformed for kind, *_, malformed in entries if kind == INTERFACES and malformed), "")
    rows: dict[tuple[str, str], Row] = {}
    for kind, key, module, malformed in entries:
        if kind == INTERFACES:
            continue
        reason = malformed or problem or unreadable
        if (kind, key) in rows:
            rows[kind, key].state, rows[kind, key].reason = "failed", f"entry_points.txt declares {key!r} twice"
            continue
        rows[kind, key] = Row(
            kind=kind,
            name=key,
            distribution=distribution or name,
            version=version,
            module=module,
            requires=requires,
            interfaces=interfaces,
            location=location,
            state="failed" if reason else "installed",
            reason=reason,
        )
    return list(rows.values())


def _decoded(data: bytes, file: str) -> tuple[str, str]:
    try:
        return data.decode(), ""
    except UnicodeDecodeError as error:
        problem = f"{file} is not UTF-8: byte 0x{data[error.start]:02x} at offset {error.start}"
        return data.decode(errors="backslashreplace"), problem


def _entries(text: str) -> list[tuple[str, str, str, str]]:
    """``(kind, name, module, problem)`` for each entry point of our groups, in the syntax that importlib reads."""
    kind, entries = None, []
    for line in map(str.strip, text.splitlines()):
        if not line or line.startswith("#"):
            continue
        if line.startswith("[") and line.endswith("]"):
            kind = _GROUPS.get(line.strip("[]"))
        elif kind is not None:
            key, equals, value = map(str.strip, line.partition("="))
            module, colon, path = value.partition(":")
            parts = [*module.split("."), *path.split(".")] if kind in _NEEDS else value.split(".")
            problem = ""
            if kind == INTERFACES:
                if not (key.isascii() and key.isdigit() and len(key) < 10 and int(key)):
                    problem = f"entry_points.txt declares the interface {key!r}. Valid: 1 = <package>"
                entries.append((kind, key, value, problem))
                continue
            if not equals:
                problem = f"has the line {line!r}"
            elif not key or not key.isprintable():
                problem = f"declares the {'unprintable' if key else 'empty'} name {key!r}"
            elif (kind in _NEEDS and not colon) or not all(map(str.isidentifier, parts)):
                what = _NEEDS[kind].replace("package.", "") if kind in _NEEDS else "a module name"
                problem = f"gives {key!r} the value {value!r}, which is not {what}"
            if problem:
                problem = f"entry_points.txt {problem}. Valid: <name> = <{_NEEDS.get(kind, 'package.module')}>"
            entries.append((kind, key, value, problem))
    return entries


def _headers(data: bytes | None) -> tuple[str, str, tuple[str, ...], str]:
    """``(name, version, requirements on core, problem)`` from the headers of METADATA or PKG-INFO."""
    if not data:
        return "", "", (), "its METADATA is missing"
    name = version = problem = ""
    requires: list[str] = []
    for line in data.split(b"\n\n", 1)[0].splitlines():
        if not line.strip():
            break
        header, _, value = line.partition(b":")
        header = header.lower()
        if header == b"requires-dist" and (name == CORE or (value.isascii() and b"torch" not in value.lower())):
            continue  # nearly all are requirements on something else
        if header in (b"name", b"version", b"requires-dist"):
            text, undecodable = _decoded(value.strip(), f"{header.decode().capitalize()} in METADATA")
            problem = problem or undecodable
            if header == b"requires-dist":
                if _required(text) == CORE:
                    requires.append(text)
            elif header == b"name":
                name = name or text
            else:
                version = version or text
    if not problem and not (name and version):
        problem = f"its METADATA has no {'version' if name else 'name'}"
    return name, version, tuple(requires), problem


def _required(requirement: str) -> str:
    end = 0
    while end < len(requirement) and (requirement[end].isalnum() or requirement[end] in "-_."):
        end += 1
    return normalized(requirement[:end])


def _source_tree() -> list[Row]:
    """The rows of core's own backends, from ``pyproject.toml``, if core is not installed but a source tree."""
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    file = os.path.join(root, "pyproject.toml")
    data = _read(root, "pyproject.toml")
    if data is None:
        return []
    import tomllib

    project = tomllib.loads(data.decode()).get("project", {})
    if project.get("name") != CORE:
        return []
    return [
        Row(kind=kind, name=name, distribution=CORE, version=project["version"], module=module, location=file)
        for group, kind in _KIND_OF_GROUP.items()
        for name, module in project.get("entry-points", {}).get(group, {}).items()
    ]
