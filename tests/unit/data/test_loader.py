"""The training loader over token ids."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest
import torch

from speedtronic.core.errors import CheckpointError, DataError
from speedtronic.core.stopping import StopFlag
from speedtronic.core.types import StatefulLoader
from speedtronic.data.loader import TokenLoader
from speedtronic.data.prefetch import THREAD_NAME
from speedtronic.data.stream import TokenStream


def _tokens(count):
    return np.arange(count, dtype=np.uint16)


def _loader(count=101, **changes):
    options = {"block_size": 4, "micro_batch_size": 3, "seed": 1, **changes}
    return TokenLoader(_tokens(count), **options)


def _take(loader, count):
    iterator = iter(loader)
    batches = [next(iterator) for _ in range(count)]
    iterator.close()
    return batches


def _ids(batches):
    return [batch["input_ids"].tolist() for batch in batches]


def _prefetch_threads():
    return [each for each in threading.enumerate() if each.name.startswith(THREAD_NAME)]


def test_a_batch_has_int64_inputs_and_one_label_for_each_position():
    (batch,) = _take(_loader(shuffle=False), 1)
    assert batch["input_ids"].dtype == batch["labels"].dtype == torch.int64
    assert batch["input_ids"].tolist() == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    assert batch["labels"].tolist() == [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12]]


def test_inputs_and_labels_are_contiguous_so_that_view_works_in_a_users_model():
    (batch,) = _take(_loader(), 1)
    assert batch["labels"].view(-1).shape == batch["input_ids"].view(-1).shape == (12,)


def test_without_shuffle_blocks_come_in_order_epoch_after_epoch():
    loader = _loader(count=25, micro_batch_size=2, shuffle=False)
    starts = [[row[0] for row in batch] for batch in _ids(_take(loader, 6))]
    assert starts == [[0, 4], [8, 12], [16, 20], [0, 4], [8, 12], [16, 20]]


@pytest.mark.parametrize("count", [5, 6, 8, 9, 24, 25, 26, 40])
@pytest.mark.parametrize("shuffle", [True, False])
def test_an_epoch_predicts_every_position_once_across_block_borders(count, shuffle):
    loader = _loader(count=count, micro_batch_size=2, shuffle=shuffle, drop_last=False)
    for _ in range(2):
        predicted = []
        for batch in _take(loader, loader.batches_per_epoch):
            for inputs, labels in zip(
                batch["input_ids"].flatten().tolist(),
                batch["labels"].flatten().tolist(),
                strict=True,
            ):
                if labels != -100:
                    assert labels == inputs + 1
                    predicted.append(labels)
        assert sorted(predicted) == list(range(1, count))


def test_drop_last_false_ends_each_epoch_with_a_short_batch():
    loader = _loader(count=29, micro_batch_size=3, drop_last=False)
    assert [len(batch["labels"]) for batch in _take(loader, 6)] == [3, 3, 1, 3, 3, 1]


def test_drop_last_leaves_out_other_blocks_in_each_epoch():
    loader = _loader(count=29, micro_batch_size=3)
    left_out = []
    for _ in range(20):
        seen = {row[0] // 4 for batch in _ids(_take(loader, 2)) for row in batch}
        assert len(seen) == 6
        left_out += set(range(7)) - seen
    assert len(set(left_out)) > 1


def test_epochs_are_shuffled_differently():
    loader = _loader(count=101)
    epochs = [_ids(_take(loader, loader.batches_per_epoch)) for _ in range(3)]
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0]


@pytest.mark.parametrize("prefetch_factor", [0, 1, 2, 7, 100])
def test_batches_do_not_depend_on_prefetching(prefetch_factor):
    expected = _ids(_take(_loader(prefetch_factor=2), 40))
    assert _ids(_take(_loader(prefetch_factor=prefetch_factor), 40)) == expected


def test_batches_depend_on_the_seed():
    assert _ids(_take(_loader(seed=1), 3)) != _ids(_take(_loader(seed=2), 3))


def test_many_shards_give_the_batches_of_their_joined_tokens():
    cuts = np.split(_tokens(101), [1, 2, 30, 31, 77])
    options = {"block_size": 4, "micro_batch_size": 3, "seed": 1}
    joined = _take(TokenLoader(_tokens(101), **options), 30)
    assert _ids(_take(TokenLoader(TokenStream(cuts), **options), 30)) == _ids(joined)


def test_uint32_ids_above_uint16_are_kept():
    tokens = np.arange(70_000, 70_050, dtype=np.uint32)
    loader = TokenLoader(tokens, block_size=4, micro_batch_size=1, seed=0, shuffle=False)
    assert _ids(_take(loader, 1)) == [[[70_000, 70_001, 70_002, 70_003]]]


def test_the_loader_is_a_stateful_loader():
    assert isinstance(_loader(), StatefulLoader)


@pytest.mark.parametrize("used", [0, 1, 2, 5])
def test_the_position_counts_batches_handed_out_not_prefetched(used):
    loader = _loader()
    iterator = iter(loader)
    for _ in range(used):
        next(iterator)
    assert loader.state_dict() == {"microbatch": used}
    iterator.close()
    assert loader.state_dict() == {"microbatch": used}


def test_a_new_iterator_continues_where_the_last_one_stopped():
    expected = _ids(_take(_loader(), 6))
    loader = _loader()
    assert _ids(_take(loader, 2)) + _ids(_take(loader, 4)) == expected


def test_two_iterators_share_one_position():
    expected = _ids(_take(_loader(), 4))
    loader = _loader()
    first, second = iter(loader), iter(loader)
    got = [next(first), next(second), next(first), next(second)]
    assert _ids(got) == expected
    first.close()
    second.close()


def test_loading_a_position_moves_an_iterator_that_is_running():
    expected = _ids(_take(_loader(), 12))
    loader = _loader()
    iterator = iter(loader)
    next(iterator)
    loader.load_state_dict({"microbatch": 10})
    assert _ids([next(iterator), next(iterator)]) == expected[10:]
    iterator.close()


def test_a_position_far_away_is_reached_at_once():
    loader = _loader()
    loader.load_state_dict({"microbatch": 10**15})
    (batch,) = _take(loader, 1)
    assert batch["input_ids"].shape == (3, 4)
    assert loader.state_dict() == {"microbatch": 10**15 + 1}


@pytest.mark.parametrize(
    "state", [{}, {"microbatch": -1}, {"microbatch": 1.5}, {"microbatch": True}]
)
def test_a_state_that_is_no_position_is_refused(state):
    with pytest.raises(CheckpointError, match="saved data position must be a count"):
        _loader().load_state_dict(state)


def test_one_named_thread_reads_ahead_and_ends_with_its_iterator():
    iterator = iter(_loader())
    next(iterator)
    assert len(_prefetch_threads()) == 1
    iterator.close()
    assert _prefetch_threads() == []


def test_a_forgotten_iterator_ends_its_thread():
    iterator = iter(_loader())
    next(iterator)
    del iterator
    gc.collect()
    assert _prefetch_threads() == []


def test_an_error_while_reading_surfaces_in_the_consumer_and_ends_the_thread():
    tokens = _tokens(101)
    loader = TokenLoader(
        TokenStream([tokens], names=["a.bin"], id_limit=50),
        block_size=4,
        micro_batch_size=3,
        seed=0,
        shuffle=False,
    )
    with pytest.raises(DataError, match=r"a.bin holds id 50 at token 50"):
        _take(loader, 10)
    gc.collect()
    assert _prefetch_threads() == []


def test_a_requested_stop_does_not_cut_off_batches_that_are_ready():
    stop = StopFlag()
    stop.request("test")
    batches = _loader(prefetch_factor=0).batches(stop=stop)
    assert next(batches)["input_ids"].shape == (3, 4)
    batches.close()


def test_a_microbatch_larger_than_the_data_names_both_numbers():
    message = (
        r"data.micro_batch_size \(26\) is larger than the training data \(25 blocks of 4 tokens\)"
    )
    with pytest.raises(DataError, match=message):
        _loader(count=101, micro_batch_size=26)


def test_a_microbatch_larger_than_the_data_is_short_without_drop_last():
    loader = _loader(count=101, micro_batch_size=26, drop_last=False)
    assert [len(batch["labels"]) for batch in _take(loader, 2)] == [25, 25]


def test_fewer_tokens_than_a_block_name_both_numbers():
    with pytest.raises(DataError, match=r"has 4 tokens, fewer than a block needs .* = 5\)"):
        _loader(count=4)


def test_a_text_of_exactly_one_block_trains():
    loader = _loader(count=5, micro_batch_size=1)
    assert _ids(_take(loader, 2)) == [[[0, 1, 2, 3]], [[0, 1, 2, 3]]]


@pytest.mark.parametrize(("key", "value"), [("block_size", 0), ("micro_batch_size", 0)])
def test_sizes_below_one_are_refused(key, value):
    with pytest.raises(DataError, match=f"data.{key} must be at least 1, got 0"):
        _loader(**{key: value})


def test_the_training_rng_is_not_drawn_from():
    before = torch.get_rng_state()
    _take(_loader(), 5)
    assert torch.equal(torch.get_rng_state(), before)
