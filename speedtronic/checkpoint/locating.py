"""Finding checkpoints from what a user names: a run, a folder of them, or one; no torch."""

from __future__ import annotations

import json
import warnings
from os import PathLike
from pathlib import Path
from typing import Any

from speedtronic.checkpoint.folder import (
    META_FILE,
    Inspector,
    best_good,
    candidates,
    checkpoint_name,
    newest_good,
    step_folders,
    step_of,
)
from speedtronic.core.errors import ConfigError

DEFAULT_DIRECTORY = "checkpoints"
_CONFIG_FILE = "config.json"


def checkpoint_directory(run: Path) -> Path:
    """Return the folder that holds a run's checkpoints.

    Args:
        run: A run folder, or a folder of checkpoints itself.

    Raises:
        ConfigError: There is no checkpoint in either.
    """
    if not run.is_dir():
        raise ConfigError(f"{run} is no folder; give a run folder or a folder of checkpoints")
    for folder in (run / _configured_directory(run), run / DEFAULT_DIRECTORY, run):
        if step_folders(folder) or candidates(folder):
            return folder
    raise ConfigError(f"{run} holds no checkpoints; give a run folder that has saved one")


def _configured_directory(run: Path) -> str:
    """Return ``checkpoint.directory`` of a run's configuration, or the default."""
    try:
        config: Any = json.loads((run / _CONFIG_FILE).read_text(encoding="utf-8"))
        directory = config["checkpoint"]["directory"]
    except (OSError, ValueError, KeyError, TypeError):
        return DEFAULT_DIRECTORY
    return directory if isinstance(directory, str) else DEFAULT_DIRECTORY


def find_checkpoint(path: str | PathLike[str], *, checkpoint: str | int | None = None) -> Path:
    """Return the directory of one checkpoint.

    Args:
        path: A run folder, a folder of checkpoints, or a checkpoint (then the choice is ignored).
        checkpoint: ``"best"``, ``"latest"``, a step or a directory's name; None: the best by its
            metric, else the newest. Damaged ones are passed over, except one named by its step.

    Raises:
        ConfigError: There is none.
    """
    source = Path(path)
    if (source / META_FILE).is_file():
        return source
    directory = checkpoint_directory(source)
    inspector = Inspector()
    found: Path | None
    if checkpoint is None or checkpoint == "best":
        best = best_good(inspector, directory)
        found = best[0] if best else newest_good(inspector, directory)
    elif checkpoint == "latest":
        found = newest_good(inspector, directory)
    else:
        return _named(directory, str(checkpoint))
    for entry in inspector.damaged():
        warnings.warn(f"skipped a damaged checkpoint: {entry.path}: {entry.problem}", stacklevel=2)
    if found is None:
        raise ConfigError(
            f"{directory} holds no whole checkpoint; `python -m speedtronic.checkpoint "
            f"{source}` says what is wrong"
        )
    return found


def _named(directory: Path, name: str) -> Path:
    wanted = checkpoint_name(int(name)) if name.isdecimal() else name
    steps = {path.name: path for path in step_folders(directory)}
    if wanted in steps:
        return steps[wanted]
    there = ", ".join(str(step_of(path)) for path in reversed(steps.values()))
    raise ConfigError(f"checkpoint must be best, latest or one of the steps {there}, got {name}")
