"""What mkdocs cannot do by itself when it builds the site; ``mkdocs.yml`` names this file as a hook.

* A line ``<!-- include: NAME -->`` becomes the text of a file in the project's root, such as the changelog.
* Each notebook and program of the examples becomes a page, with a link to the file; links to it lead to the page.
* Each cell of a table says in which column it is, for screens on which a table is a list of its rows.
* The ``::`` before a block of code in a docstring is left out, or becomes ``:`` after a word.
* References in docstrings, such as ``:class:`core.Trainer```, become links into the API reference.
* The build fails if a public name is missing in the API reference.
"""

from __future__ import annotations

import ast
import html
import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
NOTEBOOKS = EXAMPLES / "notebooks"
SOURCES = (ROOT, ROOT / "plugins" / "devkit" / "src")
"""The folders of the packages that the API reference has: core, and what authors of plugins import."""
INCLUDE = re.compile(r"^<!-- include: (\S+) -->$", re.MULTILINE)
TABLE = re.compile(r"<table>.*?</table>", re.DOTALL)
HEAD = re.compile(r"<th\b[^>]*>(.*?)</th>", re.DOTALL)
ROW = re.compile(r"<tr>.*?</tr>", re.DOTALL)
CELL = re.compile(r"<td\b")
TAG = re.compile(r"<[^>]+>")
MARK = re.compile(r"<p>::</p>\n*|:(?=:</p>)")
ROLE = re.compile(r":(?:attr|class|data|exc|func|meth|mod):<code>~?([^<]+)</code>")


def on_files(files: Any, config: Any, **_: Any) -> Any:
    """Add a page for each notebook and program of the examples, and the file itself."""
    from mkdocs.structure.files import File

    for file in sorted((*NOTEBOOKS.glob("*.ipynb"), *EXAMPLES.glob("*.py"))):
        place = f"{file.parent.name}/{file.name}"
        page = page_of(file) if file.suffix == ".ipynb" else page_of_program(file)
        files.append(File.generated(config, place.replace(file.suffix, ".md"), content=page))
        files.append(File.generated(config, place, abs_src_path=str(file)))
    return files


def page_of_program(file: Path) -> str:
    """A program in Markdown: what it says of itself, and its code."""
    text = file.read_text("utf-8")
    said = (ast.get_docstring(ast.parse(text)) or "").replace("``", "`")
    code = text.partition('"""\n\n')[2]
    return f"# {file.stem}\n\n{said}\n\n[Download this program]({file.name})\n\n```python\n{code}```\n"


def page_of(notebook: Path) -> str:
    """A notebook in Markdown: its text, its code, and what the code prints and draws."""
    parts = []
    for cell in json.loads(notebook.read_text("utf-8"))["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", []):
            if "text" in output:
                parts.append(f'```text title="Output"\n{"".join(output["text"])}```')
            else:
                parts.append(f"![Output](data:image/png;base64,{''.join(output['data']['image/png']).strip()})")
    parts.insert(1, f"[Download this notebook]({notebook.name})")
    return "\n\n".join(parts)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Include files of the project's root, and lead links to notebooks, and the names of examples, to their pages."""
    markdown = re.sub(r"\]\(\.\./examples/notebooks/(\w+)\.ipynb\)", r"](notebooks/\1.md)", markdown)
    markdown = INCLUDE.sub(lambda found: included(ROOT / found[1]), markdown)
    for folder, suffix in (("examples", ".py"), ("notebooks", ".ipynb")):
        row = re.compile(rf"^\| `(\w+){re.escape(suffix)}` \|", re.MULTILINE)
        markdown = row.sub(rf"| [`\1{suffix}`]({folder}/\1.md) |", markdown)
    return markdown


def included(file: Path) -> str:
    """The text of a file, without its title; its links into ``docs/`` lead to the pages, others are plain text."""
    text = file.read_text("utf-8").partition("\n")[2]
    text = re.sub(r"\]\(docs/", "](", text)
    return re.sub(r"\[([^\]]+)\]\((?![a-z-]+\.md|https?:|#)[^)]*\)", r"\1", text)


def on_page_content(html: str, **_: Any) -> str:
    """Turn the roles that docstrings contain into links, and name the column of each cell of a table."""
    return TABLE.sub(lambda found: with_columns(found[0]), ROLE.sub(_reference, MARK.sub("", html)))


def with_columns(table: str) -> str:
    """A table whose cells, from the second column on, have the text of their column's head as ``data-column``."""
    heads = [html.escape(html.unescape(TAG.sub("", head)).strip()) for head in HEAD.findall(table)]

    def row(found: re.Match[str]) -> str:
        columns = iter(["", *heads[1:]])
        return CELL.sub(
            lambda cell: f'{cell[0]} data-column="{name}"' if (name := next(columns, "")) else cell[0], found[0]
        )

    return ROW.sub(row, table)


def _reference(found: re.Match[str]) -> str:
    name = html.unescape(found[1])
    if not name.startswith(("core.", "torch_hal_devkit")):
        return f"<code>{found[1]}</code>"
    return f'<autoref optional identifier="{name}"><code>{found[1]}</code></autoref>'


def on_post_build(config: Any, **_: Any) -> None:
    """Compare the API reference with the public names.

    Raises:
        SystemExit: A public name is on no page.
    """
    missing = sorted(set(public_names()) - documented(Path(config["site_dir"]) / "objects.inv"))
    if missing:
        raise SystemExit(f"docs/api/ lacks these public names: {', '.join(missing)}")


def documented(inventory: Path) -> set[str]:
    """The names in the inventory that mkdocstrings writes next to the pages, in Sphinx's format."""
    compressed = inventory.read_bytes().split(b"\n", 4)[4]
    return {line.split(" ", 1)[0] for line in zlib.decompress(compressed).decode().splitlines()}


def public_names() -> Iterator[str]:
    """Every name in an ``__all__`` of the packages and of the modules next to them, with the defining module."""
    for root, package in zip(SOURCES, ("core", "torch_hal_devkit"), strict=True):
        modules = [] if package != "core" else root.glob(f"{package}/*.py")
        for file in sorted({*modules, root / package / "__init__.py", *root.glob(f"{package}/*/__init__.py")}):
            if file.name != "__main__.py":
                parts = file.relative_to(root).with_suffix("").parts
                module = ".".join(part for part in parts if part != "__init__")
                yield from (origin(module, name) for name in exported(module))


def source(module: str) -> ast.Module | None:
    """A module's parsed source, or ``None`` if there is no such module."""
    for root in SOURCES:
        path = root.joinpath(*module.split("."))
        for file in (path / "__init__.py", path.with_suffix(".py")):
            if file.exists():
                return ast.parse(file.read_text("utf-8"))
    return None


def exported(module: str) -> list[str]:
    """The names in a module's ``__all__``, without its version."""
    for node in getattr(source(module), "body", []):
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return [name for name in ast.literal_eval(node.value) if name != "__version__"]
    return []


def origin(module: str, name: str) -> str:
    """Where an exported name is defined, ``module.name``: imports lead there, those for type checkers too."""
    tree = source(module)
    if name.endswith("Registry") and name != "CodeRegistry":
        return f"core.{name}"  # made from the table of kinds, not imported
    for node in ast.walk(tree) if tree else ():
        if isinstance(node, ast.ImportFrom) and node.module:
            # Packages alone import for others: a relative import begins at the package itself.
            home = f"{module}.{node.module}" if node.level == 1 else node.module
            for alias in node.names if home.startswith(("core", "torch_hal_devkit")) else ():
                if (alias.asname or alias.name) == name:
                    return origin(home, alias.name)
    return f"{module}.{name}"
