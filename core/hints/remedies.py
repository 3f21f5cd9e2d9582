"""Remedies for names that torch-hal does not have, from ``remedies.toml``: for error messages, and for ``migrate``."""

from __future__ import annotations

from functools import cache

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

__all__ = [
    "add_remedy",
    "change_import",
    "import_line",
    "known_names",
    "package",
    "providers",
    "remedies",
    "with_sources",
]


@cache
def _tables() -> dict[str, Any]:
    import tomllib  # only an error needs these: imported by a listing, they would take a third of its time
    from pathlib import Path

    return tomllib.loads(with_sources(Path(__file__).with_name("remedies.toml").read_text("utf-8")))


def remedies(place: str, owners: Iterable[str] | None = None) -> dict[str, str]:
    """By name, what to do about it, or the name here.

    Args:
        place: Where users write it, a table of ``remedies.toml``: such as ``"arguments"`` or ``"imports"``.
        owners: For a table by owner, what has the argument, attribute or method, before its base classes.
    """
    table: dict[str, Any] = _tables()[place]
    if owners is None:
        return table
    return {name: said for owner in reversed([*owners]) for name, said in table.get(owner, {}).items()}


def add_remedy(error: BaseException, message: str | None = None) -> None:
    """Add a note to an error of torch or Python that says what to do, if its message is a known one.

    Args:
        error: Raised by a user's step or data.
        message: What to look for instead of the error's own message, such as that after the name of the step.
    """
    import re  # as above

    message = str(error) if message is None else message
    for pattern, remedy in remedies("messages").items():
        if re.search(pattern, message, re.MULTILINE):
            if remedy not in getattr(error, "__notes__", ()):
                error.add_note(remedy)
            return


def import_line(path: str, name: str) -> str:
    """The line that imports ``path``, such as ``core.Module``, by the name that a script uses."""
    module, _, here = path.rpartition(".")
    return f"from {module} import {here}" + f" as {name}" * (here != name)


def change_import(given: object) -> str:
    """The remedy for an object of a class derived from Lightning's; empty for other objects."""
    for kind in type(given).__mro__:
        package, name = kind.__module__.partition(".")[0], kind.__name__
        if package in ("lightning", "pytorch_lightning") and name in _BASES:
            line = import_line(remedies("elsewhere").get(name, f"core.{name}"), name)
            return (
                f"It derives from {package}'s {name}: change the import to '{line}', and run 'torch-hal migrate FILE' "
                "on the script, which lists what else differs."
            )
    return ""


_BASES = ("LightningModule", "LightningDataModule", "Callback")
"""Lightning's classes that scripts derive from."""


def providers(kind: str, name: str) -> list[str]:
    """The known distributions that provide ``name``, ordered by name.

    Args:
        kind: A key of :data:`core.kinds.KINDS`, or :data:`core.kinds.COMMAND`.
        name: A name or an alias.
    """
    packages = _tables()["packages"]
    return sorted(distribution for distribution, kinds in packages.items() if name in kinds.get(kind, ()))


def package(name: str) -> str:
    """What to write after ``pip install`` for a package of this project: from where core was installed.

    Args:
        name: Of its distribution, such as ``torch-hal-cuda`` or ``torch-hal[cli]``.

    Returns:
        The name, if core is from an index, and from elsewhere ``torch-hal-cuda@URL`` (PEP 508): on an index of which
        this core is not, the name may be anyone's.
    """
    folder = name.partition("[")[0].removeprefix("torch-hal").replace("-", "plugins/", 1)
    if not (place := _source()):
        return name
    if place.startswith("git+"):
        return f"{name}@{place}{'#subdirectory=' * bool(folder)}{folder}"
    return f"{name}@{place}{'/' * bool(folder)}{folder}"


def with_sources(text: str) -> str:
    """A text that has ``pip install torch-hal-NAME`` in it, with :func:`package` for the name."""
    import re

    return re.sub("(?<=pip install )torch-hal-[a-z]+", lambda found: package(found[0]), text)


@cache
def _source() -> str:
    """The URL of the clone or repository that core was installed from; empty if from an index or a single file."""
    import json
    from importlib.metadata import PackageNotFoundError, distribution
    from pathlib import Path

    try:
        recorded = json.loads(distribution("torch-hal").read_text("direct_url.json") or "{}")
    except PackageNotFoundError:  # imported from a clone that is not installed
        root = Path(__file__).resolve().parents[2]
        return root.as_uri() if (root / "plugins").is_dir() else ""
    if vcs := recorded.get("vcs_info"):  # PEP 610
        return f"{vcs['vcs']}+{recorded['url']}@{vcs['commit_id']}"
    return str(recorded["url"]) if "dir_info" in recorded else ""


def known_names(kind: str) -> list[str]:
    """The names and aliases of that kind that known distributions provide."""
    return sorted({name for kinds in _tables()["packages"].values() for name in kinds.get(kind, ())})
