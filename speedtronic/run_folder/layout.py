"""Where each file of a run folder lies, and whether a folder holds a run worth keeping."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_CHECKPOINT_NAME = re.compile(r"step_(\d+)")


@dataclass(frozen=True)
class RunFolder:
    """The paths below one run folder; nothing is created or read until a method is called."""

    path: Path
    """The folder itself; need not exist."""
    metrics_name: str = "metrics.jsonl"
    """``logging.json_file``: the records, below the folder unless absolute."""
    checkpoints_name: str = "checkpoints"
    """``checkpoint.directory``: the checkpoints, below the folder unless absolute."""

    @property
    def config_json(self) -> Path:
        """The resolved settings as trained."""
        return self.path / "config.json"

    @property
    def run_json(self) -> Path:
        """Segments with their command lines, versions and machines."""
        return self.path / "run.json"

    @property
    def result_json(self) -> Path:
        """Status, losses and speed of the whole run."""
        return self.path / "result.json"

    @property
    def metrics(self) -> Path:
        """One JSON object a line; each step once."""
        return self.path / self.metrics_name

    @property
    def superseded(self) -> Path:
        """Records of steps that a resume did again."""
        return self.metrics.with_name(f"{self.metrics.stem}.superseded{self.metrics.suffix}")

    @property
    def checkpoints(self) -> Path:
        """The folder of checkpoints."""
        return self.path / self.checkpoints_name

    @property
    def tensorboard(self) -> Path:
        """TensorBoard event files."""
        return self.path / "tensorboard"

    @property
    def curves(self) -> Path:
        """The drawn curves."""
        return self.path / "curves.png"

    @property
    def log(self) -> Path:
        """The text log."""
        return self.path / "train.log"

    @property
    def hydra(self) -> Path:
        """What Hydra saved at the first start."""
        return self.path / ".hydra"

    @property
    def tokenizer(self) -> Path:
        """The tokenizer the run was trained with."""
        return self.path / "tokenizer.json"

    @property
    def routing(self) -> Path:
        """Which algorithm trains which parameter; only of runs with more than one."""
        return self.path / "routing.json"

    @property
    def lock(self) -> Path:
        """The file whose lock makes one process the owner."""
        return self.path / ".lock"

    @property
    def owner_json(self) -> Path:
        """Who holds the lock: pid, host and start time."""
        return self.path / ".lock.json"

    def latest_step(self) -> int | None:
        """Return the step of the newest checkpoint by name, unverified, or None without one."""
        if not self.checkpoints.is_dir():
            return None
        matches = (_CHECKPOINT_NAME.fullmatch(entry.name) for entry in self.checkpoints.iterdir())
        return max((int(match[1]) for match in matches if match), default=None)

    def recorded_steps(self) -> int:
        """Return the highest step any file of the run names; 0 when none does."""
        run, result = read_json(self.run_json), read_json(self.result_json)
        known = [self.latest_step(), _count(result), _count(run), self._last_metric_step()]
        return max(step or 0 for step in known)

    def holds_run(self) -> bool:
        """Return whether a fresh start here would mix with, or lose, an earlier run.

        A start that failed before its first step leaves nothing to lose and does not count.
        """
        if self.recorded_steps() > 0 or self.latest_step() is not None:
            return True
        run = read_json(self.run_json)
        if run is None:
            return self.result_json.exists() or self.run_json.exists()
        segments = run.get("segments", [])
        return any(segment.get("status") != "failed" for segment in segments)

    def is_foreign(self) -> bool:
        """Return whether the folder holds files and none of them is a run's."""
        if not self.path.is_dir() or self.latest_step() is not None:
            return False
        # Not config.json and the like: folders of other programs have those as well.
        known = (self.lock, self.owner_json, self.hydra, self.run_json)
        entries = {entry.name for entry in self.path.iterdir()}
        return bool(entries) and entries.isdisjoint(path.name for path in known)

    def _last_metric_step(self) -> int:
        try:
            with self.metrics.open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - 65536))
                lines = file.read().splitlines()
        except OSError:
            return 0
        return max((_step_of(line) for line in lines), default=0)


@dataclass(frozen=True)
class ResumableRun:
    """A run with a checkpoint."""

    path: Path
    step: int


def find_resumable(parent: Path, *, limit: int) -> list[ResumableRun]:
    """Return the runs below a folder that have a checkpoint, the newest checkpoints first.

    Args:
        parent: The folder of the runs of one name.
        limit: Most runs to return.
    """
    if not parent.is_dir():
        return []
    found: list[tuple[float, ResumableRun]] = []
    for path in parent.iterdir():
        folder = RunFolder(path)
        step = folder.latest_step()
        if step is not None:
            found.append((folder.checkpoints.stat().st_mtime, ResumableRun(path, step)))
    newest = sorted(found, key=lambda item: item[0], reverse=True)
    return [run for _, run in newest[:limit]]


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the object in a JSON file; None when it is missing, torn or no object."""
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def _count(record: dict[str, Any] | None) -> int:
    steps = (record or {}).get("steps")
    return steps if isinstance(steps, int) else 0


def _step_of(line: bytes) -> int:
    try:
        step = json.loads(line)["step"]
    except (ValueError, TypeError, KeyError):
        return 0
    return step if isinstance(step, int) else 0
