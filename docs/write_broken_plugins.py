"""Tries each kind of broken plugin and writes the table in docs/broken-plugins.md; some minutes.

Usage: ``python docs/write_broken_plugins.py``
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "tests" / folder) for folder in ("discovery", "helpers")]

from broken_kinds import HARMLESS_BY_NAME, KINDS, write_site  # noqa: E402  found by the line above
from installing import environment, run_list  # noqa: E402
from test_strangers import PART, tried  # noqa: E402

PAGE = ROOT / "docs" / "broken-plugins.md"
BEGIN, END = "<!-- table: written by docs/write_broken_plugins.py -->", "<!-- end of table -->"
HEAD = "| a plugin whose | `list` | `list --probe` | `explain` | trains on 1, 2 processes | trains by its name |"


def main() -> int:
    """Write the page; returns 1 if a user's run was harmed."""
    with tempfile.TemporaryDirectory() as folder:
        listed = _listed(Path(folder, "listed"))
        answers: dict[str, Any] = {}
        for first in range(0, len(KINDS), PART):
            part = Path(folder, str(first))
            part.mkdir()
            found = tried(part, list(KINDS)[first : first + PART])
            clean = found.pop("none")
            answers |= {kind: (answer, clean) for kind, answer in found.items()}
    rows = [_row(kind, listed[kind], *answers[kind]) for kind in KINDS]
    table = "\n".join([BEGIN, "", HEAD, "|---|---|---|---|---|---|", *rows, "", END])
    page = PAGE.read_text("utf-8")
    PAGE.write_text(page.partition(BEGIN)[0] + table + page.partition(END)[2], "utf-8")
    return int("**" in table)


def _listed(site: Path) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """By kind, its row in a plain listing and in one that probes, all kinds being installed at once."""
    for kind, facts in KINDS.items():
        write_site(site, kind, facts, kind)
    environ = environment(site)
    found = []
    for arguments in ([], ["--probe", "--timeout", "15", "--kind", "accelerator"]):
        done = run_list("--json", *arguments, environ=environ)
        rows = json.loads(done.stdout)["backends"]
        found.append({row["distribution"]: row for row in rows if not row["name"].endswith("acme2")})
    names = {kind: f"torch-hal-{kind.replace('_', '-')}" for kind in KINDS}
    return {kind: (found[0][name], found[1][name]) for kind, name in names.items()}


def _row(kind: str, listed: tuple[Any, Any], answers: Any, clean: Any) -> str:
    facts = KINDS[kind]
    plain, probed = listed
    shows = facts.cause.replace("'acme'", repr(kind)) in probed["reason"]
    probe = f"{probed['state']}: `{facts.cause}`" if shows else f"{probed['state']}"
    skipped = answers["explain"]["accelerator"] == "cpu" and "acme" in answers["explain"]["rejected"]
    same = [_or_bold(answers[run] == clean[run], "unharmed", "HARMED") for run in ("one", "two")]
    after = {name: answers["name"][name] for name in clean["one"]} == clean["one"]
    error = answers["name"]["error"]
    if kind in HARMLESS_BY_NAME and not error:
        by_name = "trains: the broken part is not called"
    else:
        by_name = _or_bold(facts.cause in error, f"refused: `{facts.cause}`", f"another cause: {error[:100]!r}")
    cells = (
        kind.replace("_", " "),
        plain["state"],
        probe,
        _or_bold(skipped, "rejected, with the reason", "not rejected"),
        ", ".join(same),
        by_name + _or_bold(after, "", "; what runs afterwards is HARMED"),
    )
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _or_bold(holds: bool, text: str, otherwise: str) -> str:
    return text if holds else f"**{otherwise}**"


if __name__ == "__main__":
    sys.exit(main())
