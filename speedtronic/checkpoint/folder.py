"""What lies in a folder of checkpoints: names, manifests, verification and leftovers; no torch.

A checkpoint is a directory ``step_000000000123/`` whose ``meta.json`` names its files with sizes
and SHA-256 sums and is itself sealed by a sum. A directory that does not match is no checkpoint.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import socket
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from speedtronic.core.errors import CheckpointError
from speedtronic.core.files import sha256_file, unique_suffix

STATE_FILE = "state.safetensors"
OPTIM_FILE = "optim.safetensors"
META_FILE = "meta.json"
TENSOR_FILES = (STATE_FILE, OPTIM_FILE)
FORMAT = 1

TEMPORARY_PREFIX = ".tmp-"
REPLACED_PREFIX = ".old-"
_STEP_NAME = re.compile(r"step_(\d{12,})")
_REPLACED_NAME = re.compile(r"\.old-(step_\d{12,})-.*")
_OWNER = re.compile(r".*-(\d+)-([0-9a-f]{12})")
# Leftovers of another machine, or of this one before it was started again, cannot be asked
# whether their owner lives; nothing writes to a checkpoint for an hour without touching its files.
_FOREIGN_AGE_S = 3600.0


class DamagedCheckpointError(CheckpointError):
    """A directory is no whole checkpoint; the message names the file and what is wrong with it."""


@dataclass(frozen=True)
class FileFacts:
    """What the manifest says about one file."""

    size_bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """The content of ``meta.json``."""

    step: int
    metric: float | None
    """The value the checkpoint is ranked by, lower is better; None when it was saved without."""
    saved_at: float
    """Seconds since 1970."""
    files: dict[str, FileFacts]
    state: Any
    """The state as the codec wrote it, tensors replaced by references."""
    size_bytes: int
    """All files together, ``meta.json`` included."""


@dataclass(frozen=True)
class Entry:
    """One directory of a checkpoint folder and what was found out about it."""

    path: Path
    step: int
    metric: float | None = None
    saved_at: float | None = None
    size_bytes: int = 0
    problem: str | None = None
    """Why it is no whole checkpoint, or None."""
    verified: bool = False
    """Whether the sums of its files were computed, not only their sizes."""


def checkpoint_name(step: int) -> str:
    """Return the name of a step's directory.

    Example:
        >>> checkpoint_name(123)
        'step_000000000123'
    """
    return f"step_{step:012d}"


def step_of(path: Path) -> int | None:
    """Return the step a directory name stands for, or None for any other name."""
    match = _STEP_NAME.fullmatch(path.name)
    return int(match[1]) if match else None


def seal(body: Mapping[str, Any]) -> str:
    """Return the text of a ``meta.json``: strict JSON, its last key the sum of all bytes before."""
    lines = [
        f"{json.dumps(key)}: {json.dumps(value, allow_nan=False)}" for key, value in body.items()
    ]
    head = "{\n" + ",\n".join(lines)
    return head + _seal_of(head.encode("ascii"))


def _seal_of(head: bytes) -> str:
    return f',\n"sha256": "{hashlib.sha256(head).hexdigest()}"\n}}\n'


_SEAL_BYTES = len(_seal_of(b""))


def read_manifest(path: Path) -> Manifest:
    """Read a checkpoint's manifest and compare its files' sizes with it.

    Raises:
        DamagedCheckpointError: There is no manifest, or it does not match its seal or the files.
    """
    manifest = _parse_manifest(path / META_FILE)
    _check_names_and_sizes(path, manifest)
    return manifest


def _parse_manifest(meta: Path) -> Manifest:
    body, size_bytes = _read_sealed(meta)
    try:
        if body["format"] != FORMAT:
            raise DamagedCheckpointError(
                f"{META_FILE} has format {body['format']!r}, this version reads {FORMAT}"
            )
        files = {
            name: FileFacts(size_bytes=facts["size"], sha256=facts["sha256"])
            for name, facts in body["files"].items()
        }
        return Manifest(
            step=body["step"],
            metric=body["metric"],
            saved_at=body["saved_at"],
            files=files,
            state=body["state"],
            size_bytes=size_bytes + sum(facts.size_bytes for facts in files.values()),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise DamagedCheckpointError(f"{META_FILE} lacks a field: {error!r}") from error


def _read_sealed(meta: Path) -> tuple[dict[str, Any], int]:
    try:
        text = meta.read_bytes()
    except OSError as error:
        raise DamagedCheckpointError(f"{META_FILE} cannot be read: {error.strerror}") from error
    if text[-_SEAL_BYTES:] != _seal_of(text[:-_SEAL_BYTES]).encode("ascii"):
        raise DamagedCheckpointError(f"{META_FILE} does not match its own sha256")
    try:
        body: dict[str, Any] = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DamagedCheckpointError(f"{META_FILE} is no JSON this Python reads") from error
    return body, len(text)


def _check_names_and_sizes(path: Path, manifest: Manifest) -> None:
    step = step_of(path)
    if step is not None and step != manifest.step:
        raise DamagedCheckpointError(f"{META_FILE} belongs to step {manifest.step}")
    if set(manifest.files) != set(TENSOR_FILES):
        raise DamagedCheckpointError(f"{META_FILE} names other files: {sorted(manifest.files)}")
    for name, facts in manifest.files.items():
        try:
            size_bytes = (path / name).stat().st_size
        except OSError as error:
            raise DamagedCheckpointError(f"{name} cannot be read: {error.strerror}") from error
        if size_bytes != facts.size_bytes:
            raise DamagedCheckpointError(
                f"{name} has {size_bytes} bytes, {META_FILE} says {facts.size_bytes}"
            )


def verify_files(path: Path, manifest: Manifest, *, names: Iterable[str] = TENSOR_FILES) -> None:
    """Compute the sums of a checkpoint's files.

    Raises:
        DamagedCheckpointError: A file differs from what the manifest says.
    """
    for name in names:
        try:
            digest = sha256_file(path / name)
        except OSError as error:
            raise DamagedCheckpointError(f"{name} cannot be read: {error.strerror}") from error
        if digest != manifest.files[name].sha256:
            raise DamagedCheckpointError(f"{name} does not match its sha256")


class Inspector:
    """Says what checkpoints are worth; sums are computed once for files that do not change."""

    def __init__(self) -> None:
        self._known: dict[Path, tuple[tuple[Any, ...], Entry]] = {}

    def glance(self, path: Path) -> Entry:
        """Look at a checkpoint's manifest and sizes; the sums only where they are known already."""
        return self._look(path, is_full=False)

    def verify(self, path: Path) -> Entry:
        """Look at a checkpoint and compute the sums of its files."""
        return self._look(path, is_full=True)

    def trust(self, path: Path) -> None:
        """Take a checkpoint that this process just wrote for verified until its files change."""
        signature = _signature(path)
        self._known[path] = (signature, replace(_inspect(path, is_full=False), verified=True))

    def forget(self, path: Path) -> None:
        """Drop what is known of a removed checkpoint."""
        self._known.pop(path, None)

    def damaged(self) -> list[Entry]:
        """Return what was found to be no whole checkpoint, newest step first."""
        entries = [entry for _, entry in self._known.values() if entry.problem is not None]
        return sorted(entries, key=lambda entry: entry.step, reverse=True)

    def _look(self, path: Path, *, is_full: bool) -> Entry:
        signature = _signature(path)
        known = self._known.get(path)
        if known is not None and known[0] == signature and (known[1].verified or not is_full):
            return known[1]
        entry = _inspect(path, is_full=is_full)
        self._known[path] = (signature, entry)
        return entry


def _inspect(path: Path, *, is_full: bool) -> Entry:
    step = step_of(path)
    entry = Entry(path=path, step=-1 if step is None else step, verified=is_full)
    try:
        manifest = _parse_manifest(path / META_FILE)
        entry = replace(
            entry,
            step=manifest.step if step is None else step,
            metric=manifest.metric,
            saved_at=manifest.saved_at,
            size_bytes=manifest.size_bytes,
        )
        _check_names_and_sizes(path, manifest)
        if is_full:
            verify_files(path, manifest)
    except DamagedCheckpointError as error:
        return replace(entry, problem=str(error), verified=True)
    return entry


def _signature(path: Path) -> tuple[Any, ...]:
    """Return what changes when a file of a checkpoint is written or replaced."""
    facts: list[Any] = []
    for name in (META_FILE, *TENSOR_FILES):
        try:
            stat = (path / name).stat()
        except OSError:
            facts.append(None)
        else:
            facts.append((stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns))
    return tuple(facts)


def step_folders(directory: Path) -> list[Path]:
    """Return the directories named after a step, newest step first, whatever they hold."""
    try:
        found = [path for path in directory.iterdir() if step_of(path) is not None]
    except OSError:
        return []
    return sorted(found, key=lambda path: step_of(path) or 0, reverse=True)


def candidates(directory: Path) -> list[Path]:
    """Return what may be checkpoints, newest step first: directories with a manifest.

    A process killed while it replaced a step leaves the old one aside; it stands in for the step.
    """
    present = {path.name: path for path in step_folders(directory)}
    for path in _replaced(directory):
        match = _REPLACED_NAME.fullmatch(path.name)
        if match is not None:
            present.setdefault(match[1], path)
    newest_first = sorted(present, key=lambda name: int(name[5:]), reverse=True)
    return [present[name] for name in newest_first if (present[name] / META_FILE).is_file()]


def newest_good(inspector: Inspector, directory: Path) -> Path | None:
    """Return the newest checkpoint whose files match their sums, or None."""
    entries = (inspector.verify(path) for path in candidates(directory))
    return next((entry.path for entry in entries if entry.problem is None), None)


def best_good(inspector: Inspector, directory: Path, *, count: int = 1) -> list[Path]:
    """Return the checkpoints with the lowest metric that match their sums, best first."""
    ranked = [inspector.glance(path) for path in candidates(directory)]
    with_metric = [entry for entry in ranked if entry.problem is None and entry.metric is not None]
    with_metric.sort(key=lambda entry: (entry.metric, -entry.step))
    best: list[Path] = []
    for entry in with_metric:
        if len(best) >= count:
            break
        if inspector.verify(entry.path).problem is None:
            best.append(entry.path)
    return best


def temporary_path(directory: Path) -> Path:
    """Return a new path in a folder that no reader looks at; the name says who owns it."""
    return directory / f"{TEMPORARY_PREFIX}{unique_suffix()}-{os.getpid()}-{_machine()}"


def replaced_path(path: Path) -> Path:
    """Return where a checkpoint waits while a new one of the same step takes its place."""
    suffix = f"{unique_suffix()}-{os.getpid()}-{_machine()}"
    return path.with_name(f"{REPLACED_PREFIX}{path.name}-{suffix}")


def set_damaged_aside(path: Path) -> Path:
    """Rename a damaged directory to the first free ``NAME.damaged-N`` and return the new path."""
    number = 1
    while (target := path.with_name(f"{path.name}.damaged-{number}")).exists():
        number += 1
    return path.rename(target)


def remove_directory(path: Path) -> None:
    """Make a checkpoint vanish at once, then delete its files; a reader never sees a part of it."""
    doomed = temporary_path(path.parent)
    try:
        path.rename(doomed)
    except FileNotFoundError:
        return
    shutil.rmtree(doomed)


def clean_leftovers(directory: Path, inspector: Inspector) -> None:
    """Delete what dead writers left in a folder, and put back what they had moved aside.

    What belongs to a living process, or to another machine within the last hour, stays.
    """
    for path in _replaced(directory):
        if _owner_is_gone(path):
            # Another process may clean the same folder.
            with contextlib.suppress(FileNotFoundError):
                _put_back(path, inspector)
    for path in directory.glob(f"{TEMPORARY_PREFIX}*"):
        if _owner_is_gone(path):
            shutil.rmtree(path, ignore_errors=True)


def _put_back(path: Path, inspector: Inspector) -> None:
    match = _REPLACED_NAME.fullmatch(path.name)
    if match is None:
        return
    target = path.with_name(match[1])
    if target.exists():
        if inspector.verify(target).problem is None:
            shutil.rmtree(path, ignore_errors=True)
            return
        set_damaged_aside(target)
    path.rename(target)


def _replaced(directory: Path) -> list[Path]:
    return sorted(directory.glob(f"{REPLACED_PREFIX}*")) if directory.is_dir() else []


def _owner_is_gone(path: Path) -> bool:
    match = _OWNER.fullmatch(path.name)
    if match is None or match[2] != _machine():
        return _idle_s(path) > _FOREIGN_AGE_S
    if int(match[1]) == os.getpid():
        # Ours, or of an earlier life of this container, in which every program has the same number.
        return _idle_s(path) > _FOREIGN_AGE_S
    try:
        os.kill(int(match[1]), 0)
    except ProcessLookupError:
        return True
    except (PermissionError, OverflowError):
        pass
    return False


def _idle_s(path: Path) -> float:
    """Return the seconds since anything in a directory was written; 0 when it just vanished."""
    try:
        newest = max(item.stat().st_mtime for item in (path, *path.iterdir()))
    except OSError:
        return 0.0
    return time.time() - newest


def _machine() -> str:
    """Return 12 digits that stand for this machine since it was started."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
    except OSError:
        boot = ""
    return hashlib.sha256(f"{socket.gethostname()}\n{boot}".encode()).hexdigest()[:12]
