"""The history of a run: segments in run.json, the outcome in result.json, metrics kept in order."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from speedtronic.core.files import fsync_dir, unique_suffix, write_json
from speedtronic.run_folder.environment import describe_environment
from speedtronic.run_folder.layout import RunFolder, read_json


@dataclass(frozen=True)
class ResultRecord:
    """What result.json says about a whole run, over all its segments."""

    status: str
    """completed, interrupted or failed."""
    steps: int = 0
    """Finished optimizer updates."""
    samples: int = 0
    """Samples seen."""
    tokens: int = 0
    """Tokens seen."""
    final_loss: float | None = None
    """Training loss of the last update, nats."""
    final_eval_loss: float | None = None
    """Held-out loss at the end, nats."""
    best_eval_loss: float | None = None
    """Lowest held-out loss, nats."""
    best_eval_step: int | None = None
    """Step of the lowest held-out loss."""
    elapsed_s: float = 0.0
    """Seconds summed over the segments."""
    tokens_per_sec: float | None = None
    """Tokens by seconds of the whole run."""
    skipped_steps: int = 0
    """Attempts that changed no weight."""
    fallbacks: Sequence[Any] = ()
    """One entry a fallback: what, why, what was used instead."""
    exact: bool = True
    """Whether the run equals an uninterrupted one bit for bit."""
    run_dir: str | None = None
    """The run folder."""
    error: str | None = None
    """One line about the failure; None when there was none."""


def begin_segment(
    folder: RunFolder, *, argv: Sequence[str], facts: Mapping[str, Any] | None = None, step: int = 0
) -> int:
    """Open a segment in run.json: one start of the program on this run.

    A last segment still called running was killed: it is closed here as such, with the time and
    step its metrics reached. Call it before the metrics are opened or trimmed.

    Args:
        folder: The run folder, claimed by the caller.
        argv: The command line as typed; secrets are redacted.
        facts: What the run found out about its data and machine, JSON values.
        step: The step the segment starts from.

    Returns:
        The segment's number, from 1.
    """
    run = read_json(folder.run_json) or {}
    segments = [segment for segment in run.get("segments", []) if isinstance(segment, dict)]
    if segments and segments[-1].get("status") == "running":
        segments[-1] = _close_killed(segments[-1], folder)
    number = len(segments) + 1
    started = _now()
    environment = describe_environment(argv)
    segment = {
        "segment": number,
        "status": "running",
        "started": started,
        "ended": None,
        "first_step": step,
        "steps": step,
        "elapsed_s": None,
        **environment,
    }
    write_json(
        folder.run_json,
        {
            "status": "running",
            "created": run.get("created", started),
            "steps": step,
            "facts": _plain({**run.get("facts", {}), **(facts or {})}),
            "segments": [*segments, segment],
        },
    )
    return number


def end_segment(
    folder: RunFolder, *, status: str, steps: int, elapsed_s: float, error: str | None = None
) -> None:
    """Close the open segment.

    Args:
        folder: The run folder.
        status: completed, interrupted or failed.
        steps: The step the run is at now.
        elapsed_s: Training seconds of this segment.
        error: One line about a failure.
    """
    run = _read_run(folder)
    closed = {"status": status, "steps": steps, "elapsed_s": elapsed_s, "ended": _now()}
    run["segments"][-1].update(closed if error is None else {**closed, "error": error})
    run.update(status=status, steps=steps)
    write_json(folder.run_json, run)


def total_elapsed_s(folder: RunFolder) -> float:
    """Return the seconds of all closed segments, killed ones included as far as known."""
    run = read_json(folder.run_json) or {}
    return sum(segment.get("elapsed_s") or 0.0 for segment in run.get("segments", []))


def write_result(folder: RunFolder, record: ResultRecord) -> None:
    """Write result.json; numbers JSON cannot say become null."""
    write_json(folder.result_json, _plain(asdict(record)))


def read_result(folder: RunFolder) -> dict[str, Any] | None:
    """Return result.json, or None when there is none yet."""
    return read_json(folder.result_json)


def supersede_records(folder: RunFolder, *, after_step: int) -> int:
    """Move the records of steps that will be done again out of metrics.jsonl.

    They go to the end of metrics.superseded.jsonl. A torn line, as a kill leaves at the end, is
    dropped. metrics.jsonl is replaced in one rename, and only when something changes. Call it
    before a logger opens the file.

    Args:
        folder: The run folder.
        after_step: The step of the checkpoint the run continues from; its own records stay.

    Returns:
        The number of records moved.
    """
    if not folder.metrics.exists():
        return 0
    temporary = folder.metrics.with_name(f".metrics.tmp-{unique_suffix()}")
    try:
        moved, changed = _split_records(folder.metrics, temporary, after_step=after_step)
        if moved:
            _append(folder.superseded, moved)
        if changed:
            temporary.replace(folder.metrics)
            fsync_dir(folder.path)
    finally:
        temporary.unlink(missing_ok=True)
    return len(moved)


def _split_records(source: Path, kept: Path, *, after_step: int) -> tuple[list[bytes], bool]:
    """Copy the lines up to a step; return the later ones, and whether anything was left out."""
    moved: list[bytes] = []
    changed = False
    with source.open("rb") as lines, kept.open("xb") as out:
        for line in lines:
            step = _record_step(line)
            whole = line if line.endswith(b"\n") else line + b"\n"
            changed = changed or step is None or step > after_step or whole != line
            if step is None:
                continue
            if step > after_step:
                moved.append(whole)
            else:
                out.write(whole)
        out.flush()
        os.fsync(out.fileno())
    return moved, changed


def _record_step(line: bytes) -> int | None:
    """Return the step of a record, 0 where it names none, or None for a torn or foreign line."""
    try:
        record = json.loads(line)
    except ValueError:
        return None
    if not isinstance(record, dict):
        return None
    step = record.get("step", 0)
    return step if isinstance(step, int) else 0


def _append(path: Path, lines: list[bytes]) -> None:
    with path.open("ab") as file:
        file.writelines(lines)
        file.flush()
        os.fsync(file.fileno())


def _close_killed(segment: dict[str, Any], folder: RunFolder) -> dict[str, Any]:
    started = datetime.fromisoformat(segment["started"])
    try:
        ended = datetime.fromtimestamp(folder.metrics.stat().st_mtime, tz=UTC)
    except OSError:
        ended = started
    ended = max(ended, started)
    return {
        **segment,
        "status": "killed",
        "steps": max(segment.get("steps") or 0, folder.recorded_steps()),
        "ended": ended.isoformat(timespec="milliseconds"),
        "elapsed_s": (ended - started).total_seconds(),
    }


def _read_run(folder: RunFolder) -> dict[str, Any]:
    run = read_json(folder.run_json)
    if run is None or not run.get("segments"):
        raise FileNotFoundError(
            f"{folder.run_json} holds no open segment; begin_segment comes first"
        )
    return run


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _plain(value: Any) -> Any:
    """Return a value as strict JSON knows it: non-finite numbers become null, tuples lists."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return str(value)
