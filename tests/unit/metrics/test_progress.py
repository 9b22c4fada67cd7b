"""What the progress hook shows on a terminal and elsewhere."""

from __future__ import annotations

import io
import re
import threading
from typing import Any

import pytest
from rich.console import Console

from speedtronic.core.errors import ConfigError
from speedtronic.metrics.logger import MetricLogger
from speedtronic.metrics.progress import ProgressHook

STEP = {"loss": 2.5, "lr": 3e-3, "tokens_per_sec": 12345.6, "steps_per_sec": 2.0}
EVALUATION = {"step": 10, "loss": 1.5, "perplexity": 4.4817, "seconds": 1.0, "sample": "def f"}


def make_console(*, terminal: bool) -> Console:
    return Console(
        file=io.StringIO(), width=100, force_terminal=terminal, color_system=None, _environ={}
    )


def run_three_steps(mode: Any, *, terminal: bool) -> str:
    """Play the events of a run from step 5 to 15 with a log line, and return the raw output."""
    console = make_console(terminal=terminal)
    logger = MetricLogger(console=console)
    logger.add_hook(ProgressHook(15, mode, console=console))
    logger.event("train_start", {"step": 5})
    logger.event("train_step", {"step": 10, **STEP})
    logger.event("eval", EVALUATION)
    logger.info("a log line")
    logger.event("train_step", {"step": 15, **STEP})
    logger.event("checkpoint", {"step": 15, "path": "checkpoints/step_15"})
    logger.event("train_end", {"step": 15})
    logger.close()
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


PLAIN = (
    "step 10/15  loss 2.5000  lr 3.00e-03  12.3k tokens/s  0:02 left\n"
    "step 10  held-out loss 1.5000  perplexity 4.482\n"
    "a log line\n"
    "step 15/15  loss 2.5000  lr 3.00e-03  12.3k tokens/s  0:00 left\n"
)


@pytest.mark.parametrize("mode", ["auto", "plain"])
def test_without_a_terminal_steps_and_evaluations_are_plain_lines(mode: str) -> None:
    assert run_three_steps(mode, terminal=False) == PLAIN


def test_plain_lines_can_be_asked_for_on_a_terminal() -> None:
    assert run_three_steps("plain", terminal=True) == PLAIN


def test_off_leaves_only_the_log() -> None:
    assert run_three_steps("off", terminal=True) == "a log line\n"


@pytest.mark.parametrize("mode", ["auto", "bar"])
def test_on_a_terminal_a_bar_shows_the_run_and_ends_with_its_last_state(mode: str) -> None:
    output = run_three_steps(mode, terminal=True)

    frames = [frame for frame in re.split(r"[\r\n]", output) if "step" in frame]
    assert re.search(r"step 5/15 [━╸╺ ]+", frames[0])  # starts where the run starts
    last_bar = [frame for frame in frames if "━" in frame][-1]
    assert "step 15/15" in last_bar
    assert "loss 2.5000  lr 3.00e-03  12.3k tokens/s  0:00 left" in last_bar


def test_lines_beside_a_bar_are_whole() -> None:
    output = run_three_steps("bar", terminal=True)

    # Erase the line, then the text alone on it, then the bar again.
    assert re.search(r"\x1b\[2Ka log line\n", output)
    assert re.search(r"\x1b\[2Kstep 10  held-out loss 1.5000  perplexity 4.482\n", output)


def test_the_cursor_stays_visible_so_that_a_killed_run_leaves_a_usable_terminal() -> None:
    console = make_console(terminal=True)
    hook = ProgressHook(15, "bar", console=console)

    hook.on_event("train_start", {"step": 0})
    assert isinstance(console.file, io.StringIO)
    output = console.file.getvalue()
    hook.close()

    assert output.rfind("\x1b[?25h") > output.rfind("\x1b[?25l")


def test_a_bar_needs_no_thread_and_comes_down_when_closed_early() -> None:
    console = make_console(terminal=True)
    hook = ProgressHook(15, "bar", console=console)
    before = threading.active_count()

    hook.on_event("train_step", {"step": 1, **STEP})
    assert threading.active_count() == before
    hook.close()
    hook.close()

    console.print("after")
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue().endswith("after\n")


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"logging\.progress must be one of auto, .*, got 'pie'"):
        ProgressHook(10, "pie")  # type: ignore[arg-type]
