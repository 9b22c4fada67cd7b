"""Loaders without an end whose position is one number: the microbatches handed out so far."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any, Protocol, final

from speedtronic.core.errors import CheckpointError
from speedtronic.core.stopping import StopFlag


class GroupSource(Protocol):
    """Gives consecutive microbatches, several at a time, from a fixed start on."""

    def get(self, stop: StopFlag | None = None) -> Sequence[Any]:
        """Return the next microbatches, at least one; polls ``stop`` while waiting."""

    def close(self) -> None:
        """Give back threads and processes."""


class EndlessLoader(ABC):
    """Hands out microbatch after microbatch, through as many epochs as are asked for.

    Microbatch ``m`` depends on the loader's arguments and on ``m`` only. The position belongs to
    the loader: every iterator starts there, moves it, and follows ``load_state_dict``.
    """

    def __init__(self) -> None:
        self._microbatch = 0
        self._version = 0

    @abstractmethod
    def open_groups(self, start: int) -> GroupSource:
        """Start producing at microbatch ``start``."""

    @final
    def __iter__(self) -> Iterator[Any]:
        """Yield microbatches from the current position on, without end."""
        return self.batches()

    @final
    def batches(self, *, stop: StopFlag | None = None) -> Iterator[Any]:
        """Yield microbatches from the current position on, without end.

        Closing the iterator ends its thread and workers.

        Args:
            stop: Polled while waiting for data.

        Raises:
            StopRequestedError: a stop was requested while no microbatch was ready.
        """
        while True:
            self._version += 1  # An older iterator sees it and goes on from the shared position.
            version = self._version
            with closing(self.open_groups(self._microbatch)) as source:
                while version == self._version:
                    for batch in source.get(stop):
                        self._microbatch += 1
                        yield batch
                        if version != self._version:
                            break

    @final
    def state_dict(self) -> dict[str, Any]:
        """Return the position: ``{"microbatch": microbatches handed out}``."""
        return {"microbatch": self._microbatch}

    @final
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved position, also in an iterator that is already running.

        Raises:
            CheckpointError: the state is not one of this kind of loader.
        """
        microbatch = state.get("microbatch")
        if not isinstance(microbatch, int) or isinstance(microbatch, bool) or microbatch < 0:
            raise CheckpointError(
                f"the saved data position must be a count of microbatches, got {state!r}"
            )
        self._microbatch = microbatch
        self._version += 1
