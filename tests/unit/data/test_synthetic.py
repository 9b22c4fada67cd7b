"""Made-up tokens."""

from __future__ import annotations

import math

import numpy as np
import pytest

from speedtronic.core.errors import DataError
from speedtronic.data.synthetic import build_synthetic_data, entropy_nats, synthetic_tokens


def _samples(seed, *, block_size=24):
    tokens = synthetic_tokens(50_000, vocab_size=256, seed=seed)
    windows = np.lib.stride_tricks.sliding_window_view(tokens, block_size)
    return {row.tobytes() for row in windows}


def test_two_seeds_share_no_sample_at_any_offset():
    assert not _samples(1) & _samples(2)


def test_one_seed_gives_one_stream_whatever_its_length():
    long = synthetic_tokens(3_000_000, vocab_size=256, seed=3)
    assert np.array_equal(synthetic_tokens(1000, vocab_size=256, seed=3), long[:1000])
    # Across the borders of the pieces it is made in.
    steps = np.diff(long.astype(np.int64)) % 256
    assert set(np.unique(steps)) == {1, 29, 53, 97, 131, 173, 211, 241}


def test_the_rule_is_the_same_for_every_seed():
    for seed in (0, 1, 99):
        steps = np.diff(synthetic_tokens(160_000, vocab_size=256, seed=seed).astype(int)) % 256
        counts = np.array([(steps == step).mean() for step in (1, 29, 53, 97, 131)])
        # Standard deviation sqrt(p(1-p)/160,000) is at most 0.0011.
        assert np.abs(counts - np.array([4, 3, 3, 2, 1]) / 16).max() < 0.005


def test_the_entropy_is_that_of_the_steps():
    # -(4/16 ln 4/16 + 2 * 3/16 ln 3/16 + 2/16 ln 2/16 + 4 * 1/16 ln 1/16)
    expected = 0.25 * math.log(4) + 0.375 * math.log(16 / 3) + 0.125 * math.log(8)
    expected += 0.25 * math.log(16)
    assert entropy_nats(256) == pytest.approx(expected, abs=1e-12)
    assert entropy_nats(256) == pytest.approx(1.9274, abs=1e-4)


def test_a_table_of_pairs_learned_from_the_text_reaches_the_entropy():
    tokens = synthetic_tokens(400_000, vocab_size=64, seed=5).astype(int)
    counts = np.zeros((64, 64))
    np.add.at(counts, (tokens[:300_000], tokens[1:300_001]), 1)
    chances = counts / counts.sum(axis=1, keepdims=True)
    loss = -np.log(chances[tokens[300_000:-1], tokens[300_001:]]).mean()
    assert loss == pytest.approx(entropy_nats(64), abs=0.02)
    assert loss < math.log(64) / 1.9


def test_ids_stay_inside_the_vocabulary_and_all_occur():
    for vocab_size in (2, 3, 50, 256):
        tokens = synthetic_tokens(20_000, vocab_size=vocab_size, seed=1)
        assert set(np.unique(tokens)) == set(range(vocab_size))
    assert synthetic_tokens(10, vocab_size=70_000, seed=1).dtype == np.uint32


def test_the_data_has_the_wanted_length_and_a_held_out_tail():
    data = build_synthetic_data(
        num_tokens=1000, vocab_size=16, block_size=8, micro_batch_size=2, seed=1
    )
    assert data.vocab_size == 16
    assert data.tokenizer is None
    assert data.facts == {
        "source": "synthetic",
        "num_tokens": 1000,
        "entropy_nats": entropy_nats(16),
        "tokenizer": None,
        "vocab_size": 16,
        "train_tokens": 950,
        "held_out_tokens": 50,
    }
    assert data.train.batches_per_epoch == 119 // 2
    assert len(data.evaluation) == 4


def test_too_few_tokens_name_the_setting():
    with pytest.raises(DataError, match=r"data.num_tokens: the training part has 8 tokens"):
        build_synthetic_data(num_tokens=8, block_size=8, micro_batch_size=1, seed=1)


def test_a_vocabulary_of_one_is_refused():
    with pytest.raises(DataError, match=r"data.vocab_size must be at least 2, got 1"):
        build_synthetic_data(num_tokens=100, vocab_size=1, block_size=8, seed=1)
