"""List, verify and export the checkpoints of a run: ``python -m speedtronic.checkpoint RUN``."""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

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
from speedtronic.core.errors import ConfigError, SpeedtronicError, nearest

USAGE = """usage: python -m speedtronic.checkpoint RUN [checkpoint=best|latest|STEP] [export=PATH]

Lists the checkpoints of a run folder, newest last, and verifies their files against their SHA-256
sums. Exit status 1 when one is damaged, 2 when there is none.

  checkpoint=...  only this one
  export=PATH     write its weights (default: the best, else the newest) to PATH, a new .safetensors
                  file, and its configuration beside it with the ending .json; nothing is listed"""

_KEYS = ("checkpoint", "export")
_HEADER = ("step", "size", "metric", "age", "state", "")
_NUM_RIGHT_ALIGNED = 4
_SIZE_UNITS = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1, "B"))
_AGE_UNITS = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s"))


@dataclass(frozen=True)
class _Request:
    run: Path
    options: dict[str, str] = field(default_factory=dict)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status.

    Args:
        argv: The words after the module's name; None: those of this process.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] in ("-h", "--help"):
        print(USAGE, file=sys.stdout if words else sys.stderr)
        return 0 if words else 2
    try:
        request = _parse(words)
        if "export" in request.options:
            return _export(request)
        return _list(request)
    except (SpeedtronicError, OSError) as error:
        if os.environ.get("HYDRA_FULL_ERROR") == "1":
            raise
        print(f"error: {error}", file=sys.stderr)
        return error.exit_status if isinstance(error, SpeedtronicError) else 1


def _parse(words: Sequence[str]) -> _Request:
    request = None
    options: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if equals and key in _KEYS:
            if not value:
                raise ConfigError(f"{key} must have a value, got {word!r}")
            options[key] = value
        elif request is None and (not equals or Path(word).exists()):
            request = _Request(run=Path(word))
        else:
            near = nearest(key, _KEYS)
            hint = f"; did you mean {near}=?" if near else f"; known are {', '.join(_KEYS)}"
            raise ConfigError(f"an argument must be RUN or KEY=VALUE, got {word!r}{hint}")
    if request is None:
        raise ConfigError("a run folder must be given; see --help")
    return replace(request, options=options)


def _export(request: _Request) -> int:
    from speedtronic.checkpoint.weights import config_path_of, export_weights

    source = _find(request)
    out = request.options["export"]
    export_weights(source, out)
    print(f"wrote {out} and {config_path_of(out)} from {source}")
    return 0


def _find(request: _Request) -> Path:
    """Find the chosen checkpoint; what is skipped on the way is one line each."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = find_checkpoint(request.run, checkpoint=request.options.get("checkpoint"))
    for warning in caught:
        print(f"warning: {warning.message}", file=sys.stderr)
    return found


def _list(request: _Request) -> int:
    inspector = Inspector()
    chosen = request.options.get("checkpoint")
    notes: dict[Path, str] = {}
    set_aside: list[str] = []
    if chosen is not None or (request.run / META_FILE).is_file():
        folders = [_find(request)]
    else:
        directory = checkpoint_directory(request.run)
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
