"""Worker processes of torch loaders outlive a signal to the whole process group."""

from __future__ import annotations

import gc
import multiprocessing
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from torch.utils.data import DataLoader, Dataset

from speedtronic.core.stopping import HANDLED_SIGNALS
from speedtronic.data.feed import BatchFeed
from speedtronic.data.workers import JOIN_WITHIN_S, start_iterator

# Each source gives one batch, then the group gets the signal, then the rest must come.
_SCRIPT = """
import os, sys, time
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
from speedtronic.core.stopping import StopFlag
from speedtronic.data.dataset import build_dataset_data
from speedtronic.data.feed import BatchFeed
from speedtronic.precision import PrecisionPlan
from speedtronic.trainer.evaluate import Evaluator


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(1000))


class Signalling(torch.nn.Module):
    def forward(self, numbers, _labels):
        signal_group()
        return numbers.float().mean()


def user_loader():
    return DataLoader(TensorDataset(*torch.ones(2, 40)), batch_size=2, num_workers=1)


def signal_group():
    if not stop.requested:
        os.killpg(0, int(sys.argv[1]))
        time.sleep(0.3)


def draw(loader):
    feed = BatchFeed(loader)
    feed.next()
    signal_group()
    for _ in range(10):
        feed.next()
    feed.close()


def evaluate():
    plan = PrecisionPlan(
        mode="fp32", dtype=torch.float32, use_scaler=False, autocast_enabled=False,
        device_type="cpu",
    )
    Evaluator(
        Signalling(), batches=user_loader(), device=torch.device("cpu"), precision=plan,
        max_batches=None, token_bytes=None, sample_text=None, stop=StopFlag(),
    ).run()


stream = build_dataset_data(Stream(), micro_batch_size=2, num_workers=1, seed=1).train
sources = {
    "user": lambda: draw(user_loader()),
    "stream": lambda: draw(stream),
    "evaluation": evaluate,
}
for name, use in sources.items():
    stop = StopFlag()
    with stop.catch_signals():
        try:
            use()
            print(name, stop.reason)
        except RuntimeError as error:
            print(name, error)
"""


class _Slow(Dataset):
    """Its first sample comes at once, the others after ten minutes."""

    def __len__(self):
        return 8

    def __getitem__(self, index):
        if index:
            time.sleep(600)
        return index


class _Broken(_Slow):
    def __getitem__(self, index):
        if index == 1:
            raise OSError("sample 1 is gone")
        return index


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_the_group_leaves_the_workers_of_every_loader_alive(number):
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT, str(int(number))],
        check=False,
        start_new_session=True,
        capture_output=True,
        text=True,
        timeout=120,
    )
    reason = f"received {number.name}"
    assert done.stdout.splitlines() == [
        f"user {reason}",
        f"stream {reason}",
        f"evaluation {reason}",
    ]
    assert done.returncode == 0, done.stderr


def test_stop_signals_are_blocked_while_an_iterator_starts_and_as_before_afterwards():
    class Loader:
        def __iter__(self):
            masks.append(signal.pthread_sigmask(signal.SIG_BLOCK, ()))
            return iter(())

    masks = []
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    assert start_iterator(Loader()).workers == frozenset()
    assert masks == [before | set(HANDLED_SIGNALS)]
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before


def test_closing_kills_a_stuck_worker_of_the_users_loader(monkeypatch):
    monkeypatch.setattr("speedtronic.data.workers.JOIN_WITHIN_S", 0.2)
    monkeypatch.setattr("torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL", 0.2)
    before = set(multiprocessing.active_children())
    feed = BatchFeed(DataLoader(_Slow(), batch_size=1, num_workers=1))
    assert feed.next().tolist() == [0]
    assert len(set(multiprocessing.active_children()) - before) == 1
    feed.close()
    assert set(multiprocessing.active_children()) == before


def test_an_error_of_the_users_data_set_is_not_hidden_by_closing():
    feed = BatchFeed(DataLoader(_Broken(), batch_size=1, num_workers=2))
    feed.next()

    def fail():
        try:
            feed.next()
        finally:
            started = time.monotonic()
            feed.close()
            assert time.monotonic() - started < JOIN_WITHIN_S

    with pytest.raises(OSError, match="sample 1 is gone") as caught:
        fail()
    caught.value.__traceback__ = None  # It holds torch's iterator, and that its thread.
    del caught
    gc.collect()


def test_a_program_with_a_failed_fit_and_live_workers_ends(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import os, signal, sys, time, torch\n"
        "from speedtronic.data.feed import BatchFeed\n"
        "class Slow(torch.utils.data.Dataset):\n"
        "    def __len__(self):\n"
        "        return 1000\n"
        "    def __getitem__(self, index):\n"
        "        time.sleep(0.01)\n"
        "        return torch.tensor(index)\n"
        "loader = torch.utils.data.DataLoader(Slow(), batch_size=2, num_workers=2)\n"
        "feed = BatchFeed(loader, stop=None)\n"
        "feed.next()\n"
        "kept = feed\n"
        "raise KeyboardInterrupt\n"
    )
    done = subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, timeout=40, check=False
    )
    assert "KeyboardInterrupt" in done.stderr
    assert done.returncode != 0
