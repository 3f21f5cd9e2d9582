"""The parser of the command line: jsonargparse's, with the names that are installed here in its help."""

from __future__ import annotations

import inspect
import os
import re
import sys
from typing import Any, NoReturn

from .. import callbacks, loggers, strategies
from ..discovery.selection import survey
from ..errors import BackendError, nearest, quoted
from ..hints.remedies import package, remedies
from ..loggers import Logger
from ..trainer import Trainer

try:
    import jsonargparse
except ImportError as error:
    install = f"pip install {package('torch-hal[cli]')!r}"
    raise BackendError(f"core.cli: jsonargparse is not installed. Run: {install}") from error

Namespace = jsonargparse.Namespace

KINDS = {
    "trainer.accelerator": "accelerator",
    "trainer.strategy": "strategy",
    "trainer.precision": "precision",
}
"""The arguments whose help shows the names of the installed backends of this kind."""

_UNKNOWN = re.compile(r"(?:unrecognized arguments: (--)|(?:Group '([\w.]+)' .*)?option ')([\w.]+)")
_CONFIG = re.compile(r"unrecognized arguments: (\S+\.(?:ya?ml|json))\b")
_CLASS = re.compile(r"Expected a dot import path string: ([A-Z]\w*)")
_OPTION = re.compile(r"Problem with given class_path '([\w.]+)':\s+Option '([\w.]+)' is not accepted")
_MEMBER = re.compile(r"module '([\w.]+)' has no attribute '(\w+)'")


class ArgumentParser(jsonargparse.ArgumentParser):
    """A parser with the arguments of classes; all methods of jsonargparse's parser can be used."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"allow_abbrev": False, **kwargs})

    def add_trainer(self, trainer_class: type[Trainer]) -> None:
        """Add ``--trainer.NAME`` for each argument of the Trainer's constructor."""
        for module in (callbacks, loggers):  # jsonargparse finds classes by name that are imported
            for name in module.__all__:
                getattr(module, name)
        names = self.add_class_arguments(
            trainer_class, "trainer", instantiate=False, fail_untyped=False, skip={"logger"}, sub_configs=True
        )
        parameter = inspect.signature(trainer_class).parameters.get("logger")
        if names and parameter is not None:
            # The Trainer takes any object with log_metrics; jsonargparse needs a base class to find classes.
            self.add_argument(
                "--trainer.logger",
                type=Logger | bool | None | list[Logger | str] | str,
                default=parameter.default,
                help="Where metrics go: a class derived from core.loggers.Logger, a name such as csv, or a list.",
            )

    def add_class(self, kind: type[Any], key: str, *, subclasses: bool, required: bool) -> None:
        """Add the arguments of ``kind``, or of the class derived from it that the user names.

        Args:
            kind: The class.
            key: The prefix of the arguments.
            subclasses: Whether the user names the class.
            required: Whether the user must name one.
        """
        if subclasses:
            self.add_subclass_arguments(kind, key, fail_untyped=False, required=required)
        else:
            self.add_class_arguments(kind, key, fail_untyped=False, sub_configs=True)

    def format_help(self, *args: Any, **kwargs: Any) -> str:
        """The help, with the installed names."""
        rows = survey(os.environ).rows
        for action in self._actions:
            kind = KINDS.get(action.dest)
            if kind is not None and action.help and "Installed here" not in action.help:
                names = sorted({row.name for row in rows if row.kind == kind and row.state == "installed"})
                action.help = f"{action.help} Installed here: {', '.join(names)}."
        text: str = super().format_help(*args, **kwargs)
        return text

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """End with ``message``; for an unknown argument or class, with the nearest that exists."""
        if unknown := _UNKNOWN.search(message):
            dashes, group, name = unknown.groups(default="")
            message = f"{message.removesuffix('.')}.{self._meant(dashes, f'{group}.{name}' if group else name)}"
        elif config := _CONFIG.search(message):
            message = f"{message}. To read a config file, write: --config {config[1]}"
        elif named := _CLASS.search(message):
            meant = nearest(named[1], [*callbacks.__all__, *loggers.__all__, *strategies.__all__])
            message = f"{message.rstrip()}\n{meant.strip() or 'Give the whole path of the class.'}"
        elif option := _OPTION.search(message):
            known = _parameters(option[1])
            meant = nearest(option[2].rpartition(".")[2], known) or f" Valid: {quoted(known)}."
            message = f"{message.rstrip()}\n{option[1]} has no argument {option[2]!r}.{meant}"
        elif (member := _MEMBER.search(message)) and member[1] in sys.modules:
            classes = [name for name, each in vars(sys.modules[member[1]]).items() if isinstance(each, type)]
            message = f"{message.rstrip()}\n{nearest(member[2], classes).strip()}".rstrip()
        super().error(message, ex)
        raise SystemExit(2)

    def _meant(self, dashes: str, name: str) -> str:
        """The arguments that ``name`` may stand for: those that have it after their prefix, or the most similar.

        Of an argument of another version's Trainer, what to set instead.
        """
        known = self._names()
        same = [f"{dashes}{each}" for each in known if each.rpartition(".")[2] == name]
        if same:
            return f" Did you mean {' or '.join(map(repr, same))}?"
        if remedy := remedies("arguments", ["Trainer"]).get(name.removeprefix("trainer.")):
            return f" {remedy}"
        return nearest(f"{dashes}{name}", [f"{dashes}{each}" for each in known])

    def _names(self) -> list[str]:
        subcommands = self._subcommands_action.choices.values() if self._subcommands_action is not None else ()
        return sorted({action.dest for parser in (self, *subcommands) for action in parser._actions})


def _parameters(path: str) -> list[str]:
    """The arguments of the class at ``path``, with those of the classes that it is derived from."""
    module, _, name = path.rpartition(".")
    found = dict[str, None]()
    for kind in getattr(getattr(sys.modules.get(module), name, None), "__mro__", ())[:-1]:
        own = [*inspect.signature(kind.__init__).parameters.values()][1:]
        found |= {each.name: None for each in own if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)}
    return [*found]
