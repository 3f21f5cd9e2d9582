"""Writes the project's addresses where they are needed, once, at its first release. Until then there is none.

    python docs/write_address.py https://github.com/OWNER/torch-hal https://OWNER.github.io/torch-hal/

It adds ``site_url`` and the link "Edit this page" to ``mkdocs.yml`` and ``[project.urls]`` to each ``pyproject.toml``,
makes the links of READMEs absolute, since a package index shows these pages too, and replaces the lines that install
from a clone by those for the index. CONTRIBUTING.md has the further steps of a release.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

__all__ = ["main"]

ROOT = Path(__file__).parents[1]
BRANCH = "main"
BEGIN, END = "# address:begin\n", "# address:end\n"
RELEASED = {
    "README.md": [
        (
            "The packages are not on a public index yet; in a clone of this repository and a virtual environment\n(",
            "In a virtual environment (",
        ),
        ("pip install . numpy                 #", "pip install torch-hal numpy         #"),
        ("pip install . ./plugins/cuda        #", "pip install torch-hal-cuda          #"),
        ("pip install . ./plugins/fsdp        #", "pip install torch-hal-fsdp          #"),
        ("| State | 0.1, not released: ", "| State | 0.1: "),
    ],
    "docs/index.md": [
        ("Install it from a clone of the repository, until it is on a package index;", "Install it;"),
        ("pip install . numpy\n", "pip install torch-hal numpy\n"),
    ],
    "docs/install.md": [
        (
            "**The packages are not on a public index yet.** Until they are, install them from a clone of the "
            "repository. In the clone, make a virtual\n",
            "Make a virtual\n",
        ),
        ("pip install . numpy\n", "pip install torch-hal numpy\n"),
        ("The rest of this page has the lines for the index. In the clone, run", "In a clone, run"),
    ],
}
"""For each page, the texts that are true until the release, and those that are true from then on."""


def main(arguments: Sequence[str] | None = None, root: Path = ROOT) -> None:
    """Write both addresses.

    Args:
        arguments: The repository's, and the site's; by default those of the command line.
        root: The project.

    Raises:
        SystemExit: One is no address, or a page has other texts than this script knows.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    if len(given) != 2 or not all(re.fullmatch(r"https://[^\s/]+\.[^\s/]+(/[^\s/]+)*/?", each) for each in given):
        raise SystemExit(f"give two addresses, of the repository and of the site\n{__doc__}")
    repository, site = (address.rstrip("/") for address in given)
    _between(
        root / "mkdocs.yml",
        f"site_url: {site}/\nrepo_url: {repository}\nedit_uri: edit/{BRANCH}/docs/\n"
        "extra: {version: {provider: mike}}\n",
    )
    for project in (root, *sorted(path.parent for path in root.glob("plugins/*/pyproject.toml"))):
        _between(
            project / "pyproject.toml",
            f'[project.urls]\nDocumentation = "{site}/"\nSource = "{repository}"\nIssues = "{repository}/issues"\n'
            f'Changelog = "{site}/changelog/"\n',
        )
        readme = project / "README.md"
        text = readme.read_text("utf-8")
        readme.write_text(absolute(text, project, root, repository), "utf-8")
    for name, texts in RELEASED.items():
        page = root / name
        text = page.read_text("utf-8")
        for before, after in texts:
            if before not in text and after not in text:
                raise SystemExit(f"{name}: neither {before!r} nor {after!r} is on the page")
            text = text.replace(before, after)
        page.write_text(text, "utf-8")


def absolute(text: str, folder: Path, root: Path, repository: str) -> str:
    """A page whose links to files of the project lead into the repository, and those to pictures to the files."""

    def lead(found: re.Match[str]) -> str:
        place, mark, part = found[2].partition("#")
        path = Path(os.path.normpath(folder / place))
        kind = "raw" if found[1].startswith("!") else "tree" if path.is_dir() else "blob"
        return f"{found[1]}({repository}/{kind}/{BRANCH}/{path.relative_to(root).as_posix()}{mark}{part})"

    return re.sub(r"(!?\[[^\]]*\])\((?!https?:|#)([^)\s]+)\)", lead, text)


def _between(file: Path, lines: str) -> None:
    """Put ``lines`` between two comments of a file: where these are, or before its second table or setting."""
    text = file.read_text("utf-8")
    if BEGIN in text:
        before, rest = text.split(BEGIN)
        after = rest.split(END)[1]
    else:
        first = r"^theme:$" if file.suffix == ".yml" else r"^\[(?!project\]|build-system\])"
        place = re.search(first, text, re.MULTILINE)
        assert place is not None, f"{file} has no {first}"
        before, after = text[: place.start()], text[place.start() :]
        after = f"\n{after}" if file.suffix == ".toml" else after
    file.write_text(f"{before}{BEGIN}{lines}{END}{after}", "utf-8")


if __name__ == "__main__":
    main()
