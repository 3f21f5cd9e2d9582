"""What the callbacks that need rich draw, and what happens without it."""

from __future__ import annotations

import io
import re
import sys
from typing import Any

import pytest

from core.callbacks import RichModelSummary, RichProgressBar
from core.callbacks.display.rich_display import RichProgressBarTheme
from core.errors import ConfigurationError

from .regression import Regression, loader, quiet

rich = pytest.importorskip("rich")


class Shown(Regression):
    """Logs for the bar."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.log("loss", 1000.0 + self.global_step, prog_bar=True)
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        self.log("error", 0.123456, prog_bar=True)


def console() -> tuple[io.StringIO, dict[str, Any]]:
    """A terminal of 160 columns, and what is written to it."""
    written = io.StringIO()
    return written, {"file": written, "force_terminal": True, "width": 160, "legacy_windows": False, "_environ": {}}


def left(written: io.StringIO) -> list[str]:
    """The lines that are left standing, without colours."""
    import re

    screen, row = [""], 0
    for part in re.split("(\r|\n|\x1b\\[[0-9;?]*[A-Za-z])", written.getvalue()):
        if part == "\n":
            row += 1
            screen += [""] * (row == len(screen))
        elif part == "\x1b[2K":
            screen[row] = ""
        elif re.fullmatch("\x1b\\[[0-9]*A", part):
            row -= int(part[2:-1] or 1)
        elif not part.startswith(("\x1b", "\r")):
            screen[row] += part
    return [line.rstrip() for line in screen if line.strip()]


@pytest.mark.parametrize("leave", [True, False])
def test_bars(leave: bool) -> None:
    """A bar for each epoch or one for all, with batches and newest values; none of validation is left."""
    written, options = console()
    bar = RichProgressBar(leave=leave, console_kwargs=options)
    trainer = quiet(max_epochs=2, callbacks=[bar], enable_progress_bar=None)
    trainer.fit(Shown(), loader(), loader())
    lines = left(written)
    assert len(lines) == (2 if leave else 1)
    for number, line in zip((1, 2) if leave else (2,), lines, strict=True):
        assert line.startswith(f"epoch {number}/2 ━")
        assert " 7/7 " in line
        assert re.search(rf"error: 0.1235 loss: {999 + 7 * number} memory: [\d.]+ GB$", line)
    assert "validation" in written.getvalue()
    trainer.validate(Shown(), loader())
    assert left(written)[-1].startswith("validation ━")


def test_theme_and_rate() -> None:
    """The theme's styles and delimiter are used; 0 draws nothing."""
    written, options = console()
    theme = RichProgressBarTheme(description="bold red", metrics_text_delimiter=" | ", metrics_format=".2f")
    quiet(enable_progress_bar=None, max_epochs=1, callbacks=[RichProgressBar(theme=theme, console_kwargs=options)]).fit(
        Shown(), loader(), loader()
    )
    assert "\x1b[1;31mepoch 1/1" in written.getvalue()
    assert re.search(r"error: 0.12 \| loss: 1006.00 \| memory: [\d.]+ GB$", left(written)[-1])
    written, options = console()
    quiet(enable_progress_bar=None, max_epochs=1, callbacks=[RichProgressBar(0, console_kwargs=options)]).fit(
        Shown(), loader()
    )
    assert written.getvalue() == ""


def test_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """Lines are written instead, as by the other bar."""
    quiet(enable_progress_bar=None, max_epochs=1, callbacks=[RichProgressBar()]).fit(Shown(), loader())
    assert capsys.readouterr().err.startswith("epoch 1/1: 7/7 batches in 0:00:0")


def test_summary() -> None:
    """The same numbers as the plain table has."""
    written, options = console()
    summary = RichModelSummary(max_depth=2, **options)
    quiet(max_epochs=1, callbacks=[summary], enable_model_summary=None).fit(Regression(), loader())
    shown = left(written)
    assert summary.summary is not None
    for line in str(summary.summary).splitlines():
        if set(line) != {"-"}:
            cells = line.replace("|", " ").split()
            assert any(all(cell in row.split() for cell in cells) for row in shown), line


@pytest.mark.parametrize("kind", [RichProgressBar, RichModelSummary])
def test_without_rich(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names what to install."""
    monkeypatch.setitem(sys.modules, "rich", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(
        ConfigurationError, match=rf"{kind.__name__}: rich is not.*pip install 'torch-hal\[rich\]@file://"
    ):
        kind()
