"""Loaders for the user's own data: map-style data sets get our order, the rest stays as it is."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, Unpack, cast

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, default_collate

from speedtronic.core.errors import DataError
from speedtronic.core.stopping import StopFlag
from speedtronic.core.types import StatefulLoader
from speedtronic.data.assemble import Loading, LoadingOptions
from speedtronic.data.endless import EndlessLoader, GroupSource
from speedtronic.data.evaluation import EvenChoice
from speedtronic.data.loaded import LoadedData
from speedtronic.data.order import BatchOrder
from speedtronic.data.permutation import mix_key
from speedtronic.data.pinning import resolve_pin_memory
from speedtronic.data.prefetch import Prefetcher
from speedtronic.data.splitting import tail_start
from speedtronic.data.workers import end_workers, ignore_stop_signals, start_iterator

_NUMPY_SEEDS = 2**32
_TRAINING_DRAWS, _EVALUATION_DRAWS = 1, 2  # Keep the draws of samples in the two splits apart.


class MapDataset(Protocol):
    """What a data set needs: a length and an item for each index."""

    def __len__(self) -> int:
        """Return the number of samples."""

    def __getitem__(self, index: int, /) -> Any:
        """Return a sample."""


def build_dataset_data(made: Any, **loading: Unpack[LoadingOptions]) -> LoadedData:
    """Build data around what the user's code made.

    A data set (``__len__`` and ``__getitem__``) gets our order and batches, and its tail is held
    out where that is at least one sample. An ``IterableDataset`` is batched by torch's
    ``DataLoader``. A ``DataLoader``, a list of batches or any other iterable is used as it is, with
    nothing held out.

    Args:
        made: The user's object.
        **loading: How samples become batches, see ``Loading``; ``block_size`` is not used.

    Raises:
        DataError: it is no data, is empty, or is smaller than a batch.
    """
    options = Loading(**loading)
    if isinstance(made, LoadedData):
        return made
    if isinstance(made, IterableDataset):
        made = _batch_iterable(made, options)
    if isinstance(made, StatefulLoader | DataLoader | list | tuple):
        _check_not_empty(made)
        return LoadedData(train=made, evaluation=None, tokenizer=None, vocab_size=None)
    if hasattr(made, "__len__") and hasattr(made, "__getitem__"):
        return _split_dataset(made, options)
    if isinstance(made, Iterable):
        return LoadedData(train=made, evaluation=None, tokenizer=None, vocab_size=None)
    raise DataError(
        f"data._target_ must give a Dataset, a loader or LoadedData, got {type(made).__name__}"
    )


class DatasetLoader(EndlessLoader):
    """Hands out microbatches of a map-style data set in our order.

    Microbatch ``m`` is a pure function of the seed and ``m``, random transforms included: while its
    samples are made, Python's, NumPy's and torch's CPU generators are seeded from both, and put
    back afterwards. So neither workers nor a resume change it.

    Args:
        dataset: The data set.
        micro_batch_size: Samples in a microbatch.
        seed: Seed of order and draws.
        shuffle: Whether each epoch has an order of its own.
        drop_last: Whether samples that fill no whole microbatch are left out of an epoch.
        num_workers: Processes that make samples; 0 makes them on the calling thread.
        prefetch_factor: Microbatches each process keeps ready.
        pin_memory: Whether batches of worker processes lie in page-locked memory.
        collate_fn: Turns a list of samples into a batch; torch's default when None.

    Raises:
        DataError: the data set is empty or smaller than a microbatch.
    """

    def __init__(  # noqa: PLR0913 - a loader has this many independent settings
        self,
        dataset: MapDataset,
        *,
        micro_batch_size: int,
        seed: int,
        shuffle: bool = True,
        drop_last: bool = True,
        num_workers: int = 0,
        prefetch_factor: int = 2,
        pin_memory: bool = False,
        collate_fn: Callable[[list[Any]], Any] | None = None,
    ) -> None:
        super().__init__()
        self._order = BatchOrder(
            num_samples=len(dataset),
            micro_batch_size=micro_batch_size,
            seed=seed,
            shuffle=shuffle,
            drop_last=drop_last,
            unit="samples",
        )
        self._microbatches = _Microbatches(
            dataset, order=self._order, collate=collate_fn or default_collate
        )
        self._num_workers = num_workers
        self._prefetch_factor = prefetch_factor
        self._pin_memory = pin_memory

    @property
    def batches_per_epoch(self) -> int:
        """Microbatches in one pass over the data."""
        return self._order.batches_per_epoch

    def open_groups(self, start: int) -> GroupSource:
        """Start making microbatches at ``start``."""
        if self._num_workers == 0:
            return _OnThisThread(self._microbatches, start=start)
        loader = DataLoader(
            cast("Any", self._microbatches),
            batch_size=None,
            sampler=_CountFrom(start),
            num_workers=self._num_workers,
            prefetch_factor=max(1, self._prefetch_factor),
            pin_memory=self._pin_memory,
            collate_fn=_unchanged,
            worker_init_fn=ignore_stop_signals,
            # Its own generator: starting workers must not draw from the training RNG.
            generator=torch.Generator().manual_seed(0),
        )
        return _InWorkers(loader)


class DatasetBatches:
    """Iterates over the held-out samples of a data set, the same batches each pass.

    Args:
        dataset: The data set.
        micro_batch_size: Samples in a batch; the last one may have fewer.
        max_batches: At most so many batches, evenly spread; None for all.
        seed: Seed of random transforms; the training RNG is left alone.
        collate_fn: Turns a list of samples into a batch; torch's default when None.
    """

    def __init__(
        self,
        dataset: MapDataset,
        *,
        micro_batch_size: int,
        max_batches: int | None = None,
        seed: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
    ) -> None:
        self._dataset = dataset
        self._seed = seed
        self._collate = collate_fn or default_collate
        self._choice = EvenChoice(
            num_samples=len(dataset), batch_size=micro_batch_size, max_batches=max_batches
        )

    def __len__(self) -> int:
        """Return the number of batches in a pass."""
        return len(self._choice)

    def __iter__(self) -> Iterator[Any]:
        """Yield the batches of one pass."""
        for number in range(len(self._choice)):
            samples = self._choice.samples_of(number).tolist()
            with _seeded(mix_key(self._seed, _EVALUATION_DRAWS, number)):
                batch = self._collate([self._dataset[index] for index in samples])
            yield batch


@dataclass(frozen=True)
class DatasetPart:
    """Neighbouring samples of a data set as a data set."""

    dataset: MapDataset
    """The whole."""
    start: int
    """First sample."""
    stop: int
    """One past the last sample."""

    def __len__(self) -> int:
        """Return the number of samples."""
        return self.stop - self.start

    def __getitem__(self, index: int) -> Any:
        """Return a sample."""
        return self.dataset[self.start + index]


class _Microbatches:
    """The microbatches of a data set by number; a worker process gets a copy of it."""

    def __init__(
        self, dataset: MapDataset, *, order: BatchOrder, collate: Callable[[list[Any]], Any]
    ) -> None:
        self._dataset = dataset
        self._order = order
        self._collate = collate

    def __getitem__(self, microbatch: int) -> Any:
        samples = self._order.samples_of(microbatch).tolist()
        with _seeded(mix_key(self._order.seed, _TRAINING_DRAWS, microbatch)):
            return self._collate([self._dataset[index] for index in samples])


class _OnThisThread:
    """Makes each microbatch when it is asked for, so user code runs on the calling thread."""

    def __init__(self, microbatches: _Microbatches, *, start: int) -> None:
        self._microbatches = microbatches
        self._numbers = itertools.count(start)

    def get(self, stop: StopFlag | None = None) -> Sequence[Any]:
        """Return the next microbatch."""
        del stop
        return [self._microbatches[next(self._numbers)]]

    def close(self) -> None:
        """Do nothing."""


class _InWorkers:
    """Receives microbatches from worker processes in a thread, so that waiting can be given up."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        started = start_iterator(loader)
        self._receiver = _Receiver(started.iterator)
        self._workers = started.workers
        self._prefetcher = Prefetcher(self._receiver.receive, depth=1)

    def get(self, stop: StopFlag | None = None) -> Sequence[Any]:
        """Return the next microbatch."""
        return self._prefetcher.get(stop)

    def close(self) -> None:
        """End the thread and the workers, by force when one is stuck."""
        self._prefetcher.close()
        self._receiver.let_go()
        end_workers(self._workers)


class _Receiver:
    """Holds torch's iterator, whose workers end when the last reference to it goes."""

    def __init__(self, iterator: Iterator[Any]) -> None:
        self._iterator: Iterator[Any] | None = iterator

    def receive(self) -> list[Any]:
        """Return the next microbatch."""
        try:
            return [next(cast("Iterator[Any]", self._iterator))]
        except Exception as error:  # noqa: BLE001 - raised again, without torch's frames
            # They would keep the iterator alive; the error's text has the trace of the worker.
            raise error.with_traceback(None)  # noqa: B904 - it is the same error

    def let_go(self) -> None:
        """Drop the iterator."""
        self._iterator = None


@dataclass(frozen=True)
class _CountFrom:
    """Counts without end, from the same start each time."""

    start: int

    def __iter__(self) -> Iterator[int]:
        return itertools.count(self.start)


def _unchanged(batch: Any) -> Any:
    return batch


@contextmanager
def _seeded(key: int) -> Iterator[None]:
    """Seed the CPU generators that transforms draw from, and put them back afterwards."""
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002 - what user code draws from
    generator = torch.default_generator
    torch_state = generator.get_state()
    random.seed(key)
    np.random.seed(key % _NUMPY_SEEDS)  # noqa: NPY002 - what user code draws from
    generator.manual_seed(key)
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002 - what user code draws from
        generator.set_state(torch_state)


def _split_dataset(dataset: MapDataset, options: Loading) -> LoadedData:
    cut = tail_start(len(dataset), fraction=options.validation_fraction)
    evaluation = None
    if cut < len(dataset):
        evaluation = DatasetBatches(
            DatasetPart(dataset, cut, len(dataset)),
            micro_batch_size=options.micro_batch_size,
            max_batches=options.max_eval_batches,
            seed=options.seed,
        )
    train = DatasetLoader(
        DatasetPart(dataset, 0, cut),
        micro_batch_size=options.micro_batch_size,
        seed=options.seed,
        shuffle=options.shuffle,
        drop_last=options.drop_last,
        num_workers=options.num_workers,
        prefetch_factor=options.prefetch_factor,
        pin_memory=resolve_pin_memory(wanted=options.pin_memory),
    )
    return LoadedData(
        train=train,
        evaluation=evaluation,
        tokenizer=None,
        vocab_size=None,
        facts={
            "source": type(dataset).__qualname__,
            "train_samples": cut,
            "held_out_samples": len(dataset) - cut,
        },
    )


def _batch_iterable(dataset: IterableDataset[Any], options: Loading) -> DataLoader[Any]:
    return DataLoader(
        dataset,
        batch_size=options.micro_batch_size,
        num_workers=options.num_workers,
        prefetch_factor=options.prefetch_factor if options.num_workers else None,
        pin_memory=resolve_pin_memory(wanted=options.pin_memory),
        drop_last=options.drop_last,
        worker_init_fn=ignore_stop_signals,
    )


def _check_not_empty(loader: Any) -> None:
    if isinstance(loader, DataLoader) and isinstance(loader.dataset, IterableDataset):
        return
    try:
        num_batches = len(loader)
    except TypeError:
        return
    if num_batches:
        return
    if isinstance(loader, DataLoader) and loader.batch_size and len(cast("Any", loader.dataset)):
        raise DataError(
            f"data: the loader's batch size ({loader.batch_size}) is larger than its data set "
            f"({len(cast('Any', loader.dataset))} samples); use a smaller batch or drop_last=False"
        )
    raise DataError(f"data: the {type(loader).__name__} is empty; give at least one batch")
