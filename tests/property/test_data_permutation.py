"""The counter-based order: a bijection for every size, different for every seed and epoch."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from speedtronic.data.order import BatchOrder
from speedtronic.data.permutation import permuted_indices


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 8, 255, 256, 257, 1000, 4096, 4097, 65_537])
def test_every_size_is_permuted_without_repeats_or_gaps(size):
    order = permuted_indices(np.arange(size), size=size, seed=3, epoch=1)
    assert np.array_equal(np.sort(order), np.arange(size))


@settings(max_examples=60, deadline=None)
@given(
    size=st.integers(1, 3000),
    seed=st.integers(0, 2**32 - 1),
    epoch=st.integers(0, 10**9),
)
def test_any_seed_and_epoch_give_a_bijection(size, seed, epoch):
    order = permuted_indices(np.arange(size), size=size, seed=seed, epoch=epoch)
    assert np.array_equal(np.sort(order), np.arange(size))


@settings(max_examples=40, deadline=None)
@given(size=st.integers(2, 10**12), data=st.data())
def test_a_position_has_one_value_whatever_is_asked_with_it(size, data):
    first = data.draw(st.integers(0, size - 1))
    second = data.draw(st.integers(0, size - 1))
    together = permuted_indices(np.array([first, second]), size=size, seed=5, epoch=2)
    alone = permuted_indices(np.array([second]), size=size, seed=5, epoch=2)
    assert together[1] == alone[0]
    assert (first == second) == (together[0] == together[1])
    assert 0 <= together.min() <= together.max() < size


def test_the_order_is_the_same_on_every_machine_and_version():
    order = permuted_indices(np.arange(10), size=10, seed=1234, epoch=0)
    assert order.tolist() == [2, 9, 3, 8, 4, 7, 5, 1, 6, 0]


def test_epochs_and_seeds_have_different_orders():
    orders = {
        tuple(permuted_indices(np.arange(100), size=100, seed=seed, epoch=epoch).tolist())
        for seed in range(10)
        for epoch in range(10)
    }
    assert len(orders) == 100


def test_all_six_orders_of_three_things_are_equally_likely():
    counts = dict.fromkeys(["012", "021", "102", "120", "201", "210"], 0)
    for seed in range(1200):
        order = permuted_indices(np.arange(3), size=3, seed=seed, epoch=0)
        counts["".join(map(str, order))] += 1
    # 200 each; the standard deviation is sqrt(1200 * 1/6 * 5/6) = 13.
    assert all(200 - 4 * 13 < count < 200 + 4 * 13 for count in counts.values())


def test_neighbours_of_an_order_are_not_correlated():
    order = permuted_indices(np.arange(100_003), size=100_003, seed=1, epoch=0)
    # The standard deviation of the correlation of independent draws is 1/sqrt(100,003) = 0.0032.
    assert abs(np.corrcoef(order[:-1], order[1:])[0, 1]) < 4 * 0.0032
    assert abs(np.corrcoef(np.arange(100_003), order)[0, 1]) < 4 * 0.0032


@pytest.mark.parametrize(("positions", "size"), [([-1], 3), ([3], 3)])
def test_a_position_outside_the_size_is_refused(positions, size):
    with pytest.raises(ValueError, match=r"positions must lie in range\(3\)"):
        permuted_indices(np.array(positions), size=size, seed=0, epoch=0)


def test_a_size_of_zero_is_refused():
    with pytest.raises(ValueError, match="size must be at least 1, got 0"):
        permuted_indices(np.array([], dtype=np.int64), size=0, seed=0, epoch=0)


@settings(max_examples=60, deadline=None)
@given(
    num_samples=st.integers(1, 60),
    micro_batch_size=st.integers(1, 12),
    shuffle=st.booleans(),
    drop_last=st.booleans(),
    start=st.integers(0, 200),
    count=st.integers(1, 40),
)
def test_microbatches_are_the_same_alone_and_in_groups(
    num_samples, micro_batch_size, shuffle, drop_last, start, count
):
    order = BatchOrder(
        num_samples=num_samples,
        micro_batch_size=min(micro_batch_size, num_samples),
        seed=7,
        shuffle=shuffle,
        drop_last=drop_last,
    )
    together = [batch.tolist() for batch in order.samples_from(start, count=count)]
    alone = [order.samples_of(number).tolist() for number in range(start, start + count)]
    assert together == alone


@settings(max_examples=60, deadline=None)
@given(num_samples=st.integers(1, 60), micro_batch_size=st.integers(1, 70))
def test_an_epoch_without_dropping_holds_every_sample_once(num_samples, micro_batch_size):
    order = BatchOrder(
        num_samples=num_samples,
        micro_batch_size=micro_batch_size,
        seed=7,
        shuffle=True,
        drop_last=False,
    )
    for epoch in range(3):
        first = epoch * order.batches_per_epoch
        batches = order.samples_from(first, count=order.batches_per_epoch)
        assert sorted(np.concatenate(batches).tolist()) == list(range(num_samples))
