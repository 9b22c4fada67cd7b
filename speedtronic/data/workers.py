"""Worker processes of torch loaders: a signal to the process group stops the run, not its workers.

Ctrl-C on a terminal and a scheduler's SIGTERM reach every process of the group. A worker that died
of it would take along the batches of the step that the run is finishing.
"""

from __future__ import annotations

import multiprocessing
import signal
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import resource_tracker, util
from multiprocessing.process import BaseProcess
from typing import Any

from speedtronic.core.stopping import HANDLED_SIGNALS

JOIN_WITHIN_S = 5.0  # A worker stuck in user code longer than this is killed.


@dataclass
class Started:
    """An iterator and the processes that were started with it."""

    iterator: Iterator[Any]
    """What ``iter`` returned."""
    workers: frozenset[BaseProcess]
    """Its worker processes, none for most loaders."""

    def let_go(self) -> None:
        """Drop the iterator, at which torch ends its workers, and kill one that is stuck.

        Where somebody else holds the iterator its workers are left to torch, which takes a killed
        one for a fault: the loader keeps persistent workers, and a traceback those of an error.
        """
        if not self.workers:
            return
        is_held = weakref.ref(self.iterator)
        self.iterator = iter(())
        if is_held() is None:
            end_workers(self.workers)


def start_iterator(loader: Iterable[Any]) -> Started:
    """Call ``iter(loader)`` so that workers it starts never see a stop signal.

    They inherit the mask of the thread that starts them. A signal that arrives meanwhile is
    delivered to this process right afterwards.
    """
    if getattr(loader, "multiprocessing_context", None) is not None:
        # Python unblocks the signals when it starts the tracker, as spawning a worker would.
        resource_tracker.ensure_running()
    before = set(multiprocessing.active_children())
    with _stop_signals_blocked():
        iterator = iter(loader)
    workers = frozenset(multiprocessing.active_children()) - before
    if workers:
        # Before Python's own end of daemons: they never see its SIGTERM, and it waits for them.
        util.Finalize(None, _kill_at_exit, args=(workers,), exitpriority=100)
    return Started(iterator, workers)


def _kill_at_exit(workers: Iterable[BaseProcess]) -> None:
    alive = [worker for worker in workers if worker.is_alive()]
    if alive:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch would call their end a fault
    for worker in alive:
        worker.kill()


def ignore_stop_signals(_worker: int) -> None:
    """Leave stopping to the parent; the ``worker_init_fn`` of our own loaders."""
    for number in HANDLED_SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def end_workers(workers: Iterable[BaseProcess]) -> None:
    """Wait for workers that were told to end, and kill one that is stuck."""
    for worker in workers:
        worker.join(JOIN_WITHIN_S)
        if worker.is_alive():
            worker.kill()
            worker.join(JOIN_WITHIN_S)


@contextmanager
def _stop_signals_blocked() -> Iterator[None]:
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)
