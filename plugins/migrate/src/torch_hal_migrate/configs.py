"""What a configuration in YAML uses of Lightning and Accelerate: the classes that it names, and their arguments."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import yaml

from torch_hal.errors import ConfigurationError

from .accelerate import ROOTS as ACCELERATE
from .scripts import ARGUMENTS, ROOTS, STAGES, Use

__all__ = ["SUFFIXES", "uses"]

SUFFIXES = (".yaml", ".yml")
TARGET, CLASS_PATH = "_target_", "class_path"
"""The keys that name a class: Hydra's, whose other keys are the arguments, and LightningCLI's."""
GIVEN = ("init_args", "dict_kwargs")
"""The keys with the arguments of a ``class_path``."""
TRAINER = "lightning.pytorch.Trainer"


class Call(NamedTuple):
    """A class that a configuration names, and how it is called."""

    path: str
    line: int
    """0 if the class is not named there."""
    arguments: dict[str, int]
    """The line of each."""


def uses(file: Path, by_cli: bool) -> tuple[list[Use], list[Use]]:
    """What a configuration uses of Lightning, and of Accelerate, each in the order of lines.

    Args:
        file: The configuration.
        by_cli: Whether a script of its project uses LightningCLI, so that ``trainer:`` holds the Trainer's arguments.

    Raises:
        ConfigurationError: It cannot be read, or is not YAML.
    """
    calls = list(_calls(file, by_cli))
    return _uses(calls, ROOTS, ARGUMENTS), _uses(calls, ACCELERATE, {"Accelerator": "constructor"})


def _uses(calls: Iterable[Call], roots: tuple[str, ...], sections: dict[str, str]) -> list[Use]:
    found = []
    for path, line, arguments in calls:
        root, name = path.partition(".")[0], path.rpartition(".")[2]
        if root in roots:
            found += [Use("names", name, line)] if line else []
            found += [Use(sections[name], *given) for given in arguments.items() if name in sections]
    return sorted(dict.fromkeys(found), key=lambda use: (use.line, use.section, use.name))


def _calls(file: Path, by_cli: bool) -> Iterator[Call]:
    text = _text(file)
    if not any(word in text for word in (TARGET, CLASS_PATH, "trainer", "defaults")):
        return
    by_cli = by_cli or CLASS_PATH in text or "seed_everything" in text
    for document in _documents(file, text):
        yield from _named(document)
        if by_cli:
            yield from _of_cli(document)
        yield from _of_defaults(document, file)


def _named(node: yaml.Node | None) -> Iterator[Call]:
    """The classes that a part of a document names, at any depth."""
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            yield from _named(item)
    entries = _entries(node)
    for key in (TARGET, CLASS_PATH):
        if isinstance(named := entries.get(key), yaml.ScalarNode):
            given = [node] if key == TARGET else [entries.get(one) for one in GIVEN]
            yield Call(named.value, _line(named), _arguments(*given))
    for value in entries.values():
        yield from _named(value)


def _of_cli(document: yaml.Node | None) -> Iterator[Call]:
    """The Trainer's arguments in ``trainer:``, also within a subcommand, such as ``fit:``."""
    for entries in (_entries(document), *(_entries(_entries(document).get(stage)) for stage in STAGES)):
        trainer = entries.get("trainer")
        if not {TARGET, CLASS_PATH} & _entries(trainer).keys():
            yield Call(TRAINER, 0, _arguments(trainer))


def _of_defaults(document: yaml.Node | None, file: Path) -> Iterator[Call]:
    """The arguments that a file of Hydra's adds to the class that one in its list ``defaults`` names."""
    entries = _entries(document)
    defaults = entries.get("defaults")
    names = defaults.value if isinstance(defaults, yaml.SequenceNode) and TARGET not in entries else ()
    for name in names:
        base = file.parent / f"{name.value}{file.suffix}" if isinstance(name, yaml.ScalarNode) else file
        for other in _documents(base, _text(base)) if base != file and base.is_file() else ():
            if isinstance(named := _entries(other).get(TARGET), yaml.ScalarNode):
                yield Call(named.value, 0, _arguments(document))


def _entries(node: yaml.Node | None) -> dict[str, yaml.Node]:
    """The entries of a mapping; none of all else."""
    pairs = node.value if isinstance(node, yaml.MappingNode) else ()
    return {key.value: value for key, value in pairs if isinstance(key, yaml.ScalarNode)}


def _arguments(*given: yaml.Node | None) -> dict[str, int]:
    """The line of each argument in these mappings; keys such as ``_partial_`` and ``defaults`` are Hydra's own."""
    keys = [key for node in given if isinstance(node, yaml.MappingNode) for key, _ in node.value]
    named = [key for key in keys if isinstance(key, yaml.ScalarNode) and not key.value.startswith(("_", "<<"))]
    return {key.value: _line(key) for key in named if key.value != "defaults"}


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def _text(file: Path) -> str:
    try:
        return file.read_text("utf-8")
    except OSError as error:
        raise ConfigurationError(f"{file}: cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{file}: is not YAML: {error}.") from error


def _documents(file: Path, text: str) -> list[yaml.Node | None]:
    try:
        return list(yaml.compose_all(text, Loader=yaml.SafeLoader))
    except yaml.YAMLError as error:
        line = getattr(getattr(error, "problem_mark", None), "line", None)
        at = "" if line is None else f":{line + 1}"
        raise ConfigurationError(f"{file}{at}: is not YAML: {getattr(error, 'problem', error)}.") from error
