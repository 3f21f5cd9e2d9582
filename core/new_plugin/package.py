"""The package of a new backend, from templates."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from string import Template

from core.discovery.registry import Registry
from core.errors import ConfigurationError, quoted
from core.kinds import KINDS

__all__ = ["write_package"]

_NAME = re.compile(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*")
_LONGEST_NAME = 30
_SUFFIXES = {
    "accelerator": "Accelerator",
    "strategy": "Strategy",
    "precision": "Precision",
    "checkpoint_io": "CheckpointIO",
    "cluster_environment": "Environment",
}
"""By kind, how the class's name ends."""
_TEMPLATES = "templates"
_TEMPLATE_SUFFIX = ".txt"


def write_package(name: str, kind: str = "accelerator", directory: Path | None = None) -> Path:
    """Write the package ``torch-hal-<name>``, which provides the backend ``name``.

    Freshly written it can be installed, is listed, and passes what the conformance kit asks without hardware. What is
    to be filled in is marked by ``FILL IN``.

    Args:
        name: The backend's name: lower-case letters and digits, in parts joined by ``-`` or ``_``.
        kind: A key of :data:`core.kinds.KINDS`.
        directory: Where to write it; ``torch-hal-<name>`` in the working directory unless given.

    Returns:
        The folder.

    Raises:
        ConfigurationError: The name or kind is none, the name is torch-hal's own, or the folder is there already or
            cannot be written.
    """
    if kind not in KINDS:
        raise ConfigurationError(f"kind={kind!r}: no kind of backend. Valid: {quoted(KINDS)}.")
    _check_name(name, kind)
    words = _words(name, kind)
    folder = Path(words["distribution"]) if directory is None else directory
    try:
        folder.mkdir(parents=True)
        for part in ("common", kind):
            for path, text in _templates(files(__package__) / _TEMPLATES / part):
                target = folder / Template(path).substitute(words)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(Template(text).substitute(words), encoding="utf-8")
    except FileExistsError:
        raise ConfigurationError(f"directory={str(folder)!r}: it is there already. Valid: a new folder.") from None
    except OSError as error:
        raise ConfigurationError(
            f"directory={str(folder)!r}: cannot be written: {error}. Valid: a folder that can be made."
        ) from error
    return folder


def _check_name(name: str, kind: str) -> None:
    if not _NAME.fullmatch(name) or len(name) > _LONGEST_NAME or name == "auto":
        raise ConfigurationError(
            f"name={name!r}: no name for a backend. Valid: lower-case letters and digits, beginning with a letter, in "
            f"parts joined by '-' or '_', at most {_LONGEST_NAME} in all, other than 'auto'."
        )
    own = [row.name for row in Registry.read({}).rows(kind) if row.distribution == "torch-hal"]
    if name in own:
        raise ConfigurationError(
            f"name={name!r}: torch-hal's own {kind}, which keeps its name. Valid: any name but {quoted(own)}."
        )


def _words(name: str, kind: str) -> dict[str, str]:
    """What stands for what in templates."""
    parts = re.split("[-_]", name)
    entry = KINDS[kind]
    suite = f"{entry.base.partition(':')[2]}Suite"
    return {
        "name": name,
        "kind": kind,
        "words": kind.replace("_", " "),
        "group": entry.group,
        "hook": entry.hook,
        "spec": entry.spec,
        "suite": suite,
        "imports": ", ".join(sorted(["BackendUnderTest", suite])),
        "distribution": "-".join(["torch-hal", *parts]),
        "package": "_".join(["torch_hal", *parts]),
        "variable": "_".join(parts).upper(),
        "title": "".join(part.capitalize() for part in parts),
        "cls": "".join(part.capitalize() for part in parts) + _SUFFIXES[kind],
    }


def _templates(folder: Traversable, prefix: str = "") -> Iterator[tuple[str, str]]:
    """The path of each file of the package, still a template, and its text."""
    for item in folder.iterdir():
        if item.is_dir():
            yield from _templates(item, f"{prefix}{item.name}/")
        elif item.name.endswith(_TEMPLATE_SUFFIX):
            # Their own suffix keeps Python's tools from taking them for code of core.
            path = f"{prefix}{item.name.removesuffix(_TEMPLATE_SUFFIX)}"
            yield path.replace("PACKAGE", "$package"), item.read_text("utf-8")
