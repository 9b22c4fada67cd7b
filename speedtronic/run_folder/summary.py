"""The closing words of a run: how it ended, how fast, where things lie, what to type next."""

from __future__ import annotations

from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from speedtronic.run_folder.commands import resume_command, shown_path, tensorboard_command
from speedtronic.run_folder.layout import RunFolder
from speedtronic.run_folder.records import ResultRecord

__all__ = ["render_summary", "resume_command", "shown_path", "tensorboard_command"]

_MAX_WIDTH = 88
_NAME_WIDTH = 14
_MINUTE_S = 60
_HOUR_S = 3600
_STATUS_STYLE = {"completed": "green", "interrupted": "yellow", "failed": "red"}


def render_summary(
    result: ResultRecord,
    *,
    folder: RunFolder,
    resume: str | None = None,
    sample: str | None = None,
    console: Console | None = None,
) -> None:
    """Print how a run ended: a panel on a terminal, plain lines elsewhere.

    Only files that exist are named. Commands and the sample stand outside the panel in unbroken
    lines, so that they can be copied.

    Args:
        result: The record of the whole run.
        folder: The run folder.
        resume: The command that continues the run; None leaves the line out.
        sample: Text the model wrote; None leaves it out.
        console: Where to print; standard output by default.
    """
    out = console or Console()
    rows = [(name, value) for name, value in _facts(result) if value]
    rows += _places(folder)
    commands = [("resume", resume)] if resume else []
    if folder.tensorboard.is_dir():
        commands.append(("TensorBoard", tensorboard_command(folder)))
    if out.is_terminal:
        out.print(_panel(result, rows), width=min(out.width, _MAX_WIDTH))
    else:
        for name, value in rows:
            _print_plain(out, f"{name + ':':<{_NAME_WIDTH}} {value}")
    for name, command in commands:
        _print_plain(out, f"{name + ':':<{_NAME_WIDTH}} {command}")
    if sample is not None:
        _print_plain(out, f"sample:\n{_clean(sample)}")


def _facts(result: ResultRecord) -> list[tuple[str, str]]:
    best_at = "" if result.best_eval_step is None else f" at step {result.best_eval_step:,}"
    speed = "" if result.tokens_per_sec is None else f"{result.tokens_per_sec:,.0f} tokens/s"
    amount = f"{result.tokens:,} tokens in {_duration(result.elapsed_s)}"
    return [
        ("status", f"{result.status} at step {result.steps:,}"),
        ("error", result.error or ""),
        ("final loss", _loss(result.final_loss)),
        ("held-out loss", _loss(result.final_eval_loss)),
        ("best held-out", _loss(result.best_eval_loss) and _loss(result.best_eval_loss) + best_at),
        ("speed", ", ".join(filter(None, [speed, amount]))),
        ("skipped", f"{result.skipped_steps:,} attempts" if result.skipped_steps else ""),
        ("fallbacks", "; ".join(_reason(fallback) for fallback in result.fallbacks)),
        ("exact", "" if result.exact else "no: this run may differ in its last bits when repeated"),
    ]


def _places(folder: RunFolder) -> list[tuple[str, str]]:
    named = [folder.checkpoints, folder.curves, folder.metrics, folder.log]
    inside = [path.name + "/" * path.is_dir() for path in named if path.exists()]
    return [("folder", shown_path(folder.path)), ("in it", ", ".join(inside))][: 1 + bool(inside)]


def _panel(result: ResultRecord, rows: list[tuple[str, str]]) -> Panel:
    style = _STATUS_STYLE.get(result.status, "cyan")
    return Panel(
        _table(rows),
        title=f"[bold]{result.status}",
        border_style=style,
        title_align="left",
        padding=(1, 2),
    )


def _table(rows: list[tuple[str, str]]) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, Text(value, overflow="fold"))
    return table


def _print_plain(out: Console, line: str) -> None:
    out.print(line, markup=False, highlight=False, soft_wrap=True, emoji=False)


def _clean(text: str) -> str:
    """Make control characters of a sampled text visible; a model must not move the cursor."""
    return "".join(
        char if char.isprintable() or char in "\n\t" else "\N{REPLACEMENT CHARACTER}"
        for char in text
    )


def _loss(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def _reason(fallback: object) -> str:
    if isinstance(fallback, dict):
        return str(fallback.get("reason") or fallback.get("kind") or fallback)
    return str(fallback)


def _duration(seconds: float) -> str:
    """Return seconds as a person says them.

    Example:
        >>> [_duration(value) for value in (4.26, 200, 7500)]
        ['4.3 s', '3 min 20 s', '2 h 5 min']
    """
    if seconds < _MINUTE_S - 0.05:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < _HOUR_S:
        return f"{whole // _MINUTE_S} min {whole % _MINUTE_S} s"
    minutes = round(seconds / _MINUTE_S)
    return f"{minutes // 60} h {minutes % 60} min"
