"""The verb ``new-plugin`` of torch-hal: write the package of a new backend."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from torch_hal.commands.verb_parser import VerbParser, one_of
from torch_hal.errors import CoreError
from torch_hal.kinds import KINDS
from torch_hal_devkit.new_plugin.package import write_package

__all__ = ["main"]

_NEXT = """\
{folder}: a package that provides the {title} {name!r}. Next:

  cd {folder}
  pip install --editable '.[test]'
  torch-hal list --kind {kind}
  pytest
  grep -rn 'FILL IN' src tests .github
"""


def main(arguments: Sequence[str] | None = None, program: str = "torch-hal new-plugin") -> int:
    """Write the package; returns the exit code: 0, or 2 if it cannot be written.

    Args:
        arguments: The command line without the program's name; this process's own by default.
        program: How the user called this command, for messages.
    """
    parser = VerbParser(
        program,
        description="Write the package of a new backend. It can be installed and passes its tests as it is; the places "
        "to edit are marked with 'FILL IN'.",
        epilog=f"example: {program} acme --kind accelerator",
    )
    parser.add_argument("name", metavar="NAME", help="the backend's name as users write it, such as acme")
    parser.add_argument(
        "--kind",
        type=one_of(KINDS),
        default="accelerator",
        metavar="KIND",
        help=f"{', '.join(KINDS)} (default: %(default)s)",
    )
    parser.add_argument("--directory", type=Path, metavar="DIR", help="the folder to create (default: torch-hal-NAME)")
    options = parser.read(arguments)
    try:
        folder = write_package(options.name, options.kind, options.directory)
    except CoreError as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return 2
    title = KINDS[options.kind].title
    sys.stdout.write(_NEXT.format(folder=folder, title=title, kind=options.kind, name=options.name))
    return 0


if __name__ == "__main__":
    sys.exit(main())
