"""Putting one checkpoint on the disk and reading one back, whole or not at all."""

from __future__ import annotations

import errno
import json
import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from speedtronic import __version__
from speedtronic.checkpoint.codec import EncodedState, decode
from speedtronic.checkpoint.folder import (
    FORMAT,
    META_FILE,
    STATE_FILE,
    DamagedCheckpointError,
    Inspector,
    checkpoint_name,
    read_manifest,
    replaced_path,
    seal,
    set_damaged_aside,
    temporary_path,
    verify_files,
)
from speedtronic.checkpoint.tensor_files import ALIASES_KEY, read_tensors, write_tensors
from speedtronic.core.errors import CheckpointError
from speedtronic.core.files import fsync_dir, sha256_file

if TYPE_CHECKING:
    import torch

_IN_THE_WAY = frozenset({errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR})
# Two writers of one step can only meet by accident; each meeting costs one attempt.
_PLACE_ATTEMPTS = 10


@dataclass(frozen=True)
class Snapshot:
    """A state taken apart, with copies of its tensors: what a writer needs, owned by it."""

    step: int
    metric: float | None
    """Finite, lower is better."""
    encoded: EncodedState


def write_checkpoint(directory: Path, snapshot: Snapshot, *, inspector: Inspector) -> Path:
    """Write a checkpoint so that it appears whole, and only when it would survive a power cut.

    Files are written and flushed in a directory that no reader looks at, the manifest last; then
    the directory gets its name. A good checkpoint of the same step is replaced, a damaged one is
    kept beside it.

    Returns:
        The checkpoint's path.

    Raises:
        OSError: The disk is full or fails; what was there before is untouched.
    """
    if not directory.is_dir():
        directory.mkdir(parents=True, exist_ok=True)
        fsync_dir(directory.parent)
    temporary = temporary_path(directory)
    temporary.mkdir()
    try:
        _write_files(temporary, snapshot)
        target = directory / checkpoint_name(snapshot.step)
        _place(temporary, target, inspector)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    inspector.trust(target)
    return target


def _write_files(folder: Path, snapshot: Snapshot) -> None:
    facts = {}
    for name, tensors in snapshot.encoded.tensors.items():
        metadata = {}
        if name == STATE_FILE and snapshot.encoded.aliases:
            metadata[ALIASES_KEY] = json.dumps(snapshot.encoded.aliases)
        write_tensors(folder / name, tensors, metadata=metadata)
        facts[name] = {
            "size": (folder / name).stat().st_size,
            "sha256": sha256_file(folder / name),
        }
    meta = {
        "format": FORMAT,
        "speedtronic": __version__,
        "step": snapshot.step,
        "metric": snapshot.metric,
        "saved_at": time.time(),
        "files": facts,
        "state": snapshot.encoded.tree,
    }
    with (folder / META_FILE).open("xb") as file:
        file.write(seal(meta).encode("ascii"))
        file.flush()
        os.fsync(file.fileno())
    fsync_dir(folder)


def _place(temporary: Path, target: Path, inspector: Inspector) -> None:
    """Give a finished directory its name; what has the name already moves aside first."""
    replaced: list[Path] = []
    try:
        for _ in range(_PLACE_ATTEMPTS):
            if _rename(temporary, target):
                break
            replaced += _move_aside(target, inspector)
        else:
            temporary.rename(target)
    except BaseException:
        if replaced and not target.exists():
            replaced[-1].rename(target)
        raise
    fsync_dir(target.parent)
    for path in replaced:
        shutil.rmtree(path, ignore_errors=True)


def _rename(source: Path, target: Path) -> bool:
    try:
        source.rename(target)
    except OSError as error:
        if error.errno not in _IN_THE_WAY:
            raise
        return False
    return True


def _move_aside(target: Path, inspector: Inspector) -> list[Path]:
    """Make way at a path; return what may be deleted once the new checkpoint is there."""
    is_good = inspector.verify(target).problem is None
    try:
        if not is_good:
            set_damaged_aside(target)
            return []
        return [target.rename(replaced_path(target))]
    except FileNotFoundError:
        return []


def read_checkpoint(path: Path, *, map_location: torch.device | str = "cpu") -> dict[str, Any]:
    """Verify a checkpoint and return its state.

    Args:
        path: The checkpoint's directory.
        map_location: Where its tensors are put.

    Returns:
        The state as it was saved; its tensors are independent of the files.

    Raises:
        DamagedCheckpointError: The checkpoint is not whole; the message names the file.
    """
    try:
        manifest = read_manifest(path)
        verify_files(path, manifest)
        tensors = {name: read_tensors(path / name, device=map_location) for name in manifest.files}
        state: dict[str, Any] = decode(manifest.state, tensors)
    except CheckpointError as error:
        raise DamagedCheckpointError(f"{path} is no whole checkpoint: {error}") from error
    return state
