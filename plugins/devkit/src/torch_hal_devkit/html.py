"""The report of the kit as one HTML page, without scripts or other files."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

__all__ = ["page"]

_STYLE = """\
body { font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; padding: 0 1rem; color: #1c1e21; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.3rem; margin-top: 2.5rem; } h3 { font-size: 1.05rem; }
table { border-collapse: collapse; width: 100%; }
th, td { border: 1px solid #d0d4da; padding: .3rem .6rem; text-align: left; }
td.number { text-align: right; } code { font-size: .9em; }
.badge { display: inline-block; border-radius: .4rem; padding: .2rem .8rem; color: #fff; background: #1a7f37; }
.failed { background: #b42318; } .partly { background: #8a6100; } .facts { color: #4a4f57; }
"""


def page(data: Mapping[str, Any], tiers: Mapping[str, str], outcomes: Mapping[str, str]) -> str:
    """The page.

    Args:
        data: The report as plain data.
        tiers: The tiers, and what each one needs.
        outcomes: The outcomes, with their titles.
    """
    names = ", ".join(suite["suite"] for suite in data["suites"])
    lines = ["<!doctype html>", '<html lang="en">', "<head>", '<meta charset="utf-8">']
    lines += ['<meta name="viewport" content="width=device-width, initial-scale=1">']
    lines += [f"<title>Conformance of {escape(names)}</title>", f"<style>\n{_STYLE}</style>", "</head>", "<body>"]
    lines += [f"<h1>Conformance of {escape(names)}</h1>"]
    versions = ", ".join(f"{escape(name)} {escape(version)}" for name, version in data["versions"].items())
    lines += [f'<p class="facts">{escape(data["date"])}; {versions}</p>']
    if not data["complete"]:
        lines.append("<p><strong>Not complete</strong>: the command line deselected tests.</p>")
    for suite in data["suites"]:
        lines += _suite(suite, tiers, outcomes)
    return "\n".join([*lines, "</body>", "</html>", ""])


def _suite(suite: Mapping[str, Any], tiers: Mapping[str, str], outcomes: Mapping[str, str]) -> Iterator[str]:
    backend, tests = suite["backend"], suite["tests"]
    failed = sum(test["outcome"] == "failed" for test in tests)
    missing = sum(test["outcome"] == "not_run" for test in tests)
    kind, text = ("", "all passed") if not missing else ("partly", f"{missing} not run")
    if failed:
        kind, text = "failed", f"{failed} failed"
    yield f"<h2>{escape(suite['suite'])}</h2>"
    yield f'<p><span class="badge {kind}">proven: {suite["proven"]} of {len(tests)}; {text}</span></p>'
    origin = f"{backend.get('distribution', '')} {backend.get('version', '')}".strip() or "an unknown distribution"
    yield f"<p>{escape(backend['kind'])} <code>{escape(backend.get('name', ''))}</code> of {escape(origin)}; "
    devices = "" if suite["devices"] is None else f"; devices: {suite['devices']}"
    yield f"ran on: {escape(suite['hardware'])}{devices}</p>"
    yield "<table><tr><th>tier</th>" + "".join(f"<th>{escape(title)}</th>" for title in outcomes.values()) + "</tr>"
    for tier, counts in suite["tiers"].items():
        cells = "".join(f'<td class="number">{counts.get(outcome, 0)}</td>' for outcome in outcomes)
        yield f"<tr><td>{escape(tier)}: {escape(tiers.get(tier, ''))}</td>{cells}</tr>"
    yield "</table>"
    if suite["unsupported"]:
        yield "<h3>Declared unsupported</h3><ul>"
        yield from (f"<li>{escape(name)}: {escape(why)}</li>" for name, why in suite["unsupported"].items())
        yield "</ul>"
    for outcome, title in outcomes.items():
        chosen = [test for test in tests if test["outcome"] == outcome and outcome != "passed"]
        if chosen:
            yield f"<h3>{escape(title.capitalize())}</h3><ul>"
            for test in chosen:
                name = escape(test["id"].partition("::")[2])
                yield f"<li><code>{name}</code> ({escape(test['tier'])}): {_prose(test['reason'])}</li>"
            yield "</ul>"


def _prose(text: str) -> str:
    """``text`` with what stands between backticks as code."""
    return re.sub("`([^`]+)`", r"<code>\1</code>", escape(text))
