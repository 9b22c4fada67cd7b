"""Exact resume of the data, and memory that does not grow with the corpus."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch

from speedtronic.data.dataset import DatasetLoader
from speedtronic.data.feed import BatchFeed
from speedtronic.data.loader import TokenLoader
from speedtronic.data.stream import TokenStream

BATCHES_PER_EPOCH = 7
TOTAL = 18  # Two and a half epochs and a bit.


class Numbers:
    """Twenty-two samples that are their own indices."""

    def __len__(self):
        return 22

    def __getitem__(self, index):
        return {"input_ids": torch.tensor([index])}


def _tokens_loader(**changes):
    tokens = np.arange(22 * 4 + 1, dtype=np.uint16)
    shards = TokenStream(np.split(tokens, [30, 31]))
    return TokenLoader(shards, block_size=4, micro_batch_size=3, seed=5, **changes)


def _dataset_loader(**changes):
    return DatasetLoader(Numbers(), micro_batch_size=3, seed=5, **changes)


def _straight(make):
    iterator = iter(make())
    batches = [next(iterator)["input_ids"].tolist() for _ in range(TOTAL)]
    iterator.close()
    return batches


@pytest.mark.parametrize("make", [_tokens_loader, _dataset_loader])
@pytest.mark.parametrize(
    "stops",
    [
        (1, 2, 3),
        (3, 7, 14),  # In the middle of an epoch, and exactly at the end of one, twice.
        (6, 8, 15),
        (7, 7, 7),
        (2, 13, 17),
    ],
)
def test_three_resumes_over_two_and_a_half_epochs_give_the_samples_of_a_straight_run(make, stops):
    assert make().batches_per_epoch == BATCHES_PER_EPOCH
    got = []
    state = None
    for stop in (*stops, TOTAL):
        feed = BatchFeed(make())
        if state is not None:
            feed.load_state_dict(state)
        while len(got) < stop:
            got.append(feed.next()["input_ids"].tolist())
            feed.commit()
        feed.next()  # Handed out but not used when the run is killed.
        state = feed.state_dict()
        feed.close()
        assert state["loader"] == {"microbatch": stop}
    assert got == _straight(make)


def test_workers_and_prefetching_may_change_at_every_resume():
    expected = _straight(_dataset_loader)
    got = []
    for number, changes in enumerate(
        [{"num_workers": 2}, {"num_workers": 0}, {"num_workers": 1, "prefetch_factor": 5}]
    ):
        loader = _dataset_loader(**changes)
        loader.load_state_dict({"microbatch": 6 * number})
        iterator = iter(loader)
        got += [next(iterator)["input_ids"].tolist() for _ in range(6)]
        iterator.close()
    assert got == expected


def test_every_sample_of_an_epoch_is_met_once_across_resumes():
    seen = []
    for microbatch in range(8):
        loader = _tokens_loader(drop_last=False)
        loader.load_state_dict({"microbatch": microbatch})
        iterator = iter(loader)
        seen += next(iterator)["input_ids"][:, 0].tolist()
        iterator.close()
    assert sorted(seen) == list(range(0, 88, 4))


MEASURE = """
import sys
import numpy as np
from speedtronic.data.tokens import build_tokens_data

def anonymous_kb():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("RssAnon"))

def read(path):
    data = build_tokens_data(
        path=path, tokenizer="byte", block_size=256, micro_batch_size=16, seed=1
    )
    iterator = iter(data.train)
    for _ in range(500):
        next(iterator)
    iterator.close()
    for batch in data.evaluation:
        pass
    return anonymous_kb()

for _ in range(4):  # Until torch and the allocator of each thread have what they keep.
    small = read(sys.argv[1])
print(read(sys.argv[2]) - small)
"""


def test_anonymous_memory_does_not_grow_with_the_corpus(tmp_path):
    chunk = np.tile(np.arange(256, dtype=np.uint16), 1 << 12)  # 2 MiB
    (tmp_path / "small.bin").write_bytes(chunk.tobytes())
    with (tmp_path / "large.bin").open("wb") as file:
        for _ in range(64):
            file.write(chunk.tobytes())
    result = subprocess.run(
        [sys.executable, "-c", MEASURE, str(tmp_path / "small.bin"), str(tmp_path / "large.bin")],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    # 128 MiB of tokens; repeated reads of one file differ by up to 20 MB on a busy machine, the
    # allocator's.
    assert int(result.stdout) < 48_000
