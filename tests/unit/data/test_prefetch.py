"""The background thread: its end, its errors and waiting for it."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import pytest

from speedtronic.core.stopping import StopFlag, StopRequestedError
from speedtronic.data.prefetch import Prefetcher


def test_items_come_in_the_order_they_were_made():
    numbers = iter(range(100))
    prefetcher = Prefetcher(lambda: next(numbers), depth=3)
    assert [prefetcher.get() for _ in range(100)] == list(range(100))
    prefetcher.close()


def test_no_more_than_the_wanted_number_is_made_ahead():
    made = []
    prefetcher = Prefetcher(lambda: made.append(None), depth=3)
    prefetcher.get()
    deadline = time.monotonic() + 2
    while len(made) < 4 and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.05)
    assert len(made) == 4
    prefetcher.close()


def test_an_error_comes_after_the_items_made_before_it_and_stays():
    items = iter([1, 2])

    def produce():
        for item in items:
            return item
        raise OSError("disk gone")

    prefetcher = Prefetcher(produce, depth=5)
    assert [prefetcher.get(), prefetcher.get()] == [1, 2]
    for _ in range(2):
        with pytest.raises(OSError, match="disk gone"):
            prefetcher.get()
    prefetcher.close()


def test_a_stop_requested_while_waiting_ends_the_wait():
    release = threading.Event()
    stop = StopFlag()
    prefetcher = Prefetcher(lambda: release.wait(10), depth=1)
    timer = threading.Timer(0.1, lambda: stop.request("received SIGTERM"))
    timer.start()
    start = time.monotonic()
    with pytest.raises(StopRequestedError, match="received SIGTERM"):
        prefetcher.get(stop)
    assert time.monotonic() - start < 5
    timer.join()
    release.set()
    prefetcher.close()


def test_a_ready_item_is_handed_out_although_a_stop_was_requested():
    stop = StopFlag()
    prefetcher = Prefetcher(lambda: 7, depth=1)
    assert prefetcher.get() == 7
    time.sleep(0.05)
    stop.request("test")
    assert prefetcher.get(stop) == 7
    prefetcher.close()


def test_closing_twice_does_nothing():
    prefetcher = Prefetcher(lambda: 7, depth=1)
    prefetcher.close()
    prefetcher.close()


def test_the_interpreter_exits_cleanly_with_a_prefetcher_left_open():
    code = (
        "import numpy as np\n"
        "from speedtronic.data.loader import TokenLoader\n"
        "tokens = np.arange(50_000, dtype=np.uint16)\n"
        "it = iter(TokenLoader(tokens, block_size=8, micro_batch_size=2, seed=0))\n"
        "print(next(it)['labels'].shape)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "torch.Size([2, 8])\n", "")
