"""The command line: ``python -m core.new_plugin acme --kind accelerator``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from core.errors import CoreError
from core.kinds import KINDS
from core.new_plugin.package import write_package

__all__ = ["main"]

_NEXT = """\
{folder}: a package that provides {kind} {name!r}. Next:

  cd {folder}
  pip install --editable '.[test]'
  python -m core.list --kind {kind}
  pytest
  grep -rn 'FILL IN' src
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the package; 0, or 2 with the error where the words give none."""
    parser = argparse.ArgumentParser(
        prog="python -m core.new_plugin", description="Write a package that provides a backend of your own."
    )
    parser.add_argument("name", help="the backend's name, as users will write it, such as acme")
    parser.add_argument("--kind", choices=KINDS, default="accelerator", help="default: accelerator")
    parser.add_argument(
        "--directory", type=Path, metavar="DIR", help="where to write it; a new folder (default: torch-hal-NAME)"
    )
    words = parser.parse_args(arguments)
    try:
        folder = write_package(words.name, words.kind, words.directory)
    except CoreError as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return 2
    sys.stdout.write(_NEXT.format(folder=folder, kind=words.kind, name=words.name))
    return 0


if __name__ == "__main__":
    sys.exit(main())
