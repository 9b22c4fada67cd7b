"""Which samples make up which microbatch: a pure function of the seed and its number."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from speedtronic.core.errors import DataError
from speedtronic.data.permutation import permuted_indices


@dataclass(frozen=True)
class BatchOrder:
    """The order of samples over all epochs.

    Raises:
        DataError: the microbatch is larger than the data.
    """

    num_samples: int
    """Samples in one pass over the data."""
    micro_batch_size: int
    """Samples in a microbatch."""
    seed: int
    """Seed of the order."""
    shuffle: bool
    """Whether each epoch has an order of its own; otherwise samples come in their own order."""
    drop_last: bool
    """Whether the samples that fill no whole microbatch are left out of an epoch."""
    unit: str = "blocks"
    """What messages call the samples."""

    def __post_init__(self) -> None:
        if self.micro_batch_size < 1:
            raise DataError(
                f"data.micro_batch_size must be at least 1, got {self.micro_batch_size}"
            )
        if self.num_samples < 1:
            raise DataError("data: the data set is empty; give at least one sample")
        if self.drop_last and self.num_samples < self.micro_batch_size:
            raise DataError(
                f"data.micro_batch_size ({self.micro_batch_size}) is larger than the training data "
                f"({self.num_samples} {self.unit}); use at most {self.num_samples} or "
                "data.drop_last=false"
            )

    @property
    def batches_per_epoch(self) -> int:
        """Microbatches in one pass."""
        if self.drop_last:
            return self.num_samples // self.micro_batch_size
        return -(-self.num_samples // self.micro_batch_size)

    def samples_of(self, microbatch: int) -> np.ndarray:
        """Return the sample numbers of one microbatch, (B,) int64."""
        return self.samples_from(microbatch, count=1)[0]

    def samples_from(self, microbatch: int, *, count: int) -> list[np.ndarray]:
        """Return the sample numbers of ``count`` neighbouring microbatches.

        The permutation is computed for all of them at once, which is what makes it cheap.
        """
        size = self.micro_batch_size
        epochs, numbers = np.divmod(
            np.arange(microbatch, microbatch + count), self.batches_per_epoch
        )
        positions = numbers[:, None] * size + np.arange(size)
        inside = positions < self.num_samples
        samples = positions[inside]
        if self.shuffle:
            samples = permuted_indices(
                samples,
                size=self.num_samples,
                seed=self.seed,
                epoch=_one_or_each(epochs, inside),
            )
        return np.split(samples, np.cumsum(inside.sum(axis=1))[:-1])


def _one_or_each(epochs: np.ndarray, inside: np.ndarray) -> int | np.ndarray:
    """Return the one epoch of all samples, which is faster, or the epoch of each."""
    if epochs[0] == epochs[-1]:
        return int(epochs[0])
    of_each: np.ndarray = np.broadcast_to(epochs[:, None], inside.shape)[inside]
    return of_each
