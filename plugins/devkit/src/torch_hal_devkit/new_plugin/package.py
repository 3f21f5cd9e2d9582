"""The package of a new backend, from templates."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from string import Template

from torch_hal.discovery.registry import Registry
from torch_hal.errors import ConfigurationError, nearest, quoted
from torch_hal.kinds import KINDS

__all__ = ["write_package"]

_NAME = re.compile(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*")
_LONGEST_NAME = 30
_TEMPLATES = "templates"
_TEMPLATE_SUFFIX = ".txt"


def write_package(name: str, kind: str = "accelerator", directory: Path | None = None) -> Path:
    """Write the package ``torch-hal-<name>``, which provides the backend ``name``.

    The new package can be installed, is listed, and passes the part of the conformance kit that needs no hardware. The
    places to edit are marked with ``FILL IN``.

    Args:
        name: The backend's name: lower-case letters and digits, in parts joined by ``-`` or ``_``.
        kind: A key of :data:`core.kinds.KINDS`.
        directory: The folder to create; ``torch-hal-<name>`` in the working directory by default.

    Returns:
        The folder.

    Raises:
        ConfigurationError: The name or the kind is not valid, torch-hal has a backend of that name, or the folder
            already exists or cannot be written.
    """
    if kind not in KINDS:
        raise ConfigurationError(
            f"kind={kind!r} is not a kind of backend.{nearest(kind, KINDS)} Valid: {quoted(KINDS)}."
        )
    _check_name(name, kind)
    variables = _variables(name, kind)
    folder = Path(variables["distribution"]) if directory is None else directory
    try:
        folder.mkdir(parents=True)
        for part in ("common", kind):
            for path, text in _templates(files(__package__) / _TEMPLATES / part):
                target = folder / Template(path).substitute(variables)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(Template(text).substitute(variables), encoding="utf-8")
    except FileExistsError:
        raise ConfigurationError(f"directory={str(folder)!r} already exists. Choose a new folder.") from None
    except OSError as error:
        raise ConfigurationError(
            f"directory={str(folder)!r} cannot be written: {error}. Choose a folder that can be created."
        ) from error
    return folder


def _check_name(name: str, kind: str) -> None:
    if not _NAME.fullmatch(name) or len(name) > _LONGEST_NAME or name == "auto":
        raise ConfigurationError(
            f"name={name!r} is not a valid name. Use lower-case letters and digits, starting with a letter, in parts "
            f"joined by '-' or '_', at most {_LONGEST_NAME} characters, and not 'auto'."
        )
    own = [row.name for row in Registry.read({}).rows(kind) if row.distribution == "torch-hal"]
    if name in own:
        raise ConfigurationError(
            f"name={name!r}: torch-hal has its own {KINDS[kind].title} of this name, which a plugin cannot replace. "
            f"Choose a name other than {quoted(own)}."
        )


def _variables(name: str, kind: str) -> dict[str, str]:
    """The variables of the templates."""
    parts = re.split("[-_]", name)
    entry = KINDS[kind]
    suite = f"{entry.base_name}Suite"
    return {
        "name": name,
        "kind": kind,
        "kind_title": entry.title,
        "group": entry.group,
        "hook": entry.hook,
        "spec": entry.spec,
        "suite": suite,
        "imports": ", ".join(sorted(["BackendUnderTest", suite])),
        "distribution": "-".join(["torch-hal", *parts]),
        "package": "_".join(["torch_hal", *parts]),
        "priority": str(51 + zlib.crc32(name.encode()) % 48),
        "variable": "_".join(parts).upper(),
        "title": "".join(part.capitalize() for part in parts),
        "cls": "".join(part.capitalize() for part in parts) + entry.base_name.removeprefix("Cluster"),
    }


def _templates(folder: Traversable, prefix: str = "") -> Iterator[tuple[str, str]]:
    """The path and the text of each file of the package, both with variables."""
    for item in folder.iterdir():
        if item.is_dir():
            yield from _templates(item, f"{prefix}{item.name}/")
        elif item.name.endswith(_TEMPLATE_SUFFIX):
            # The suffix keeps Python's tools from reading templates as modules of core.
            path = f"{prefix}{item.name.removesuffix(_TEMPLATE_SUFFIX)}"
            yield path.replace("PACKAGE", "$package").replace("DOT_", "."), item.read_text("utf-8")
