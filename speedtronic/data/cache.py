"""Tokenised corpora on disk, shared by every run of a user and deletable at any time.

An entry is a folder that appears by rename, so a reader sees all of it or nothing. Its name holds
what it was made from; a corpus that changed has another name.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from filelock import FileLock

from speedtronic.core.errors import FallbackWarning
from speedtronic.core.files import fsync_dir, unique_suffix, write_json
from speedtronic.core.types import JSON

CACHE_VARIABLE = "SPEEDTRONIC_CACHE_DIR"
CACHE_VERSION = 1  # Part of every key: raise it when tokenising or splitting changes.
_META = "meta.json"
_ATTEMPTS = 5  # A cache that is being deleted may take a folder away between two calls.


@dataclass(frozen=True)
class CacheEntry:
    """Named arrays and what is known about them."""

    arrays: dict[str, np.ndarray]
    """Non-empty arrays; memory maps once they come from disk."""
    meta: dict[str, JSON]
    """Facts that JSON can hold."""


def cache_folder() -> Path:
    """Return the folder of shared caches: $SPEEDTRONIC_CACHE_DIR or ~/.cache/speedtronic."""
    named = os.environ.get(CACHE_VARIABLE)
    return Path(named).expanduser() if named else Path.home() / ".cache" / "speedtronic"


def cache_key(**parts: JSON) -> str:
    """Return a file name that depends on every part and on the cache's version."""
    text = json.dumps({"version": CACHE_VERSION, **parts}, sort_keys=True)
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def cached_entry(key: str, make: Callable[[], CacheEntry]) -> CacheEntry:
    """Return an entry of the cache, making it first if no process has.

    Of several processes that want one entry, one makes it and the others wait. Where the cache
    cannot be written the made entry is used from memory, with a warning.

    Args:
        key: From ``cache_key``.
        make: Makes the entry; called at most once.
    """
    place = cache_folder() / "tokens" / key
    entry = _load(place)
    if entry is not None:
        return entry
    with _locked(place):
        entry = _load(place)
        if entry is not None:
            return entry
        entry = make()
        try:
            _store(place, entry)
        except OSError as error:
            warnings.warn(
                FallbackWarning(
                    f"the token cache {place.parent} cannot be written ({error.strerror}); the "
                    f"tokens stay in memory; set {CACHE_VARIABLE} to a folder that can be written"
                ),
                stacklevel=2,
            )
            return entry
    return _load(place) or entry  # Deleted in between: what was made is still at hand.


@contextmanager
def _locked(place: Path) -> Iterator[None]:
    """Hold the lock of an entry; go on without it where the file system has no locks or no room.

    The lock saves work, not correctness: entries appear by rename.
    """
    lock = FileLock(place.with_name(place.name + ".lock"))
    for _ in range(_ATTEMPTS):
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            lock.acquire()
            break
        except (OSError, NotImplementedError):
            continue
    try:
        yield
    finally:
        lock.release()


def _load(place: Path) -> CacheEntry | None:
    """Map an entry, or return None where there is none that can be read."""
    try:
        meta = json.loads((place / _META).read_text(encoding="utf-8"))
        arrays = {
            name: np.load(place / f"{name}.npy", mmap_mode="r") for name in meta.pop("arrays")
        }
    except (OSError, ValueError, KeyError, EOFError):
        return None
    return CacheEntry(arrays=arrays, meta=meta)


def _store(place: Path, entry: CacheEntry) -> None:
    """Write an entry; again when the cache is deleted meanwhile."""
    for _ in range(_ATTEMPTS - 1):
        try:
            _write_entry(place, entry)
        except FileNotFoundError:
            continue
        return
    _write_entry(place, entry)


def _write_entry(place: Path, entry: CacheEntry) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    for abandoned in place.parent.glob(f".{place.name}.tmp-*"):
        shutil.rmtree(abandoned, ignore_errors=True)
    temporary = _aside(place)
    try:
        temporary.mkdir()
        for name, array in entry.arrays.items():
            with (temporary / f"{name}.npy").open("wb") as file:
                np.save(file, array)
                file.flush()
                os.fsync(file.fileno())
        write_json(temporary / _META, {**entry.meta, "arrays": list(entry.arrays)})
        _swap_in(temporary, place)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    fsync_dir(place.parent)


def _swap_in(temporary: Path, place: Path) -> None:
    """Rename a finished entry to its place, over a damaged one if there is one."""
    try:
        temporary.rename(place)
    except OSError:
        if _load(place) is not None:
            return  # Another process was first, where locks do not work.
        damaged = _aside(place)
        place.rename(damaged)
        temporary.rename(place)
        shutil.rmtree(damaged, ignore_errors=True)


def _aside(place: Path) -> Path:
    return place.with_name(f".{place.name}.tmp-{unique_suffix()}")
