"""Loaders over the user's own data sets."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import threading
import time

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from speedtronic.core.errors import DataError
from speedtronic.core.seeding import seed_everything
from speedtronic.core.stopping import StopFlag, StopRequestedError
from speedtronic.data.dataset import DatasetBatches, DatasetLoader, build_dataset_data
from speedtronic.data.loaded import LoadedData
from speedtronic.data.prefetch import THREAD_NAME


class Numbers(Dataset):
    """Samples are their own indices."""

    def __init__(self, count=10):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return {"input_ids": torch.tensor([index])}


class Noisy(Numbers):
    """Samples draw from every CPU generator, as random transforms do."""

    def __getitem__(self, index):
        noise = [random.random(), np.random.rand(), float(torch.rand(()))]  # noqa: NPY002 - the global state is what is tested
        return {"input_ids": torch.tensor([index]), "noise": torch.tensor(noise)}


class Stuck(Numbers):
    """The second sample never comes."""

    def __getitem__(self, index):
        if index == 1:
            time.sleep(600)
        return super().__getitem__(index)


class Broken(Numbers):
    """The sixth sample cannot be read."""

    def __getitem__(self, index):
        if index == 5:
            raise OSError("sample 5 is gone")
        return super().__getitem__(index)


class OwnPid(Numbers):
    """Samples tell which process made them; it signals itself first."""

    def __getitem__(self, index):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
            os.kill(os.getpid(), number)
        return torch.tensor([os.getpid()])


class Stream(IterableDataset):
    """Seven samples without indices."""

    def __iter__(self):
        return iter(range(7))


def _loader(dataset=None, **changes):
    options = {"micro_batch_size": 3, "seed": 1, **changes}
    return DatasetLoader(Numbers() if dataset is None else dataset, **options)


def _take(loader, count):
    iterator = iter(loader)
    batches = [next(iterator) for _ in range(count)]
    iterator.close()
    return batches


def _ids(batches):
    return [batch["input_ids"].flatten().tolist() for batch in batches]


def _joined(lists):
    return [each for one in lists for each in one]


def _noise(batches):
    return [batch["noise"].tolist() for batch in batches]


def test_without_shuffle_samples_come_in_order():
    assert _ids(_take(_loader(shuffle=False), 4)) == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [0, 1, 2]]


def test_an_epoch_holds_every_sample_once_and_ends_short_without_drop_last():
    batches = _ids(_take(_loader(drop_last=False), 8))
    assert [len(batch) for batch in batches] == [3, 3, 3, 1, 3, 3, 3, 1]
    assert sorted(_joined(batches[:4])) == sorted(_joined(batches[4:])) == list(range(10))
    assert batches[:4] != batches[4:]


@pytest.mark.filterwarnings("ignore:This DataLoader will create 4 worker processes")
@pytest.mark.parametrize("num_workers", [1, 2, 4])
def test_workers_change_no_batch_and_no_random_draw(num_workers):
    expected = _take(_loader(Noisy()), 8)
    got = _take(_loader(Noisy(), num_workers=num_workers), 8)
    assert _ids(got) == _ids(expected)
    assert _noise(got) == _noise(expected)


@pytest.mark.filterwarnings("ignore:This DataLoader will create 4 worker processes")
@pytest.mark.parametrize("num_workers", [0, 2, 4])
@pytest.mark.parametrize("used", [0, 1, 2, 3, 4])
def test_a_resumed_loader_gives_the_same_batches_and_draws(num_workers, used):
    expected = _take(_loader(Noisy()), 8)
    first = _loader(Noisy(), num_workers=num_workers)
    _take(first, used)
    assert first.state_dict() == {"microbatch": used}
    resumed = _loader(Noisy(), num_workers=num_workers)
    resumed.load_state_dict(first.state_dict())
    got = _take(resumed, 8 - used)
    assert _ids(got) == _ids(expected)[used:]
    assert _noise(got) == _noise(expected)[used:]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_samples_leave_the_training_rng_alone(num_workers):
    seed_everything(3)
    _take(_loader(Noisy(), num_workers=num_workers), 3)
    got = (random.random(), float(np.random.rand()), float(torch.rand(())))  # noqa: NPY002 - the global state is what is tested
    seed_everything(3)
    assert got == (random.random(), float(np.random.rand()), float(torch.rand(())))  # noqa: NPY002 - the global state is what is tested


def test_draws_differ_between_microbatches_and_seeds():
    noise = [str(each) for each in _noise(_take(_loader(Noisy()), 4))]
    noise += [str(each) for each in _noise(_take(_loader(Noisy(), seed=2), 4))]
    assert len(set(noise)) == 8


def test_without_workers_samples_are_made_on_the_calling_thread():
    class Threads(Numbers):
        def __getitem__(self, index):
            return threading.get_ident()

    (batch,) = _take(_loader(Threads()), 1)
    assert batch.tolist() == [threading.get_ident()] * 3


def test_workers_and_thread_end_with_the_iterator():
    before = set(multiprocessing.active_children())
    iterator = iter(_loader(num_workers=2))
    next(iterator)
    assert len(set(multiprocessing.active_children()) - before) == 2
    iterator.close()
    assert set(multiprocessing.active_children()) == before
    assert not [each for each in threading.enumerate() if each.name.startswith(THREAD_NAME)]


def test_workers_ignore_the_signals_that_stop_their_parent():
    (batch,) = _take(_loader(OwnPid(), num_workers=1), 1)
    assert batch.flatten()[0] != os.getpid()


def test_a_stop_ends_waiting_for_a_stuck_worker_which_is_killed(monkeypatch):
    monkeypatch.setattr("speedtronic.data.workers.JOIN_WITHIN_S", 0.2)
    monkeypatch.setattr("speedtronic.data.prefetch.JOIN_WITHIN_S", 0.2)
    monkeypatch.setattr("torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL", 0.2)
    before = set(multiprocessing.active_children())
    stop = StopFlag()
    batches = _loader(Stuck(), micro_batch_size=1, num_workers=1, shuffle=False).batches(stop=stop)
    next(batches)
    stop.request("received SIGTERM")
    with pytest.raises(StopRequestedError, match="received SIGTERM"):
        next(batches)
    assert set(multiprocessing.active_children()) == before


@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_error_of_the_data_set_surfaces(num_workers):
    loader = _loader(Broken(), num_workers=num_workers, shuffle=False)
    before = set(multiprocessing.active_children())
    with pytest.raises(OSError, match="sample 5 is gone"):
        _take(loader, 3)
    assert set(multiprocessing.active_children()) == before


def test_a_microbatch_larger_than_the_data_names_both_numbers():
    message = r"data.micro_batch_size \(11\) is larger than the training data \(10 samples\)"
    with pytest.raises(DataError, match=message):
        _loader(micro_batch_size=11)


def test_an_empty_data_set_is_refused():
    with pytest.raises(DataError, match="the data set is empty"):
        _loader(Numbers(0))


class TestDatasetBatches:
    def test_each_pass_gives_equal_batches_and_draws(self):
        batches = DatasetBatches(Noisy(5), micro_batch_size=2)
        first, second = list(batches), list(batches)
        assert len(batches) == 3
        assert _ids(first) == _ids(second) == [[0, 1], [2, 3], [4]]
        assert _noise(first) == _noise(second)

    def test_fewer_batches_are_spread_evenly(self):
        batches = DatasetBatches(Numbers(20), micro_batch_size=2, max_batches=2)
        assert _ids(batches) == [[0, 5], [10, 15]]

    def test_the_training_rng_is_left_alone(self):
        before = torch.get_rng_state()
        list(DatasetBatches(Noisy(5), micro_batch_size=2))
        assert torch.equal(torch.get_rng_state(), before)


class TestBuildDatasetData:
    def test_the_tail_of_a_data_set_is_held_out(self):
        data = build_dataset_data(
            Numbers(20), micro_batch_size=3, validation_fraction=0.1, shuffle=False, seed=1
        )
        assert _ids(data.evaluation) == [[18, 19]]
        assert sorted(_joined(_ids(_take(data.train, 6)))) == list(range(18))
        assert data.facts == {"source": "Numbers", "train_samples": 18, "held_out_samples": 2}
        assert (data.tokenizer, data.vocab_size) == (None, None)

    @pytest.mark.parametrize(("count", "fraction"), [(8, 0.05), (20, 0.0)])
    def test_nothing_is_held_out_of_a_small_data_set_or_at_fraction_zero(self, count, fraction):
        data = build_dataset_data(
            Numbers(count), micro_batch_size=2, validation_fraction=fraction, seed=1
        )
        assert data.evaluation is None
        assert data.train.batches_per_epoch == count // 2

    def test_anything_with_length_and_items_is_a_data_set(self):
        class Plain:
            def __len__(self):
                return 4

            def __getitem__(self, index):
                return index

        data = build_dataset_data(
            Plain(), micro_batch_size=2, validation_fraction=0, seed=1, shuffle=False
        )
        assert [batch.tolist() for batch in _take(data.train, 2)] == [[0, 1], [2, 3]]

    def test_a_tensor_data_set_gives_pairs(self):
        dataset = TensorDataset(torch.arange(6.0).reshape(6, 1), torch.arange(6))
        data = build_dataset_data(
            dataset, micro_batch_size=2, validation_fraction=0, seed=1, shuffle=False
        )
        inputs, labels = _take(data.train, 1)[0]
        assert inputs.tolist() == [[0.0], [1.0]]
        assert labels.tolist() == [0, 1]

    @pytest.mark.parametrize(
        "made",
        [
            DataLoader(Numbers(), batch_size=2),
            [1, 2],
            (1, 2),
            DatasetLoader(Numbers(), micro_batch_size=2, seed=0),
            (number for number in range(3)),
        ],
    )
    def test_loaders_are_used_as_they_are(self, made):
        data = build_dataset_data(made, micro_batch_size=2, seed=1)
        assert data.train is made
        assert data.evaluation is None

    def test_loaded_data_is_used_as_it_is(self):
        made = LoadedData(train=[1], evaluation=None, tokenizer=None, vocab_size=None)
        assert build_dataset_data(made, micro_batch_size=2, seed=1) is made

    def test_an_iterable_data_set_is_batched(self):
        data = build_dataset_data(Stream(), micro_batch_size=2, drop_last=False, seed=1)
        assert [batch.tolist() for batch in data.train] == [[0, 1], [2, 3], [4, 5], [6]]

    def test_a_loader_with_a_batch_larger_than_its_data_is_refused_at_once(self):
        loader = DataLoader(Numbers(3), batch_size=8, drop_last=True)
        message = r"batch size \(8\) is larger than its data set \(3 samples\)"
        with pytest.raises(DataError, match=message):
            build_dataset_data(loader, micro_batch_size=2, seed=1)

    def test_an_empty_list_is_refused_at_once(self):
        with pytest.raises(DataError, match="data: the list is empty"):
            build_dataset_data([], micro_batch_size=2, seed=1)

    def test_what_is_no_data_is_named(self):
        with pytest.raises(DataError, match=r"data._target_ must give a Dataset, .* got int"):
            build_dataset_data(3, micro_batch_size=2, seed=1)
