"""Held-out batches."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from speedtronic.core.errors import DataError
from speedtronic.data.evaluation import EvaluationBatches


def _batches(count, **changes):
    options = {"block_size": 4, "micro_batch_size": 2, **changes}
    return EvaluationBatches(np.arange(count, dtype=np.uint16), **options)


def _predicted(batches):
    labels = [label for batch in batches for label in batch["labels"].flatten().tolist()]
    return [label for label in labels if label != -100]


@pytest.mark.parametrize("count", [5, 6, 8, 9, 10, 17, 18, 21, 40, 41])
def test_every_held_out_position_is_predicted_once_in_order(count):
    assert _predicted(_batches(count)) == list(range(1, count))


def test_the_overlap_of_the_last_block_is_masked():
    (_, last) = _batches(11)
    assert last["input_ids"].tolist() == [[6, 7, 8, 9]]
    assert last["labels"].tolist() == [[-100, -100, 9, 10]]


def test_each_pass_gives_equal_batches_and_draws_no_random_number():
    batches = _batches(40)
    before = torch.get_rng_state()
    passes = [[batch["input_ids"].tolist() for batch in batches] for _ in range(2)]
    assert passes[0] == passes[1]
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(("count", "batches"), [(5, 1), (9, 1), (10, 2), (17, 2), (18, 3)])
def test_the_length_is_the_number_of_batches(count, batches):
    assert len(_batches(count)) == len(list(_batches(count))) == batches


def test_fewer_batches_are_spread_evenly_over_the_split():
    batches = _batches(4 * 100 + 1, max_batches=5)
    firsts = [row[0] // 4 for batch in batches for row in batch["input_ids"].tolist()]
    assert len(batches) == 5
    assert firsts == [0, 10, 20, 30, 40, 50, 60, 70, 80, 90]


def test_more_batches_than_there_are_means_all():
    assert _predicted(_batches(18, max_batches=3)) == list(range(1, 18))
    assert len(_batches(18, max_batches=50)) == 3


def test_a_held_out_part_shorter_than_a_block_names_the_setting():
    with pytest.raises(DataError, match=r"data.validation_fraction: .* has 3 tokens, fewer than"):
        _batches(3)


def test_an_empty_held_out_part_names_the_setting():
    with pytest.raises(DataError, match=r"data.validation_fraction: .* has 0 tokens"):
        _batches(0)
