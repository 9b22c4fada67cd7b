"""The checkpoints of one run: when to save, saving in the background, what to keep and load."""

from __future__ import annotations

import math
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from speedtronic.checkpoint.codec import encode
from speedtronic.checkpoint.folder import (
    STATE_FILE,
    DamagedCheckpointError,
    Entry,
    Inspector,
    best_good,
    candidates,
    checkpoint_name,
    clean_leftovers,
    newest_good,
    remove_directory,
    step_of,
)
from speedtronic.checkpoint.storing import Snapshot, read_checkpoint, write_checkpoint
from speedtronic.checkpoint.tensor_files import TensorCopies, name_of_nan
from speedtronic.core.errors import CheckpointError, ConfigError

if TYPE_CHECKING:
    import torch

EventHandler = Callable[[str, Mapping[str, Any]], None]

THREAD_NAME = "speedtronic-checkpoint"
_SECONDS_PER_MINUTE = 60.0


class CheckpointManager:
    """Saves a run's state, keeps what is worth keeping and finds the newest good one again.

    One thread calls it. A save copies the tensors, and another thread writes them; there is at most
    one save under way. Nothing old is removed before the new checkpoint would survive a power cut.
    A disk that is full or fails costs one checkpoint: a ``warning`` event, and the next save tries
    again. Several managers, also of several processes, may use one folder.
    """

    def __init__(  # noqa: PLR0913 - the contract's signature and the keys of the configuration
        self,
        directory: str | PathLike[str],
        *,
        every_steps: int | None = 500,
        keep_last: int | None = 3,
        enabled: bool = True,
        keep_best: int = 0,
        every_minutes: float | None = None,
        async_save: bool = True,
        strict: bool = False,
        on_event: EventHandler | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Note what to do; nothing on the disk is touched.

        Args:
            directory: The folder of the checkpoints; made by the first save.
            every_steps: Save at multiples of this step, at least 1; None: not by step.
            keep_last: Keep this many of the newest good checkpoints, at least 1; None keeps all.
            enabled: Whether to save at all; loading works in any case.
            keep_best: Also keep this many with the lowest metric.
            every_minutes: Also save when this many minutes passed since the last save.
            async_save: Write in a background thread; otherwise ``save`` returns when it is done.
            strict: Raise at the next call when a disk fails, instead of warning and going on.
            on_event: Called on the thread that calls the manager with ``checkpoint`` and
                ``warning`` events. Without it, warnings go to the ``warnings`` module.
            clock: Returns seconds that never run backwards.

        Raises:
            ConfigError: A number is out of its range.
        """
        _check_at_least("checkpoint.every_steps", every_steps, 1)
        _check_at_least("checkpoint.keep_last", keep_last, 1)
        _check_at_least("checkpoint.keep_best", keep_best, 0)
        if every_minutes is not None and not every_minutes > 0:
            raise ConfigError(
                f"checkpoint.every_minutes must be above 0, got {every_minutes}; null turns it off"
            )
        self.directory = Path(directory)
        self.every_steps = every_steps
        self.keep_last = keep_last
        self.enabled = enabled
        self.keep_best = keep_best
        self.every_minutes = every_minutes
        self.async_save = async_save
        self.strict = strict
        self.on_event = on_event
        self._clock = clock
        self._last_save_at = clock()
        self._copies = TensorCopies()
        self._inspector = Inspector()
        self._thread: threading.Thread | None = None
        self._events: deque[tuple[str, dict[str, Any]]] = deque()
        self._failure: Exception | None = None
        self._is_clean = False

    def should_save(self, step: int) -> bool:
        """Say whether a save is due after a step, by its number or by the time since the last."""
        if not self.enabled or step < 1:
            return False
        if self.every_steps is not None and step % self.every_steps == 0:
            return True
        if self.every_minutes is None:
            return False
        return self._clock() - self._last_save_at >= self.every_minutes * _SECONDS_PER_MINUTE

    def save(
        self, step: int, state: Mapping[str, Any], *, metric: float | None = None
    ) -> Path | None:
        """Save a state as the checkpoint of a step.

        Waits for a save under way, copies the tensors, and returns; the state may be changed then.
        Weights that hold NaN are refused with a ``warning`` event.

        Args:
            step: Finished updates, 0 or more.
            state: What ``checkpoint.codec.encode`` takes. The tensors below ``state["model"]``
                become ``state.safetensors``.
            metric: What ``keep_best`` ranks by, lower is better; NaN and infinity count as None.

        Returns:
            Where the checkpoint appears when it is durable (at once without ``async_save``). None
            when saving is off, or when it failed without ``async_save``.

        Raises:
            CheckpointError: The state holds something that cannot be saved, or the save before
                this one met an error that no disk causes.
        """
        if not self.enabled:
            return None
        if step < 0:
            raise ConfigError(f"step must be 0 or more, got {step}")
        self.wait()
        started = self._clock()
        encoded = encode(state)
        copies = replace(encoded, tensors=self._copies.take(encoded.tensors))
        rank = None if metric is None or not math.isfinite(metric) else float(metric)
        snapshot = Snapshot(step=step, metric=rank, encoded=copies)
        self._last_save_at = self._clock()
        blocked_s = self._last_save_at - started
        if self.async_save:
            # Not a daemon: a program that ends meanwhile finishes the file.
            self._thread = threading.Thread(
                target=self._write, args=(snapshot, blocked_s), name=THREAD_NAME, daemon=False
            )
            self._thread.start()
            return self.directory / checkpoint_name(step)
        is_saved = self._write(snapshot, blocked_s)
        self.wait()
        return self.directory / checkpoint_name(step) if is_saved else None

    def poll(self) -> None:
        """Deliver the events of a save that is done, without waiting for one under way."""
        while self._events:
            name, payload = self._events.popleft()
            if self.on_event is not None:
                self.on_event(name, payload)
            elif name == "warning":
                warnings.warn(payload["message"], stacklevel=3)

    def wait(self, *, timeout_s: float | None = None) -> None:
        """Wait for the save under way and deliver its events.

        Raises:
            CheckpointError: It met an error that no disk causes (any error with ``strict``), or it
                takes longer than the timeout.
        """
        if self._thread is not None:
            self._thread.join(timeout_s)
            if self._thread.is_alive():
                raise CheckpointError(
                    f"{self.directory}: a checkpoint is still being written after {timeout_s} s"
                )
            self._thread = None
        self.poll()
        if self._failure is not None and (self.strict or not isinstance(self._failure, OSError)):
            self._raise_failure()

    def close(self, *, timeout_s: float | None = None) -> None:
        """Wait for the save under way and give the copies' memory back; saving may go on later.

        Raises:
            CheckpointError: The last save failed, or it takes longer than the timeout.
        """
        self.wait(timeout_s=timeout_s)
        self._copies.free()
        if self._failure is not None:
            self._raise_failure()

    def _raise_failure(self) -> None:
        failure, self._failure = self._failure, None
        raise CheckpointError(
            f"{self.directory}: the last checkpoint was not saved: {failure}"
        ) from failure

    def _write(self, snapshot: Snapshot, blocked_s: float) -> bool:
        """Write a snapshot, then remove what is not kept any more; runs on the writer's thread."""
        started = self._clock()
        step = snapshot.step
        self._failure = None
        try:
            if (name := name_of_nan(snapshot.encoded.tensors[STATE_FILE])) is not None:
                self._warn(step, f"was refused: {name} holds NaN; older checkpoints are kept")
                return False
            self._clean_once()
            path = write_checkpoint(self.directory, snapshot, inspector=self._inspector)
        except OSError as error:
            self._failure = error
            self._warn(
                step, f"was not saved: {error}; older checkpoints are kept, training goes on"
            )
            return False
        except Exception as error:  # noqa: BLE001 - a thread's error is raised by the next call
            self._failure = error
            self._warn(step, f"was not saved: {error!r}")
            return False
        payload = {
            "step": step,
            "path": str(path),
            "metric": snapshot.metric,
            "size_bytes": self._inspector.glance(path).size_bytes,
            "seconds": self._clock() - started,
            "blocked_s": blocked_s,
        }
        self._events.append(("checkpoint", payload))
        try:
            self._prune(just_saved=path)
        except OSError as error:
            self._warn(step, f"is saved, but older ones could not be removed: {error}")
        return True

    def _warn(self, step: int, what: str) -> None:
        message = f"the checkpoint of step {step} {what}"
        self._events.append(
            ("warning", {"step": step, "message": message, "path": str(self.directory)})
        )

    def _clean_once(self) -> None:
        if not self._is_clean and self.directory.is_dir():
            clean_leftovers(self.directory, self._inspector)
        self._is_clean = True

    def paths(self) -> list[Path]:
        """Return the checkpoints, oldest step first, without those known to be damaged.

        Manifests and sizes are looked at; sums are not computed here.
        """
        entries = [self._inspector.glance(path) for path in candidates(self.directory)]
        return [entry.path for entry in reversed(entries) if entry.problem is None]

    def latest_path(self) -> Path | None:
        """Return the newest checkpoint whose files match their sums, or None."""
        return newest_good(self._inspector, self.directory)

    def best_path(self) -> Path | None:
        """Return the checkpoint with the lowest metric whose files match their sums, or None."""
        return next(iter(best_good(self._inspector, self.directory)), None)

    def load(
        self, path: str | PathLike[str], *, map_location: torch.device | str = "cpu"
    ) -> dict[str, Any]:
        """Verify one checkpoint and return its state.

        Raises:
            CheckpointError: It is not whole.
        """
        return read_checkpoint(Path(path), map_location=map_location)

    def load_latest(self, *, map_location: torch.device | str = "cpu") -> dict[str, Any] | None:
        """Return the state of the newest good checkpoint, after a save under way.

        Damaged newer ones are skipped, each named in a ``warning`` event with the reason.

        Returns:
            The state, its tensors independent of the files, or None when there is no good one.
        """
        self.wait()
        seen: set[Path] = set()
        # Another process may remove or replace what the list names: look again until all is seen.
        while path := next((p for p in candidates(self.directory) if p not in seen), None):
            seen.add(path)
            try:
                state = read_checkpoint(path, map_location=map_location)
            except DamagedCheckpointError as error:
                if path.exists():
                    self._events.append(("warning", _skipped(path, error)))
            else:
                self.poll()
                return state
        self.poll()
        return None

    def prune(self) -> list[Path]:
        """Remove what neither ``keep_last`` nor ``keep_best`` keeps.

        Damaged checkpoints count for nothing and stay; so does the newest good one, always.

        Returns:
            The removed paths.
        """
        self.wait()
        return self._prune()

    def _prune(self, *, just_saved: Path | None = None) -> list[Path]:
        if self.keep_last is None:
            return []
        entries = [self._inspector.glance(path) for path in candidates(self.directory)]
        entries = [entry for entry in entries if entry.problem is None]
        kept = self._newest(entries, self.keep_last)
        kept |= set(best_good(self._inspector, self.directory, count=self.keep_best))
        if just_saved is not None:
            kept.add(just_saved)
        # What the searches found damaged stays; where nothing is good, that is everything.
        removed = [
            entry.path
            for entry in entries
            if entry.path not in kept and self._inspector.glance(entry.path).problem is None
        ]
        for path in removed:
            remove_directory(path)
            self._inspector.forget(path)
        return removed

    def _newest(self, entries: list[Entry], count: int) -> set[Path]:
        newest: set[Path] = set()
        for entry in entries:
            if len(newest) == count:
                break
            if self._inspector.verify(entry.path).problem is None:
                newest.add(entry.path)
        return newest


def _skipped(path: Path, error: DamagedCheckpointError) -> dict[str, Any]:
    message = f"skipped a damaged checkpoint: {error}"
    return {"step": step_of(path), "message": message, "path": str(path)}


def _check_at_least(key: str, value: int | None, least: int) -> None:
    if value is not None and value < least:
        raise ConfigError(f"{key} must be {least} or more, got {value}")
