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
        found: list[np.ndarray] = []
        while len(found) < count:
            epoch, first = divmod(microbatch + len(found), self.batches_per_epoch)
            batches = min(count - len(found), self.batches_per_epoch - first)
            found += self._within_epoch(epoch, first=first, batches=batches)
        return found

    def _within_epoch(self, epoch: int, *, first: int, batches: int) -> list[np.ndarray]:
        size = self.micro_batch_size
        positions = np.arange(first * size, min((first + batches) * size, self.num_samples))
        numbers = (
            permuted_indices(positions, size=self.num_samples, seed=self.seed, epoch=epoch)
            if self.shuffle
            else positions
        )
        return [numbers[start : start + size] for start in range(0, len(numbers), size)]
