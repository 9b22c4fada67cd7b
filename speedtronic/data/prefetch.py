"""One background thread that keeps a few finished items ready for one consumer."""

from __future__ import annotations

import itertools
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from speedtronic.core.stopping import StopFlag

Item = TypeVar("Item")

THREAD_NAME = "speedtronic-prefetch"
_POLL_EVERY_S = 0.1  # How often a waiting consumer looks at the stop flag.
JOIN_WITHIN_S = 5.0  # A thread stuck in a read longer than this is left behind; it is a daemon.
_numbers = itertools.count(1)


class _Channel(Generic[Item]):
    """What the thread and its consumer share; the thread must not keep the consumer alive."""

    def __init__(self, produce: Callable[[], Item], *, depth: int) -> None:
        self.produce = produce
        self.depth = depth
        self.items: deque[Item] = deque()
        self.error: BaseException | None = None
        self.closed = False
        self.changed = threading.Condition()

    def run(self) -> None:
        """Fill the channel until it is closed or producing fails."""
        while self._wait_for_room():
            try:
                item = self.produce()
            except BaseException as error:  # noqa: BLE001 - handed to the consumer, which raises it
                self._put_error(error)
                return
            with self.changed:
                self.items.append(item)
                self.changed.notify_all()

    def _wait_for_room(self) -> bool:
        with self.changed:
            self.changed.wait_for(lambda: self.closed or len(self.items) < self.depth)
            return not self.closed

    def _put_error(self, error: BaseException) -> None:
        with self.changed:
            self.error = error
            self.changed.notify_all()

    def close(self) -> None:
        """Tell the thread to end and forget what it made."""
        with self.changed:
            self.closed = True
            self.items.clear()
            self.changed.notify_all()


class Prefetcher(Generic[Item]):
    """Runs a producer ahead of its consumer in one named thread.

    The thread ends when ``close`` is called, when this object is collected, and when the
    interpreter exits.

    Args:
        produce: Makes the next item; called from the thread only, one call at a time.
        depth: Finished items kept ready, at least 1.
    """

    def __init__(self, produce: Callable[[], Item], *, depth: int) -> None:
        self._channel = _Channel(produce, depth=depth)
        thread = threading.Thread(
            target=self._channel.run, name=f"{THREAD_NAME}-{next(_numbers)}", daemon=True
        )
        self._finalizer = weakref.finalize(self, _shut_down, self._channel, thread)
        thread.start()

    def get(self, stop: StopFlag | None = None) -> Item:
        """Return the next item, waiting for it if need be.

        Args:
            stop: Polled while waiting.

        Raises:
            StopRequestedError: a stop was requested and no item is ready.
            BaseException: whatever the producer raised, after the items made before it.
        """
        channel = self._channel
        with channel.changed:
            while not channel.items:
                if channel.error is not None:
                    raise channel.error
                if stop is not None:
                    stop.raise_if_requested()
                channel.changed.wait(_POLL_EVERY_S)
            item = channel.items.popleft()
            channel.changed.notify_all()
        return item

    def close(self) -> None:
        """End the thread and wait for it; calling it again does nothing."""
        self._finalizer()


def _shut_down(channel: _Channel[Item], thread: threading.Thread) -> None:
    channel.close()
    if thread is not threading.current_thread():
        thread.join(JOIN_WITHIN_S)
