"""Ending what a fit started, all of it, whatever fails on the way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def cleaning_up(*actions: Callable[[], object], report: Callable[[str], object]) -> Iterator[None]:
    """Run every action when the body ends, in order, even when the body or an action raises.

    The first error is the one that is raised; errors of later actions are reported.

    Args:
        actions: What has to be done.
        report: Told of an error that is not raised.
    """
    first: BaseException | None = None
    try:
        yield
    except BaseException as error:  # noqa: BLE001 - raised again below, after the actions
        first = error
    for action in actions:
        try:
            action()
        except BaseException as error:  # noqa: BLE001 - the other actions still have to run
            if first is None:
                first = error
            else:
                report(f"while ending the fit: {type(error).__name__}: {error}")
    if first is not None:
        raise first
