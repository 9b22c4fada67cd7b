"""Stop signals: the first one asks, the second one ends, and nothing is left behind."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from speedtronic.core.stopping import HANDLED_SIGNALS, StopFlag, StopRequestedError

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)


class UnhandledSignalError(Exception):
    """What a signal does here that no handler of the product has caught."""


def refuse(number: int, _frame: object) -> None:
    raise UnhandledSignalError(signal.Signals(number).name)


@pytest.fixture(autouse=True)
def _no_signal_ends_the_tests() -> Iterator[None]:
    before = {number: signal.signal(number, refuse) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def handlers() -> list[object]:
    return [signal.getsignal(number) for number in SIGNALS]


def run_program(body: str) -> subprocess.CompletedProcess[str]:
    """Run lines in a process of their own, with the default effect of every stop signal."""
    program = (
        "import os, signal, sys\n"
        "from speedtronic.core.stopping import HANDLED_SIGNALS, StopFlag\n"
        "for one in HANDLED_SIGNALS:\n"
        "    signal.signal(one, signal.SIG_DFL)\n"
        "stop = StopFlag()\n"
    )
    return subprocess.run(
        [sys.executable, "-c", program + body],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_four_stop_signals_are_handled() -> None:
    assert set(HANDLED_SIGNALS) == set(SIGNALS)


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (signal.SIGTERM, "received SIGTERM"),
        (signal.SIGINT, "received SIGINT"),
        (signal.SIGUSR1, "received SIGUSR1"),
        (signal.SIGUSR2, "received SIGUSR2"),
    ],
)
def test_the_first_signal_is_a_request_with_its_number_and_reason(
    number: signal.Signals, reason: str
) -> None:
    stop = StopFlag()
    with stop.catch_signals():
        assert not stop.requested
        signal.raise_signal(number)
        assert stop.requested

    assert stop.signal_number == number
    assert stop.reason == reason


def test_without_a_signal_nothing_is_requested() -> None:
    stop = StopFlag()
    with stop.catch_signals():
        pass
    assert (stop.requested, stop.reason, stop.signal_number) == (False, None, None)


def test_handlers_are_put_back_at_the_end_and_after_an_error() -> None:
    before = handlers()
    with StopFlag().catch_signals():
        assert all(now is not then for now, then in zip(handlers(), before, strict=True))
    assert handlers() == before

    def fail() -> None:
        with StopFlag().catch_signals():
            raise KeyError("inside")

    with pytest.raises(KeyError, match="inside"):
        fail()
    assert handlers() == before


@pytest.mark.parametrize("number", SIGNALS)
def test_a_second_signal_ends_the_process_at_once_with_that_signal(number: signal.Signals) -> None:
    first = signal.SIGUSR1 if number == signal.SIGTERM else signal.SIGTERM
    ended = run_program(
        "with stop.catch_signals():\n"
        "    try:\n"
        f"        signal.raise_signal({int(first)})\n"
        "        print('asked:', stop.reason, flush=True)\n"
        f"        signal.raise_signal({int(number)})\n"
        "        print('went on', flush=True)\n"
        "    finally:\n"
        "        print('cleaned up', flush=True)\n"
    )
    assert ended.stdout == f"asked: received {first.name}\n"
    assert ended.returncode == -number


def test_a_signal_after_a_request_of_another_kind_ends_the_process_too() -> None:
    ended = run_program(
        "stop.request('time is up')\n"
        "with stop.catch_signals():\n"
        "    signal.raise_signal(signal.SIGTERM)\n"
        "    print('went on', flush=True)\n"
    )
    assert (ended.stdout, ended.returncode) == ("", -signal.SIGTERM)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_forked_child_keeps_the_default_effect(number: signal.Signals) -> None:
    ended = run_program(
        "with stop.catch_signals():\n"
        "    child = os.fork()\n"
        "    if child == 0:\n"
        f"        signal.raise_signal({int(number)})\n"
        "        os._exit(7)\n"
        "    _, status = os.waitpid(child, 0)\n"
        "print(os.waitstatus_to_exitcode(status), stop.requested)\n"
    )
    assert ended.stdout == f"{-number} False\n", ended.stderr


def test_off_the_main_thread_nothing_happens() -> None:
    before = handlers()
    seen: list[object] = []

    def body() -> None:
        try:
            with StopFlag().catch_signals():
                seen.append(handlers())
        except Exception as error:  # noqa: BLE001 - the assertion below shows it
            seen.append(error)

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()

    assert seen == [before]
    assert handlers() == before


def test_the_first_request_wins() -> None:
    stop = StopFlag()
    stop.request("one", signal_number=10)
    stop.request("two", signal_number=12)
    assert (stop.reason, stop.signal_number) == ("one", 10)


def test_a_wait_is_left_when_a_stop_was_requested_and_only_then() -> None:
    stop = StopFlag()
    stop.raise_if_requested()
    stop.request("time is up")
    with pytest.raises(StopRequestedError, match=r"^time is up$"):
        stop.raise_if_requested()
