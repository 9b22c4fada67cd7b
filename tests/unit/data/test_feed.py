"""The trainer's way to any loader: commit, rollback, replay, and what cannot be replayed."""

from __future__ import annotations

import gc
import json
import random
import threading

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, TensorDataset

from speedtronic.core.errors import CheckpointError, DataError
from speedtronic.core.seeding import rng_state, seed_everything, set_rng_state
from speedtronic.core.stopping import StopFlag, StopRequestedError
from speedtronic.data.endless import EndlessLoader
from speedtronic.data.feed import BatchFeed, infinite_batches
from speedtronic.data.loader import TokenLoader
from speedtronic.data.prefetch import THREAD_NAME, Prefetcher


def _token_loader():
    return TokenLoader(np.arange(101, dtype=np.uint16), block_size=4, micro_batch_size=3, seed=1)


def _plain(batch):
    if isinstance(batch, dict):
        return batch["input_ids"].tolist()
    return batch[0].tolist() if isinstance(batch, list | tuple) else batch


def _shuffled_loader(num_samples=10, batch_size=3, **changes):
    dataset = TensorDataset(torch.arange(num_samples))
    return DataLoader(dataset, batch_size=batch_size, shuffle=True, **changes)


def _take(feed, count):
    taken = []
    for _ in range(count):
        taken.append(_plain(feed.next()))
        feed.commit()
    return taken


def _silent(_line):
    return None


class _StatefulList:
    """A loader of finite passes that knows its position, like torchdata's."""

    def __init__(self, batches):
        self.batches_given = batches
        self.position = 0

    def __iter__(self):
        while self.position < len(self.batches_given):
            self.position += 1
            yield self.batches_given[self.position - 1]
        self.position = 0

    def state_dict(self):
        return {"position": self.position}

    def load_state_dict(self, state):
        self.position = state["position"]


class _LiveState(_StatefulList):
    """Returns and takes over the dict it counts in."""

    def __init__(self, batches):
        self.live = {"position": 0}
        self.num_asked = 0
        super().__init__(batches)

    @property
    def position(self):
        return self.live["position"]

    @position.setter
    def position(self, value):
        self.live["position"] = value

    def state_dict(self):
        self.num_asked += 1
        return self.live

    def load_state_dict(self, state):
        self.live = state


class TestInfiniteBatches:
    def test_a_list_is_repeated(self):
        batches = infinite_batches([1, 2, 3])
        assert [next(batches) for _ in range(7)] == [1, 2, 3, 1, 2, 3, 1]

    def test_each_pass_of_a_shuffling_loader_is_shuffled_anew(self):
        seed_everything(3)
        batches = infinite_batches(_shuffled_loader(12, 12))
        passes = [next(batches)[0].tolist() for _ in range(2)]
        assert passes[0] != passes[1]
        assert sorted(passes[0]) == sorted(passes[1]) == list(range(12))

    def test_our_loader_runs_on_without_end_and_its_thread_ends_with_the_generator(self):
        batches = infinite_batches(_token_loader())
        for _ in range(30):
            next(batches)
        batches.close()
        assert not [t for t in threading.enumerate() if t.name.startswith(THREAD_NAME)]

    def test_a_stateful_loader_of_finite_passes_is_started_again(self):
        batches = infinite_batches(_StatefulList([1, 2]))
        assert [next(batches) for _ in range(5)] == [1, 2, 1, 2, 1]

    def test_an_exhausted_generator_says_that_it_cannot_start_again(self):
        batches = infinite_batches(number for number in (1, 2))
        assert [next(batches), next(batches)] == [1, 2]
        with pytest.raises(
            DataError, match=r"\(generator\) is exhausted after 2 batches and cannot"
        ):
            next(batches)

    def test_a_loader_that_yields_nothing_the_second_time_says_so(self):
        class OnePass:
            def __init__(self):
                self.items = iter([1, 2])

            def __iter__(self):
                return (item for item in self.items)

        batches = infinite_batches(OnePass())
        assert [next(batches), next(batches)] == [1, 2]
        with pytest.raises(DataError, match=r"\(OnePass\) is exhausted after 2 batches"):
            next(batches)

    @pytest.mark.parametrize("loader", [[], (), _StatefulList([])])
    def test_an_empty_loader_says_so(self, loader):
        with pytest.raises(DataError, match=r"gives no batch: it is empty"):
            next(infinite_batches(loader))

    def test_an_empty_generator_says_so(self):
        with pytest.raises(DataError, match=r"\(generator\) gives no batch: it is empty"):
            next(infinite_batches(number for number in ()))

    def test_a_batch_larger_than_the_data_set_names_both_numbers(self):
        loader = _shuffled_loader(5, 8, drop_last=True)
        message = r"batch size \(8\) is larger than its data set \(5 samples\)"
        with pytest.raises(DataError, match=message):
            next(infinite_batches(loader))

    def test_what_is_not_iterable_is_named(self):
        with pytest.raises(TypeError, match="a data loader must be iterable, got int"):
            next(infinite_batches(3))

    def test_an_error_of_the_loader_passes_through(self):
        def broken():
            yield 1
            raise OSError("disk gone")

        batches = infinite_batches(broken())
        next(batches)
        with pytest.raises(OSError, match="disk gone"):
            next(batches)


class TestCommitAndRollback:
    @pytest.mark.parametrize("make", [_token_loader, lambda: [1, 2, 3, 4, 5]])
    def test_rolled_back_batches_come_again_in_order(self, make):
        feed = BatchFeed(make())
        expected = _take(BatchFeed(make()), 5)
        assert [_plain(feed.next()) for _ in range(3)] == expected[:3]
        feed.rollback()
        assert [_plain(feed.next()) for _ in range(2)] == expected[:2]
        feed.rollback()
        assert [_plain(feed.next()) for _ in range(5)] == expected
        feed.close()

    def test_the_position_is_that_of_the_last_commit(self):
        feed = BatchFeed(_token_loader())
        feed.next()
        feed.next()
        assert feed.state_dict() == {"kind": "stateful", "loader": {"microbatch": 0}}
        feed.commit()
        assert feed.state_dict() == {"kind": "stateful", "loader": {"microbatch": 2}}
        feed.next()
        assert feed.state_dict() == {"kind": "stateful", "loader": {"microbatch": 2}}
        feed.close()

    def test_a_commit_in_the_middle_of_rolled_back_batches_counts_only_the_used_ones(self):
        feed = BatchFeed(_token_loader())
        for _ in range(4):
            feed.next()
        feed.rollback()
        feed.next()
        feed.commit()
        assert feed.state_dict()["loader"] == {"microbatch": 1}
        feed.close()

    def test_a_commit_without_a_batch_changes_nothing(self):
        feed = BatchFeed([1, 2])
        feed.next()
        feed.commit()
        state = feed.state_dict()
        feed.commit()
        assert feed.state_dict() == state

    def test_a_saved_state_does_not_change_afterwards(self):
        loader = _StatefulList([1, 2, 3])
        feed = BatchFeed(loader)
        feed.next()
        feed.commit()
        state = feed.state_dict()
        feed.next()
        feed.commit()
        assert state == {"kind": "stateful", "loader": {"position": 1}}

    def test_a_state_that_its_loader_goes_on_changing_is_kept_as_it_was(self):
        feed = BatchFeed(_LiveState([1, 2, 3, 4]))
        assert _take(feed, 2) == [1, 2]
        assert feed.next() == 3
        assert feed.state_dict()["loader"] == {"position": 2}
        feed.rollback()
        assert _take(feed, 1) == [3]
        assert feed.state_dict()["loader"] == {"position": 3}

    def test_a_loader_that_keeps_the_state_it_was_given_does_not_change_the_committed_one(self):
        feed = BatchFeed(_LiveState([1, 2, 3, 4]))
        _take(feed, 1)
        for _ in range(2):
            assert feed.next() == 2
            feed.close()
        assert feed.state_dict()["loader"] == {"position": 1}

    def test_a_stateful_loader_is_asked_for_its_position_once_a_commit(self):
        loader = _LiveState(list(range(9)))
        feed = BatchFeed(loader)
        loader.num_asked = 0
        for _ in range(2):
            assert [feed.next() for _ in range(4)]
            feed.commit()
        assert loader.num_asked == 2


class TestClosing:
    def test_after_closing_our_loader_continues_after_the_last_commit(self):
        expected = _take(BatchFeed(_token_loader()), 6)
        loader = _token_loader()
        feed = BatchFeed(loader)
        got = _take(feed, 3)
        feed.next()
        feed.close()
        assert not [t for t in threading.enumerate() if t.name.startswith(THREAD_NAME)]
        assert loader.state_dict() == {"microbatch": 3}
        got += _take(feed, 3)
        feed.close()
        assert got == expected

    def test_after_closing_a_foreign_loader_continues_without_losing_batches(self):
        feed = BatchFeed([1, 2, 3, 4])
        got = _take(feed, 2)
        feed.next()
        feed.close()
        assert got + _take(feed, 4) == [1, 2, 3, 4, 1, 2]

    def test_a_generator_goes_on_after_closing(self):
        feed = BatchFeed(number for number in range(5))
        got = _take(feed, 2)
        feed.next()
        feed.close()
        assert got + _take(feed, 3) == [0, 1, 2, 3, 4]

    def test_a_loader_with_workers_gives_them_back_and_goes_on(self):
        seed_everything(5)
        straight = BatchFeed(_shuffled_loader(12, 2))
        expected = _take(straight, 9)
        seed_everything(5)
        lines = []
        feed = BatchFeed(_shuffled_loader(12, 2, num_workers=1), log=lines.append)
        got = _take(feed, 4)
        feed.next()
        feed.close()
        got += _take(feed, 5)
        feed.close()
        gc.collect()
        assert got == expected
        assert lines == [
            "replaying the data loader: drawing and dropping 5 batches of epoch 0 to return to the "
            "saved position"
        ]

    def test_the_feed_survives_a_stop_requested_while_waiting(self):
        release = threading.Event()

        class Slow(EndlessLoader):
            def open_groups(self, start):
                def produce():
                    release.wait(10)
                    return [start]

                return Prefetcher(produce, depth=1)

        stop = StopFlag()
        stop.request("received SIGTERM")
        feed = BatchFeed(Slow(), stop=stop)
        timer = threading.Timer(0.3, release.set)
        timer.start()
        with pytest.raises(StopRequestedError, match="received SIGTERM"):
            feed.next()
        timer.join()
        stop.reason = None
        assert feed.next() == 0
        feed.close()


class TestResume:
    @pytest.mark.parametrize("used", [0, 1, 7, 8, 9, 20])
    def test_our_loader_returns_to_its_position(self, used):
        expected = _take(BatchFeed(_token_loader()), used + 4)
        feed = BatchFeed(_token_loader())
        _take(feed, used)
        feed.next()
        state = json.loads(json.dumps(feed.state_dict()))
        feed.close()
        resumed = BatchFeed(_token_loader())
        resumed.load_state_dict(state)
        assert _take(resumed, 4) == expected[used:]
        resumed.close()

    @pytest.mark.parametrize("used", [0, 1, 3, 4, 5, 8, 10])
    @pytest.mark.parametrize("generator_seed", [None, 11])
    def test_a_shuffling_foreign_loader_resumes_to_the_same_batches(self, used, generator_seed):
        def make():
            if generator_seed is None:
                return _shuffled_loader()
            return _shuffled_loader(generator=torch.Generator().manual_seed(generator_seed))

        seed_everything(7)
        straight = BatchFeed(make())
        expected = []
        for _ in range(14):
            expected += _take(straight, 1)
            torch.rand(3)  # The model draws too.

        seed_everything(7)
        first = BatchFeed(make())
        for _ in range(used):
            _take(first, 1)
            torch.rand(3)
        state, rng = first.state_dict(), rng_state()

        seed_everything(99)  # Another process.
        lines = []
        resumed = BatchFeed(make(), log=lines.append)
        resumed.load_state_dict(state)
        set_rng_state(rng)
        got = []
        for _ in range(14 - used):
            got += _take(resumed, 1)
            torch.rand(3)
        assert got == expected[used:]
        in_epoch = used - (max(0, used - 1) // 4) * 4
        assert lines == (
            [
                f"replaying the data loader: drawing and dropping {in_epoch} batches of epoch "
                f"{max(0, used - 1) // 4} to return to the saved position"
            ]
            if used
            else []
        )

    def test_three_resumes_in_a_row_give_the_batches_of_a_straight_run(self):
        seed_everything(7)
        expected = _take(BatchFeed(_shuffled_loader()), 10)
        seed_everything(7)
        feed = BatchFeed(_shuffled_loader(), log=_silent)
        got = _take(feed, 2)
        for count in (3, 1, 4):
            state, rng = feed.state_dict(), rng_state()
            seed_everything(99)
            feed = BatchFeed(_shuffled_loader(), log=_silent)
            feed.load_state_dict(state)
            set_rng_state(rng)
            got += _take(feed, count)
        assert got == expected

    def test_replaying_leaves_the_training_rng_alone(self):
        seed_everything(7)
        feed = BatchFeed(_shuffled_loader())
        _take(feed, 2)
        state = feed.state_dict()
        resumed = BatchFeed(_shuffled_loader(), log=_silent)
        resumed.load_state_dict(state)
        seed_everything(8)
        _take(resumed, 1)
        got = (random.random(), float(np.random.rand()), float(torch.rand(())))  # noqa: NPY002 - the global state is what is tested
        seed_everything(8)
        assert got == (random.random(), float(np.random.rand()), float(torch.rand(())))  # noqa: NPY002 - the global state is what is tested

    def test_a_data_set_that_draws_from_the_global_rng_resumes_exactly(self):
        class Noisy(Dataset):
            def __len__(self):
                return 6

            def __getitem__(self, index):
                return torch.tensor([index, random.randrange(10**6)])

        def make():
            return DataLoader(Noisy(), batch_size=2, shuffle=True)

        def take(feed, count):
            return [feed.next().tolist() for _ in range(count) if feed.commit() is None]

        seed_everything(7)
        expected = take(BatchFeed(make()), 8)
        seed_everything(7)
        first = BatchFeed(make())
        got = take(first, 4)
        first.commit()
        state, rng = first.state_dict(), rng_state()
        seed_everything(99)
        resumed = BatchFeed(make(), log=_silent)
        resumed.load_state_dict(state)
        set_rng_state(rng)
        assert got + take(resumed, 4) == expected

    def test_a_sampler_with_a_generator_of_its_own_resumes_exactly(self):
        def make():
            dataset = TensorDataset(torch.arange(10))
            sampler = RandomSampler(dataset, generator=torch.Generator().manual_seed(4))
            return DataLoader(dataset, batch_size=4, sampler=sampler)

        expected = _take(BatchFeed(make()), 8)
        first = BatchFeed(make())
        got = _take(first, 5)
        resumed = BatchFeed(make(), log=_silent)
        resumed.load_state_dict(first.state_dict())
        assert got + _take(resumed, 3) == expected

    def test_an_iterable_data_set_is_replayed(self):
        class Numbers(IterableDataset):
            def __iter__(self):
                return iter(range(7))

        def make():
            return DataLoader(Numbers(), batch_size=2)

        def take(feed, count):
            return [feed.next().tolist() for _ in range(count) if feed.commit() is None]

        first = BatchFeed(make())
        take(first, 3)
        first.commit()
        resumed = BatchFeed(make(), log=_silent)
        resumed.load_state_dict(first.state_dict())
        assert take(resumed, 3) == [[6], [0, 1], [2, 3]]

    def test_a_list_needs_no_random_state(self):
        feed = BatchFeed([1, 2, 3])
        _take(feed, 4)
        assert feed.state_dict() == {
            "kind": "replayed",
            "consumed": 1,
            "epoch": 1,
            "rng": None,
            "generators": [],
        }

    def test_a_stateful_loader_saved_exactly_at_the_end_of_a_pass_drops_none(self):
        first = BatchFeed(_StatefulList([1, 2, 3]))
        _take(first, 3)
        resumed = BatchFeed(_StatefulList([1, 2, 3]))
        resumed.load_state_dict(first.state_dict())
        assert _take(resumed, 4) == [1, 2, 3, 1]

    def test_a_generator_cannot_be_resumed(self):
        feed = BatchFeed(number for number in range(5))
        _take(feed, 2)
        with pytest.raises(CheckpointError, match=r"is a generator, of which the 2 batches used"):
            BatchFeed(number for number in range(5)).load_state_dict(feed.state_dict())

    def test_a_generator_that_gave_nothing_yet_can_be_resumed(self):
        state = BatchFeed(number for number in range(5)).state_dict()
        feed = BatchFeed(number for number in range(5))
        feed.load_state_dict(state)
        assert _take(feed, 2) == [0, 1]

    def test_data_that_became_shorter_is_named_on_replay(self):
        feed = BatchFeed([1, 2, 3, 4])
        _take(feed, 4)
        resumed = BatchFeed([1, 2], log=_silent)
        resumed.load_state_dict(feed.state_dict())
        with pytest.raises(DataError, match=r"ends after 2 batches, but .* saved after 4"):
            resumed.next()

    def test_a_position_of_another_kind_of_loader_is_refused(self):
        state = BatchFeed([1, 2]).state_dict()
        with pytest.raises(
            CheckpointError, match="of a replayed loader, but this run has a stateful"
        ):
            BatchFeed(_token_loader()).load_state_dict(state)

    def test_the_line_goes_to_pythons_logging_without_a_receiver(self, caplog):
        feed = BatchFeed([1, 2, 3])
        _take(feed, 2)
        resumed = BatchFeed([1, 2, 3])
        resumed.load_state_dict(feed.state_dict())
        resumed.next()
        assert "drawing and dropping 2 batches" in caplog.text

    def test_foreign_loaders_are_iterated_on_the_calling_thread(self):
        class Threads:
            def __iter__(self):
                yield threading.get_ident()

        assert _take(BatchFeed(Threads()), 3) == [threading.get_ident()] * 3
