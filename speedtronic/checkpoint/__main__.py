"""List, verify and export the checkpoints of a run: ``python -m speedtronic.checkpoint RUN``."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field

from speedtronic.checkpoint.folder import (
    META_FILE,
    Entry,
    Inspector,
    best_good,
    candidates,
    newest_good,
    step_folders,
)
from speedtronic.checkpoint.locating import checkpoint_directory, find_checkpoint
from speedtronic.core.arguments import ToolArguments, parse_arguments, run_tool

USAGE = """python -m speedtronic.checkpoint RUN [checkpoint=best|latest|STEP] [export=PATH]

Lists the checkpoints of a run folder, newest last, and verifies their files against their SHA-256
sums. Exit status 1 when one is damaged, 2 when there is none.

  checkpoint=...  only this one
  export=PATH     write its weights (default: the best, else the newest) to PATH, a new .safetensors
                  file, and its configuration beside it with the ending .json; nothing is listed"""

_HEADER = ("step", "size", "metric", "age", "state", "")
_NUM_RIGHT_ALIGNED = 4
_SIZE_UNITS = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1, "B"))
_AGE_UNITS = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s"))


class CheckpointArguments(ToolArguments):
    """The words of the command."""

    run: Path
    """Run folder, a folder of checkpoints, or one checkpoint."""
    checkpoint: str | None = None
    """best, latest or a step; null: all, and for an export the best, else the newest."""
    export: Annotated[str, Field(min_length=1)] | None = None
    """New .safetensors file for the weights; null: list and verify."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status.

    Args:
        argv: The words after the module's name; None: those of this process.
    """
    return run_tool(_run, usage=USAGE, argv=argv)


def _run(words: Sequence[str]) -> int:
    usage = USAGE.splitlines()[0]
    arguments = parse_arguments(CheckpointArguments, words, positional="run", usage=usage)
    return _list(arguments) if arguments.export is None else _export(arguments, arguments.export)


def _export(arguments: CheckpointArguments, out: str) -> int:
    from speedtronic.checkpoint.weights import config_path_of, export_weights

    source = find_checkpoint(arguments.run, checkpoint=arguments.checkpoint)
    export_weights(source, out)
    print(f"wrote {out} and {config_path_of(out)} from {source}")
    return 0


def _list(arguments: CheckpointArguments) -> int:
    inspector = Inspector()
    chosen = arguments.checkpoint
    notes: dict[Path, str] = {}
    set_aside: list[str] = []
    if chosen is not None or (arguments.run / META_FILE).is_file():
        folders = [find_checkpoint(arguments.run, checkpoint=chosen)]
    else:
        directory = checkpoint_directory(arguments.run)
        folders = sorted({*step_folders(directory), *candidates(directory)}, key=_by_step)
        notes = _notes(inspector, directory)
        set_aside = sorted(path.name for path in directory.glob("step_*.damaged-*"))
    entries = [inspector.verify(path) for path in folders]
    _print_table([_row(entry, notes.get(entry.path, "")) for entry in entries])
    for name in set_aside:
        print(f"{name} was damaged and is set aside; delete it when you like")
    return 1 if any(entry.problem is not None for entry in entries) else 0


def _by_step(path: Path) -> tuple[int, str]:
    digits = "".join(filter(str.isdecimal, path.name.partition("step_")[2][:12]))
    return int(digits or 0), path.name


def _notes(inspector: Inspector, directory: Path) -> dict[Path, str]:
    latest = newest_good(inspector, directory)
    best = best_good(inspector, directory)
    notes = {} if latest is None else {latest: "latest"}
    for path in best:
        notes[path] = "best, latest" if path == latest else "best"
    return notes


def _row(entry: Entry, note: str) -> tuple[str, ...]:
    return (
        str(entry.step),
        _size(entry.size_bytes) if entry.size_bytes else "?",
        "-" if entry.metric is None else f"{entry.metric:.4f}",
        "?" if entry.saved_at is None else _age(time.time() - entry.saved_at),
        "ok" if entry.problem is None else f"damaged: {entry.problem}",
        note,
    )


def _size(size_bytes: int) -> str:
    return next(
        f"{size_bytes / size:.1f} {unit}" for size, unit in _SIZE_UNITS if size_bytes >= size
    )


def _age(seconds: float) -> str:
    for size, unit in _AGE_UNITS:
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return "0 s"


def _print_table(rows: Sequence[tuple[str, ...]]) -> None:
    if sys.stdout.isatty():
        _print_rich(rows)
        return
    table = [_HEADER, *rows]
    widths = [max(len(row[column]) for row in table) for column in range(len(_HEADER))]
    for row in table:
        cells = [
            text.rjust(width) if column < _NUM_RIGHT_ALIGNED else text.ljust(width)
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        ]
        print("  ".join(cells).rstrip())


def _print_rich(rows: Sequence[tuple[str, ...]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table()
    for column, name in enumerate(_HEADER):
        table.add_column(name, justify="right" if column < _NUM_RIGHT_ALIGNED else "left")
    for row in rows:
        is_damaged = row[_NUM_RIGHT_ALIGNED] != "ok"
        table.add_row(*row, style="red" if is_damaged else None)
    Console().print(table)


if __name__ == "__main__":
    sys.exit(main())
