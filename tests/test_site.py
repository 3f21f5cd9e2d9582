"""What ``docs/build_site.py`` adds to the pages."""

from __future__ import annotations

import importlib.util
import re
import shutil
import tomllib
from pathlib import Path
from typing import Any

import pytest

TABLE = """<table>
<thead><tr><th>name</th><th>of <code>"cpu"</code></th><th>note</th></tr></thead>
<tbody>
<tr><td>a</td><td style="text-align: right;">1</td><td></td></tr>
<tr><td>b</td><td style="text-align: right;">2</td><td>x</td></tr>
</tbody>
</table>"""


ROOT = Path(__file__).parents[1]
IN_EACH = ("README.md", "pyproject.toml")


def build_site(name: str = "build_site") -> Any:
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
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


def test_a_program_is_a_page() -> None:
    """It says what it is, and has its whole code; the table of examples leads to it."""
    site = build_site()
    file = ROOT / "examples" / "digits_trainer.py"
    page = site.page_of_program(file)
    assert page.startswith("# digits_trainer\n\nHandwritten digits with the Trainer.")
    assert page.endswith(f"```python\n{file.read_text('utf-8').split(chr(34) * 3, 2)[2].lstrip()}```\n")
    table = "| `gan.py` | two models |\n| [`resume.ipynb`](notebooks/resume.ipynb) | a run |"
    led = site.on_page_markdown(table.replace("[", "").replace("](notebooks/resume.ipynb)", ""))
    assert led == "| [`gan.py`](examples/gan.md) | two models |\n| [`resume.ipynb`](notebooks/resume.md) | a run |"


def test_one_command_writes_the_addresses(tmp_path: Path) -> None:
    """Into the site and each package's metadata; then no README has a relative link, which an index cannot follow."""
    plugins = [f"plugins/{path.parent.name}" for path in sorted(ROOT.glob("plugins/*/pyproject.toml"))]
    written = {"mkdocs.yml", "docs/index.md", "docs/install.md"}
    written |= {f"{project}{name}" for project in ("", *(f"{each}/" for each in plugins)) for name in IN_EACH}
    for folder in (".", "docs", "plugins", *plugins):
        (tmp_path / folder).mkdir(exist_ok=True)
        for path in (ROOT / folder).iterdir():
            name = path.relative_to(ROOT).as_posix()
            if name in written:
                shutil.copy(path, tmp_path / name)
            elif name not in ("docs", "plugins", *plugins) and not path.name.startswith((".nox", ".git", ".venv")):
                (tmp_path / name).symlink_to(path)
    write = build_site("write_address").main
    addresses = ("https://example.org/us/torch-hal", "https://us.example.org/torch-hal/")
    write(addresses, tmp_path)
    found = {name: (tmp_path / name).read_text("utf-8") for name in written}
    assert "\nsite_url: https://us.example.org/torch-hal/\n" in found["mkdocs.yml"]
    assert "\nedit_uri: edit/main/docs/\n" in found["mkdocs.yml"]
    for name, text in found.items():
        if name.endswith("pyproject.toml"):
            assert tomllib.loads(text)["project"]["urls"]["Source"] == addresses[0]
        elif name.endswith("README.md"):
            links = re.findall(r"\]\(([^)\s]+)\)", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL))
            assert [link for link in links if not link.startswith(("https://", "#"))] == []
            inside = [link.partition("/main/")[2] for link in links if link.startswith(addresses[0])]
            assert [link for link in inside if not (ROOT / link.partition("#")[0]).exists()] == []
    for page in ("README.md", "docs/index.md", "docs/install.md"):
        assert "pip install torch-hal numpy" in found[page]
        assert "not on a public index" not in found[page]
    write(addresses, tmp_path)
    assert found == {name: (tmp_path / name).read_text("utf-8") for name in written}
    with pytest.raises(SystemExit, match="give two addresses"):
        write(["torch-hal", addresses[1]], tmp_path)
