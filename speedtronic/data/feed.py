"""The trainer's way to any loader: batches without end, committed or handed out again, resumable.

Our own loaders return to a position at once. Of any other loader the random state at the start of
the epoch is kept, and the batches already used are drawn again and dropped.
"""

from __future__ import annotations

import copy
import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, cast, final

import torch

from speedtronic.core.errors import CheckpointError, DataError
from speedtronic.core.seeding import preserve_rng, rng_state, set_rng_state
from speedtronic.core.stopping import StopFlag
from speedtronic.core.types import StatefulLoader
from speedtronic.data.endless import EndlessLoader
from speedtronic.data.workers import Started, start_iterator

Position = Mapping[str, Any]

_log = logging.getLogger(__name__)


def infinite_batches(loader: Iterable[Any]) -> Iterator[Any]:
    """Yield the batches of a loader without end, starting it again after each pass.

    Args:
        loader: Any iterable of batches. One that ends must be able to start again.

    Raises:
        DataError: the loader is empty, or is exhausted and cannot start again.
    """
    source = _open_source(loader, stop=None, log=_log.warning)
    try:
        while True:
            yield source.draw()
    finally:
        source.release()


class BatchFeed:
    """Feeds a training loop from a loader and knows which batches an update has used up.

    ``next`` hands out, ``commit`` says that the update made of them is finished (applied or
    skipped), ``rollback`` has them handed out again. The saved position is that of the last commit.

    Args:
        loader: Any iterable of batches; one with ``state_dict`` and ``load_state_dict`` is asked
            for its position.
        stop: Polled while waiting for data.
        log: Takes a line for the user; Python's logging when None.
    """

    def __init__(
        self,
        loader: Iterable[Any],
        *,
        stop: StopFlag | None = None,
        log: Callable[[str], None] | None = None,
    ) -> None:
        self._source = _open_source(loader, stop=stop, log=log or _log.warning)
        self._committed = self._source.position()
        # Positions are kept for sources that cannot rewind; asking another for its own costs time,
        # and it is needed at a commit only.
        self._handed_out: list[tuple[Any, Position | None]] = []
        self._again: deque[tuple[Any, Position | None]] = deque()
        self._must_rewind = False

    def next(self) -> Any:
        """Return the next microbatch.

        Raises:
            StopRequestedError: a stop was requested while waiting for it.
            DataError: the loader is empty or cannot start again.
        """
        if self._must_rewind:
            self._rewind()
        if self._again:
            item = self._again.popleft()
        else:
            batch = self._source.draw()
            item = (batch, None if self._source.rewinds else self._source.position())
        self._handed_out.append(item)
        return item[0]

    def commit(self) -> None:
        """Mark everything handed out as used."""
        if self._handed_out:
            self._committed = self._handed_out[-1][1] or self._source.position()
            self._handed_out.clear()

    def rollback(self) -> None:
        """Take back everything handed out since the last commit, to hand it out again first."""
        if self._source.rewinds:
            self._must_rewind = self._must_rewind or bool(self._handed_out)
        else:
            self._again.extendleft(reversed(self._handed_out))
        self._handed_out.clear()

    def state_dict(self) -> dict[str, Any]:
        """Return the position at the last commit."""
        return copy.deepcopy(dict(self._committed))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue after the batches that were committed when the state was saved.

        Raises:
            CheckpointError: the state was saved with another kind of loader, or the loader is a
                generator, which cannot be replayed.
        """
        self._source.restore(copy.deepcopy(state))
        self._committed = self._source.position()
        self._must_rewind = False
        self._handed_out.clear()
        self._again.clear()

    def close(self) -> None:
        """End threads and workers; ``next`` afterwards continues after the last commit."""
        self.rollback()
        self._source.release()
        if self._source.rewinds:
            self._rewind()

    def _rewind(self) -> None:
        self._source.restore(copy.deepcopy(self._committed))
        self._must_rewind = False


class _Source(ABC):
    """Draws batches from a loader, pass after pass."""

    rewinds: bool
    """Whether ``restore`` costs nothing, so that batches need not be kept."""

    @abstractmethod
    def draw(self) -> Any:
        """Return the next batch."""

    @abstractmethod
    def position(self) -> Position:
        """Return what ``restore`` needs to continue after the last batch drawn."""

    @abstractmethod
    def restore(self, position: Position) -> None:
        """Continue from a position."""

    @abstractmethod
    def release(self) -> None:
        """Give back threads and workers; ``draw`` continues where it stopped."""


def _open_source(
    loader: Iterable[Any], *, stop: StopFlag | None, log: Callable[[str], None]
) -> _Source:
    if isinstance(loader, StatefulLoader):
        return _StatefulSource(loader, stop=stop)
    if not isinstance(loader, Iterable) and not hasattr(loader, "__getitem__"):
        raise TypeError(f"a data loader must be iterable, got {type(loader).__name__}")
    return _ReplayedSource(loader, log=log)


@final
class _StatefulSource(_Source):
    """A loader that knows its own position."""

    rewinds = True
    _KIND = "stateful"

    def __init__(self, loader: StatefulLoader, *, stop: StopFlag | None) -> None:
        self._loader = loader
        self._stop = stop
        self._iterator: Iterator[Any] | None = None

    def draw(self) -> Any:
        if self._iterator is None:
            self._iterator = self._start()
        try:
            return next(self._iterator)
        except StopIteration:
            self._iterator = self._start()
        except BaseException:
            self._iterator = None
            raise
        try:
            return next(self._iterator)
        except StopIteration:
            self._iterator = None
            raise DataError(_describe_empty(self._loader)) from None

    def position(self) -> Position:
        # A loader may return the very dict it goes on counting in.
        return {"kind": self._KIND, "loader": copy.deepcopy(self._loader.state_dict())}

    def restore(self, position: Position) -> None:
        _check_kind(position, kind=self._KIND)
        self.release()
        self._loader.load_state_dict(position["loader"])

    def release(self) -> None:
        iterator, self._iterator = self._iterator, None
        close = getattr(iterator, "close", None)
        if close is not None:
            close()

    def _start(self) -> Iterator[Any]:
        if isinstance(self._loader, EndlessLoader):
            return self._loader.batches(stop=self._stop)
        return start_iterator(self._loader).iterator


@dataclass(frozen=True)
class _EpochStart:
    """What makes an epoch of a foreign loader come out the same again."""

    epoch: int
    rng: dict[str, Any] | None
    """Random state of the process; None where the loader draws nothing from it."""
    generators: list[torch.Tensor]
    """States of the loader's own generators."""


@final
class _ReplayedSource(_Source):
    """Any other iterable: iterated on the calling thread, and replayed to return to a position."""

    rewinds = False
    _KIND = "replayed"

    def __init__(self, loader: Iterable[Any], *, log: Callable[[str], None]) -> None:
        self._loader = loader
        self._log = log
        self._iterator: Iterator[Any] | None = None
        self._started: Started | None = None
        self._start: _EpochStart | None = None
        self._consumed = 0

    def draw(self) -> Any:
        if self._iterator is None:
            self._begin_or_replay()
        iterator = cast("Iterator[Any]", self._iterator)
        try:
            batch = next(iterator)
        except StopIteration:
            batch = self._draw_from_next_epoch()
        self._consumed += 1
        return batch

    def position(self) -> Position:
        start = self._start
        if start is None:
            return {"kind": self._KIND, "consumed": 0, "epoch": 0, "rng": None, "generators": []}
        return {
            "kind": self._KIND,
            "consumed": self._consumed,
            "epoch": start.epoch,
            "rng": start.rng,
            "generators": start.generators,
        }

    def restore(self, position: Position) -> None:
        _check_kind(position, kind=self._KIND)
        if position["consumed"] and self._is_exhaustible():
            raise CheckpointError(
                f"the data loader is a {type(self._loader).__name__}, of which the "
                f"{position['consumed']} batches used before the checkpoint cannot be drawn again; "
                "resume with a loader that can start over, such as a DataLoader"
            )
        self._iterator = None
        self._consumed = position["consumed"]
        self._start = None
        if self._consumed:
            self._start = _EpochStart(
                epoch=position["epoch"], rng=position["rng"], generators=position["generators"]
            )

    def release(self) -> None:
        # Only a loader with worker processes holds something to give back. Anything else keeps its
        # iterator, since replaying costs the user's time and a generator cannot be replayed.
        if getattr(self._loader, "num_workers", 0):
            self._iterator = None
            if self._started is not None:
                self._started.let_go()

    def _is_exhaustible(self) -> bool:
        return isinstance(self._loader, Iterator)

    def _begin_or_replay(self) -> None:
        if self._consumed == 0:
            self._begin_epoch(0)
            return
        start = cast("_EpochStart", self._start)
        self._log(
            f"replaying the data loader: drawing and dropping {self._consumed} batches of "
            f"epoch {start.epoch} to return to the saved position"
        )
        with nullcontext() if start.rng is None else preserve_rng():
            if start.rng is not None:
                set_rng_state(start.rng)
            for generator, state in zip(
                _own_generators(self._loader), start.generators, strict=False
            ):
                generator.set_state(state.cpu())
            self._open()
            for number in range(self._consumed):
                self._drop(number)

    def _drop(self, number: int) -> None:
        try:
            next(cast("Iterator[Any]", self._iterator))
        except StopIteration:
            self._iterator = None
            raise DataError(
                f"the data loader ends after {number} batches, but the checkpoint was saved after "
                f"{self._consumed} of its epoch; resume with the data of the first start"
            ) from None

    def _begin_epoch(self, epoch: int) -> None:
        # A list draws nothing; reading the random state would cost more than its batch.
        draws = not isinstance(self._loader, list | tuple)
        self._start = _EpochStart(
            epoch=epoch,
            rng=rng_state() if draws else None,
            generators=[generator.get_state() for generator in _own_generators(self._loader)],
        )
        self._consumed = 0
        self._open()

    def _open(self) -> None:
        self._started = start_iterator(self._loader)
        self._iterator = self._started.iterator

    def _draw_from_next_epoch(self) -> Any:
        epoch = 0 if self._start is None else self._start.epoch
        consumed = self._consumed
        if consumed and self._is_exhaustible():
            raise DataError(_describe_exhausted(self._loader, consumed))
        if consumed:
            self._begin_epoch(epoch + 1)
            try:
                return next(cast("Iterator[Any]", self._iterator))
            except StopIteration:
                raise DataError(_describe_exhausted(self._loader, consumed)) from None
        self._iterator = None
        raise DataError(_describe_empty(self._loader))


def _own_generators(loader: Any) -> list[torch.Generator]:
    """Return the generators a torch DataLoader and its samplers draw from, each once."""
    samplers = [loader, getattr(loader, "sampler", None)]
    batch_sampler = getattr(loader, "batch_sampler", None)
    samplers += [batch_sampler, getattr(batch_sampler, "sampler", None)]
    found = [getattr(sampler, "generator", None) for sampler in samplers]
    unique = {id(each): each for each in found if isinstance(each, torch.Generator)}
    return list(unique.values())


def _check_kind(position: Position, *, kind: str) -> None:
    if position.get("kind") != kind:
        raise CheckpointError(
            f"the saved data position is of a {position.get('kind')} loader, but this run has a "
            f"{kind} one; resume with the data of the first start"
        )


def _describe_exhausted(loader: object, consumed: int) -> str:
    return (
        f"the data loader ({type(loader).__name__}) is exhausted after {consumed} batches and "
        "cannot start again; pass a loader that can be iterated several times, such as a DataLoader"
    )


def _describe_empty(loader: object) -> str:
    batch_size = getattr(loader, "batch_size", None)
    try:
        num_samples = len(getattr(loader, "dataset", None))  # type: ignore[arg-type]
    except TypeError:
        num_samples = None
    if isinstance(batch_size, int) and num_samples and batch_size > num_samples:
        return (
            f"the data loader gives no batch: its batch size ({batch_size}) is larger than its "
            f"data set ({num_samples} samples); use a smaller batch or drop_last=False"
        )
    return f"the data loader ({type(loader).__name__}) gives no batch: it is empty"
