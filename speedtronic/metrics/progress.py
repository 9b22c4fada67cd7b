"""Progress of a run: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

from speedtronic.core.errors import ConfigError
from speedtronic.metrics.lines import describe_event, describe_pace
from speedtronic.metrics.logger import print_line

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

ProgressMode: TypeAlias = Literal["auto", "bar", "plain", "off"]
MODES = ("auto", "bar", "plain", "off")
# Drawing takes about a millisecond; a toy model's updates take less.
REDRAW_EVERY_S = 0.1


class ProgressHook:
    """Shows step, loss, learning rate, tokens a second and time left.

    Args:
        total_steps: Target of the run, an absolute step.
        mode: ``auto`` is a bar on a terminal and plain lines elsewhere.
        console: The logger's, so that text appears above the bar; rich's shared one if None.

    Raises:
        ConfigError: ``mode`` is unknown.
    """

    draws_progress = True
    """Tells the logger that steps are shown here."""

    def __init__(
        self, total_steps: int, mode: ProgressMode = "auto", *, console: Console | None = None
    ) -> None:
        from rich import get_console

        if mode not in MODES:
            raise ConfigError(
                f"logging.progress must be one of {', '.join(MODES)}, got {mode!r}; try 'auto'"
            )
        console = console if console is not None else get_console()
        if mode == "auto":
            mode = "bar" if console.is_terminal else "plain"
        self._view: _View = _Nothing()
        if mode == "bar":
            self._view = _Bar(console, total_steps=total_steps)
        elif mode == "plain":
            self._view = _PlainLines(console, total_steps=total_steps)

    def on_event(self, event: str, payload: Mapping[str, Any]) -> None:
        """Show an event."""
        self._view.show(event, payload)

    def close(self) -> None:
        """Take the bar down, leaving its last state on the screen."""
        self._view.close()


class _View(Protocol):
    def show(self, event: str, payload: Mapping[str, Any]) -> None: ...

    def close(self) -> None: ...


class _Nothing:
    def show(self, event: str, payload: Mapping[str, Any]) -> None:
        pass

    def close(self) -> None:
        pass


class _PlainLines:
    def __init__(self, console: Console, *, total_steps: int) -> None:
        self._console = console
        self._total_steps = total_steps

    def show(self, event: str, payload: Mapping[str, Any]) -> None:
        if event in ("train_step", "eval"):
            line = describe_event(event, payload, total_steps=self._total_steps)
            print_line(self._console, str(line))

    def close(self) -> None:
        pass


class _Bar:
    """A rich bar, up from ``train_start`` to ``train_end``; evaluations are lines above it."""

    def __init__(self, console: Console, *, total_steps: int) -> None:
        self._console = console
        self._total_steps = total_steps
        self._up: tuple[Progress, TaskID] | None = None
        self._drawn_at_s = 0.0

    def show(self, event: str, payload: Mapping[str, Any]) -> None:
        if event in ("train_start", "train_step"):
            self._move(payload)
        elif event == "eval":
            print_line(self._console, str(describe_event(event, payload)))
        elif event == "train_end":
            self.close()

    def close(self) -> None:
        if self._up is not None:
            self._up[0].stop()  # draws the last state
            self._up = None

    def _move(self, payload: Mapping[str, Any]) -> None:
        progress, task = self._up = self._up or self._put_up(payload)
        pace = describe_pace(payload, total_steps=self._total_steps)
        progress.update(task, completed=payload.get("step", 0), pace=pace)
        now_s = time.monotonic()
        if now_s - self._drawn_at_s >= REDRAW_EVERY_S:
            self._drawn_at_s = now_s
            progress.refresh()

    def _put_up(self, payload: Mapping[str, Any]) -> tuple[Progress, TaskID]:
        from rich.progress import BarColumn, Progress, TextColumn

        progress = Progress(
            TextColumn("step {task.completed:.0f}/{task.total:.0f}"),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[pace]}", markup=False),
            console=self._console,
            expand=True,
            auto_refresh=False,  # drawn at events: no thread to own
        )
        task = progress.add_task(
            "", total=self._total_steps, completed=payload.get("step", 0), pace=""
        )
        progress.start()
        # rich hides the cursor, and a second Ctrl-C would leave it hidden
        self._console.show_cursor(show=True)
        return progress, task
