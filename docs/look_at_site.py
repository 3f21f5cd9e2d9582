"""Looks at the built documentation in Chromium: ``nox -s look`` builds it and runs this script.

    python docs/look_at_site.py site                                 # every page, at four widths
    python docs/look_at_site.py site --pictures DIR index install    # these, light and dark, with pictures of them

It fails if a page is wider than the screen, cuts a line of code or a row of a table, lacks a picture, shows Python
without highlighting, or fetches anything from elsewhere; and if the search finds nothing.
"""

from __future__ import annotations

import argparse
import functools
import http.server
import shutil
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

WIDTHS = (390, 1200, 1280, 1800)
"""Of the screen, in CSS pixels: a telephone, windows with one and with two menus, and a large one."""
FAULTS = """() => {
  const found = [], screen = document.documentElement.clientWidth;
  const say = (what, element) => found.push(`${what}: ${(element.innerText || element.src).slice(0, 60)}`);
  if (document.documentElement.scrollWidth > screen) found.push('the page is wider than the screen');
  for (const element of document.querySelectorAll('pre code, .md-typeset__scrollwrap'))
    if (element.clientWidth && element.scrollWidth > element.clientWidth + 1) say('cut', element);
  for (const image of document.images) if (!image.naturalWidth) say('no picture', image);
  for (const code of document.querySelectorAll('.language-python code'))
    if (code.innerText.trim() && !code.querySelector('span[class]')) say('not highlighted', code);
  return found;
}"""


class Quiet(http.server.SimpleHTTPRequestHandler):
    """A handler without a log."""

    def log_message(self, *_: Any) -> None:
        """Write nothing."""


@contextmanager
def served(site: Path) -> Iterator[str]:
    """The address of ``site`` on this machine."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(site))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()


def look(site: Path, names: Sequence[str], pictures: Path | None) -> list[str]:
    """What is wrong with the pages ``names`` (all, if none is named)."""
    pages = {path.parent.relative_to(site).as_posix(): path for path in sorted(site.rglob("index.html"))}
    pages = {"index" if name == "." else name: path for name, path in pages.items()}
    if unknown := sorted({*names} - {*pages}):
        raise SystemExit(f"{site}: there is no page {', '.join(unknown)}")
    wrong: list[str] = []
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if program is None:
        raise SystemExit("there is no chromium, chromium-browser or google-chrome on PATH")
    with served(site) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        for scheme in ("light", "dark") if pictures else ("light",):
            for width in WIDTHS:
                page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
                fetched: list[str] = []
                page.on("request", lambda request: fetched.append(request.url))  # noqa: B023 - of this page
                for name in names or pages:
                    page.goto(address + pages[name].relative_to(site).as_posix())
                    wrong += [f"{name}, {width} pixels: {fault}" for fault in page.evaluate(FAULTS)]
                    if pictures:
                        file = f"{name.replace('/', '-')}-{width}-{scheme}.png"
                        page.screenshot(path=pictures / file, full_page=True)
                wrong += [f"fetched {url}" for url in fetched if not url.startswith((address, "data:", "blob:"))]
                page.close()
        page = browser.new_page(viewport={"width": 1800, "height": 900})
        page.goto(address)
        page.click(".md-search__input")
        page.keyboard.type("bf16-mixed", delay=50)
        page.wait_for_selector(".md-search-result__item", timeout=60_000)
        if pictures:
            page.screenshot(path=pictures / "search-1800-light.png")
        browser.close()
    return wrong


def main(arguments: Sequence[str] | None = None) -> int:
    """Look at the pages, and print what is wrong with them; 1 if anything is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("site", type=Path, help="the folder that mkdocs has written")
    parser.add_argument("pages", nargs="*", help="names of pages, such as index or api/trainer (all)")
    parser.add_argument("--pictures", type=Path, help="a folder for a picture of each page")
    options = parser.parse_intermixed_args(arguments)
    if options.pictures:
        options.pictures.mkdir(parents=True, exist_ok=True)
    wrong = look(options.site.resolve(), options.pages, options.pictures)
    sys.stdout.write("".join(f"{line}\n" for line in wrong) or "nothing is cut, missing or fetched from elsewhere\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
