"""The parser of the verbs' command lines: argparse's, whose errors name the argument, what was given and what to do."""

from __future__ import annotations

import argparse
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import NoReturn

from ..errors import nearest, quoted
from ..hints.remedies import remedies

__all__ = ["VerbParser", "one_of"]

_ARGUMENT = re.compile(r"argument (?P<name>[^:]+): (?P<wrong>.*)", re.DOTALL)
_TYPE = re.compile(r"invalid (?P<type>\w+) value: (?P<given>.*)", re.DOTALL)
_WORDS = {"expected one argument": "give it a value"}
_FLAG = re.compile(r"ignored explicit argument (?P<given>.*)", re.DOTALL)
_TYPES = {"int": "an integer", "float": "a number", "Path": "a path"}


class _Formatter(argparse.HelpFormatter):
    """Wraps prose to the width of the terminal, and leaves examples as they are."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        blocks: list[tuple[bool, list[str]]] = []
        for line in text.splitlines():
            is_prose = bool(line) and not line.startswith((" ", "example"))
            if not blocks or blocks[-1][0] != is_prose or not is_prose:
                blocks.append((is_prose, []))
            blocks[-1][1].append(line)
        filled = (
            textwrap.fill(" ".join(lines), width, initial_indent=indent, subsequent_indent=indent)
            if is_prose
            else "\n".join(lines)
            for is_prose, lines in blocks
        )
        return "\n".join(filled)


class VerbParser(argparse.ArgumentParser):
    """A parser for one verb. Options cannot be abbreviated, and an unknown one names the nearest.

    Args:
        program: How the user called the command.
        description: What it does.
        epilog: An example. Lines that are indented or begin with ``example`` are printed as they are, to be copied.
        starts_script: Whether what follows the first positional argument belongs to the script that it names.
    """

    def __init__(self, program: str, description: str, epilog: str, *, starts_script: bool = False) -> None:
        super().__init__(
            prog=program,
            description=description,
            epilog=epilog,
            formatter_class=_Formatter,
            allow_abbrev=False,
        )
        self._starts_script = starts_script

    def read(self, arguments: Sequence[str] | None) -> argparse.Namespace:
        """The arguments of a command line; from here on the verb can print characters that the terminal lacks.

        Args:
            arguments: Without the program's name; this process's own by default.

        Raises:
            SystemExit: They are not valid, or help was asked for.
        """
        if hasattr(sys.stdout, "reconfigure"):
            sys.stdout.reconfigure(errors="backslashreplace")
        given = list(sys.argv[1:] if arguments is None else arguments)
        self._refuse_unknown(given)
        options, rest = self.parse_known_args(given)
        if rest:
            self.error(f"unexpected argument {rest[0]!r}.{self._option_for(rest[0])}")
        return options

    def error(self, message: str) -> NoReturn:
        """End with exit code 2 and one line, which names this command's help."""
        if wrong := _ARGUMENT.fullmatch(message):
            typed = _TYPE.fullmatch(wrong["wrong"])
            said = f"{typed['given']} is not {_TYPES.get(typed['type'], typed['type'])}" if typed else wrong["wrong"]
            flag = _FLAG.fullmatch(said)
            said = f"takes no value, and {flag['given']} was given" if flag else _WORDS.get(said, said)
            message = f"{wrong['name']}: {said}"
        message = message.replace("the following arguments are required: ", "missing: ").removesuffix(", ...")
        end = "" if message.endswith((".", "?")) else "."
        self.exit(2, f"{self.prog}: {message}{end} Arguments: {self.prog} --help\n")

    def _refuse_unknown(self, given: Sequence[str]) -> None:
        """An unknown option is the error, also if another argument is missing or takes its value for its own."""
        known = self._option_string_actions  # argparse has no public list of a parser's options
        rest = iter(given)
        for argument in rest:
            name, equals, _ = argument.partition("=")
            if argument == "--":
                return
            if not re.match(r"-[^\d.]", argument):  # negative numbers are values
                if self._starts_script:
                    return
            elif name in known:
                if known[name].nargs != 0 and not equals:
                    next(rest, None)
            elif self._gives_value_to_flag(argument):
                flag = "/".join(known[argument[:2]].option_strings)
                self.error(f"argument {flag}: ignored explicit argument {argument[2:]!r}")
            elif argument.startswith("--") or argument[:2] not in known:
                dashed = f"--{name.lstrip('-').replace('_', '-')}"
                instead = "" if dashed in known else remedies("options").get(dashed, "")
                self.error(f"unknown option {name!r}." + (f" {instead}" if instead else nearest(name, known)))

    def _gives_value_to_flag(self, argument: str) -> bool:
        """Whether it is like ``-mfile``, and ``-m`` takes no value; argparse of Python 3.14 has another error first."""
        known = self._option_string_actions
        is_flag = argument[:2] in known and known[argument[:2]].nargs == 0 and not argument.startswith("--")
        return is_flag and f"-{argument[2]}" not in known

    def _option_for(self, value: str) -> str:
        """The suggestion for an argument that is the name of an option without its dashes."""
        name = f"--{value.lstrip('-').partition('=')[0]}"
        return f" Did you mean {name!r}?" if name in self._option_string_actions else ""


def one_of(names: Iterable[str]) -> Callable[[str], str]:
    """The ``type`` of an argument that is one of ``names``; its error has the nearest of them."""
    valid = list(names)

    def check(value: str) -> str:
        if value not in valid:
            raise argparse.ArgumentTypeError(f"{value!r} is not valid.{nearest(value, valid)} Valid: {quoted(valid)}.")
        return value

    return check
