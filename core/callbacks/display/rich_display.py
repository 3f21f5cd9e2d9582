"""The summary of a module and the progress bar, drawn by rich, an optional package."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import Any

import attrs

from ...errors import ConfigurationError
from ...hints.argument_checks import check_count
from ...hints.remedies import package
from .model_summary import ModelSummary, Summary
from .progress_bar import Display, ProgressBar, Written, draws_bars


def has_rich() -> bool:
    """Whether rich is installed."""
    return importlib.util.find_spec("rich") is not None


def check_rich(owner: object, instead: str) -> None:
    """Check that rich is installed.

    Args:
        owner: What needs it.
        instead: The callback that does without.

    Raises:
        ConfigurationError: It is not installed.
    """
    if not has_rich():
        raise ConfigurationError(
            f"{type(owner).__name__}: rich is not installed. Run: pip install {package('torch-hal[rich]')!r}, or use "
            f"{instead}."
        )


def make_console(**options: Any) -> Any:
    """A console on the standard error stream, with further arguments of ``rich.console.Console``."""
    from rich.console import Console

    return Console(**{"stderr": True, **options})


class RichModelSummary(ModelSummary):
    """A :class:`ModelSummary` that rich draws on the standard error stream.

    Args:
        max_depth: How many levels of layers to list; 0 shows nothing, -1 lists all.
        **console_kwargs: Arguments of ``rich.console.Console``.

    Raises:
        ConfigurationError: rich is not installed.
    """

    def __init__(self, max_depth: int = 1, **console_kwargs: Any) -> None:
        super().__init__(max_depth)
        check_rich(self, "ModelSummary")
        self._console_options = console_kwargs

    def write(self, summary: Summary) -> None:
        """Draw the table, and the totals below it."""
        from rich.table import Table
        from rich.text import Text

        header, rows = summary.table()
        table = Table(header_style="bold magenta")
        for title in header:
            table.add_column(title, justify="right" if title in ("Params", "FLOPs") else "left")
        for row in rows:
            table.add_row(*map(Text, row))
        console = make_console(**self._console_options)
        console.print(table)
        for line in (*summary.totals(), *summary.notes):
            console.print(Text(line))


@attrs.frozen(kw_only=True)
class RichProgressBarTheme:
    """The styles of a :class:`RichProgressBar`, as rich names them: ``"green"``, ``"bold #6206E0"``."""

    description: str = ""
    progress_bar: str = "#6206E0"
    progress_bar_finished: str = "#6206E0"
    progress_bar_pulse: str = "#6206E0"
    batch_progress: str = ""
    time: str = "dim"
    processing_speed: str = "dim underline"
    metrics: str = "italic"
    metrics_text_delimiter: str = " "
    """What stands between two metrics."""
    metrics_format: str = ".4g"
    """The format of a metric, as Python's :func:`format` takes it."""


class RichProgressBar(ProgressBar):
    """A :class:`ProgressBar` drawn by rich. If standard error is not a terminal, it prints lines, as ProgressBar does.

    Args:
        refresh_rate: The number of batches between two refreshes; 0 shows nothing. Each refresh waits for the device.
        leave: Whether the bar of each epoch stays on the screen; otherwise one bar serves all epochs.
        theme: The styles.
        console_kwargs: Arguments of ``rich.console.Console``; by default it writes to the standard error stream.

    Raises:
        ConfigurationError: rich is not installed, or ``refresh_rate`` is negative.
    """

    def __init__(
        self,
        refresh_rate: int = 1,
        leave: bool = False,
        theme: RichProgressBarTheme | None = None,
        console_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        check_count("refresh_rate", refresh_rate, 0)
        super().__init__(leave=leave)
        self.refresh_rate = refresh_rate
        self.theme = RichProgressBarTheme() if theme is None else theme
        self._metrics_format = self.theme.metrics_format
        self._console_options = dict(console_kwargs or {})
        self._screen: _Screen | None = None

    @staticmethod
    def is_available() -> bool:
        """Whether rich is installed."""
        return has_rich()

    def _check_available(self) -> None:
        check_rich(self, "ProgressBar")

    def _display(self, title: str, total: int | None, initial: int = 0, leave: bool = True) -> Display | None:
        if not self.refresh_rate:
            return None
        if not draws_bars() and not self._console_options:
            return super()._display(title, total, initial, leave)
        if self._screen is None:
            self._screen = _Screen(self.theme, self._console_options)
        return Display(_Bar(self._screen, title, total, initial, leave), batches=self.refresh_rate)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_screen": None}


class _Screen:
    """What rich draws at a time: only one is possible, so all bars are in it."""

    def __init__(self, theme: RichProgressBarTheme, console_options: Mapping[str, Any]) -> None:
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

        self.theme = theme
        self._progress = Progress(
            TextColumn(_in_style(theme.description, "{task.description}")),
            BarColumn(
                complete_style=theme.progress_bar,
                finished_style=theme.progress_bar_finished,
                pulse_style=theme.progress_bar_pulse,
            ),
            TextColumn(_in_style(theme.batch_progress, "{task.fields[batches]}")),
            TimeElapsedColumn(),
            TextColumn(_in_style(theme.time, "•")),
            TimeRemainingColumn(),
            TextColumn(_in_style(theme.processing_speed, "{task.fields[rate]}")),
            TextColumn(_in_style(theme.metrics, "{task.fields[metrics]}")),
            console=make_console(**console_options),
            auto_refresh=False,  # without a thread: the callback says when to draw
        )
        self._open = 0

    def add(self, title: str, total: int | None, initial: int) -> Any:
        """A new bar; returns its number."""
        if not self._open:
            self._progress.start()
        self._open += 1
        task = self._progress.add_task(title, total=total, completed=initial, batches="", rate="", metrics="")
        self.draw(task, 0, {})
        return task

    def restart(self, task: Any, title: str, total: int | None) -> None:
        """Begin with the next epoch."""
        self._progress.reset(task, total=total, description=title, batches="", rate="", metrics="")
        self.draw(task, 0, {})

    def draw(self, task: Any, batches: int, values: Mapping[str, str]) -> None:
        """Draw ``batches`` more, with ``values``."""
        self._progress.advance(task, batches)
        state = next(one for one in self._progress.tasks if one.id == task)
        done = f"{state.completed:.0f}"
        self._progress.update(
            task,
            batches=done if state.total is None else f"{done}/{state.total:.0f}",
            rate="" if not state.speed else f"{state.speed:.2f}it/s",
            metrics=self.theme.metrics_text_delimiter.join(f"{name}: {value}" for name, value in values.items()),
            refresh=True,
        )

    def close(self, task: Any, leave: bool) -> None:
        """Leave the bar on the screen, or remove it."""
        if not leave:
            self._progress.remove_task(task)
            self._progress.refresh()
        self._open -= 1
        if not self._open:
            self._progress.stop()
            for one in self._progress.task_ids:
                self._progress.remove_task(one)


class _Bar(Written):
    """One bar."""

    def __init__(self, screen: _Screen, title: str, total: int | None, initial: int, leave: bool) -> None:
        self._screen, self._leave = screen, leave
        self._task = screen.add(title, total, initial)

    def restart(self, title: str, total: int | None) -> None:
        """Begin with the next epoch."""
        self._screen.restart(self._task, title, total)

    def show(self, batches: int, values: Mapping[str, str]) -> None:
        """Draw ``batches`` more, with ``values``."""
        self._screen.draw(self._task, batches, values)

    def close(self) -> None:
        """Leave the bar on the screen, or remove it."""
        self._screen.close(self._task, self._leave)


def _in_style(style: str, text: str) -> str:
    return f"[{style}]{text}" if style else text
