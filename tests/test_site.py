"""What ``docs/build_site.py`` adds to the pages."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

TABLE = """<table>
<thead><tr><th>name</th><th>of <code>"cpu"</code></th><th>note</th></tr></thead>
<tbody>
<tr><td>a</td><td style="text-align: right;">1</td><td></td></tr>
<tr><td>b</td><td style="text-align: right;">2</td><td>x</td></tr>
</tbody>
</table>"""


def build_site() -> Any:
    spec = importlib.util.spec_from_file_location("build_site", Path(__file__).parents[1] / "docs" / "build_site.py")
    assert spec is not None
    assert spec.loader is not None
    site = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(site)
    return site


def test_cells_name_their_column() -> None:
    """On a narrow screen the head of a table is hidden, and each cell but the first shows what its column is."""
    page = build_site().on_page_content(f"<p>before</p>{TABLE}<table></table>")
    assert page.count("<td>a</td>") == page.count("<td>b</td>") == 1
    assert page.count('<td data-column="of &quot;cpu&quot;" style="text-align: right;">') == 2
    assert page.count('<td data-column="note">') == 2
    assert page.count("data-column") == 4


def test_code_in_docstrings_has_no_mark_before_it() -> None:
    """``::`` begins a block of code in reStructuredText; Markdown shows it."""
    code = '<div class="highlight">std::cout</div>'
    page = build_site().on_page_content(f"<p>Its use::</p>\n{code}\n<p>::</p>\n{code}")
    assert page == f"<p>Its use:</p>\n{code}\n{code}"


def test_a_notebook_is_a_page() -> None:
    """It has the text, the code, what that prints, and the picture, in their order; links lead to it, on GitHub too."""
    site = build_site()
    page = site.page_of(site.NOTEBOOKS / "first_model.ipynb")
    parts = ("# A first model\n", "[Download", "```python\nimport math", "## Data", "accuracy 0.", "![Output](data:")
    places = [page.index(part) for part in parts]
    assert places == sorted(places)
    assert page.count("```") % 2 == 0
    here = "[x](../examples/notebooks/first_model.ipynb) [y](../LICENSE)"
    assert site.on_page_markdown(here) == "[x](notebooks/first_model.md) [y](../LICENSE)"
