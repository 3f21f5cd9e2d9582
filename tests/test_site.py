"""What ``docs/build_site.py`` adds to the pages."""

from __future__ import annotations

import importlib.util
from pathlib import Path

TABLE = """<table>
<thead><tr><th>name</th><th>of <code>"cpu"</code></th><th>note</th></tr></thead>
<tbody>
<tr><td>a</td><td style="text-align: right;">1</td><td></td></tr>
<tr><td>b</td><td style="text-align: right;">2</td><td>x</td></tr>
</tbody>
</table>"""


def test_cells_name_their_column() -> None:
    """On a narrow screen the head of a table is hidden, and each cell but the first shows what its column is."""
    spec = importlib.util.spec_from_file_location("build_site", Path(__file__).parents[1] / "docs" / "build_site.py")
    assert spec is not None
    assert spec.loader is not None
    site = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(site)
    page = site.on_page_content(f"<p>before</p>{TABLE}<table></table>")
    assert page.count("<td>a</td>") == page.count("<td>b</td>") == 1
    assert page.count('<td data-column="of &quot;cpu&quot;" style="text-align: right;">') == 2
    assert page.count('<td data-column="note">') == 2
    assert page.count("data-column") == 4
