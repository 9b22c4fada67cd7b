"""Asking a run to stop: signals set a flag, and the loop polls it where it can stop cleanly."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

HANDLED_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)


class StopRequestedError(Exception):
    """Raised inside a wait for data or an evaluation when a stop was requested meanwhile."""


class StopFlag:
    """A request to stop, set at most once by a signal or a time limit and polled by the loop."""

    def __init__(self) -> None:
        self.reason: str | None = None
        self.signal_number: int | None = None

    @property
    def requested(self) -> bool:
        """Whether a stop was requested."""
        return self.reason is not None

    def request(self, reason: str, *, signal_number: int | None = None) -> None:
        """Ask the run to stop; the first request wins."""
        if self.reason is None:
            self.reason = reason
            self.signal_number = signal_number

    def raise_if_requested(self) -> None:
        """Leave a wait when a stop was requested.

        Raises:
            StopRequestedError: a stop was requested.
        """
        if self.reason is not None:
            raise StopRequestedError(self.reason)

    @contextmanager
    def catch_signals(self) -> Iterator[None]:
        """Turn the first stop signal into a request; a second one ends the process at once.

        Stop signals are SIGTERM, SIGINT, SIGUSR1 and SIGUSR2.
        Does nothing off the main thread, where Python allows no handlers. Handlers are restored on
        exit. A forked data worker inherits the handler: there the signal keeps its default effect.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        owner_pid = os.getpid()

        def handle(number: int, _frame: FrameType | None) -> None:
            if os.getpid() != owner_pid or self.requested:
                _die_of(number)
            self.request(f"received {signal.Signals(number).name}", signal_number=number)

        previous = {number: signal.signal(number, handle) for number in HANDLED_SIGNALS}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)


def _die_of(number: int) -> NoReturn:
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    os._exit(128 + number)
