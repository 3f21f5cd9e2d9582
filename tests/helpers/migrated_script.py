"""The script of docs/migrating-from-lightning.md: as it was written for Lightning, and as it runs here."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "migrating-from-lightning.md"


def after() -> str:
    """With core's imports."""
    return str(re.findall(r"^```python\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)[0])


def before() -> str:
    """With Lightning's, as the diff on the page says."""
    (diff,) = re.findall(r"^```diff\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    old, new = ("".join(re.findall(rf"^\{sign}(.*\n)", diff, re.MULTILINE)) for sign in "-+")
    assert new in after()
    return after().replace(new, old)
