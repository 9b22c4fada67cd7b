"""Held-out batches: the same ones each pass, each held-out position once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from speedtronic.core.errors import DataError
from speedtronic.data.blocks import Blocks
from speedtronic.data.stream import TokenStream, as_stream


class EvaluationBatches:
    """Iterates over a held-out split in order, as often as wanted; draws no random number.

    A pass over all batches predicts every position but the first once: where the last block
    overlaps the one before it, its labels are -100.

    Args:
        tokens: Held-out token ids, (N,), or a stream of shards.
        block_size: Positions in a row (T).
        micro_batch_size: Rows in a batch; the last batch may have fewer.
        max_batches: At most so many batches, evenly spread over the split; None for all.
        pin_memory: Whether batches lie in page-locked memory.

    Raises:
        DataError: fewer tokens than a block.
    """

    def __init__(
        self,
        tokens: TokenStream | np.ndarray,
        *,
        block_size: int,
        micro_batch_size: int,
        max_batches: int | None = None,
        pin_memory: bool = False,
    ) -> None:
        stream = as_stream(tokens)
        if len(stream) < block_size + 1:
            raise DataError(
                f"data.validation_fraction: the held-out part has {len(stream)} tokens, fewer than "
                f"data.block_size + 1 = {block_size + 1}; use a larger fraction, 0, or more data"
            )
        self._blocks = Blocks(stream, block_size)
        self._pin_memory = pin_memory
        self._choice = EvenChoice(
            num_samples=len(self._blocks), batch_size=micro_batch_size, max_batches=max_batches
        )

    def __len__(self) -> int:
        """Return the number of batches in a pass."""
        return len(self._choice)

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        """Yield the batches of one pass."""
        for batch in range(len(self._choice)):
            numbers = self._choice.samples_of(batch)
            yield self._blocks.read(numbers, pin_memory=self._pin_memory).split([len(numbers)])[0]


@dataclass(frozen=True)
class EvenChoice:
    """Which samples are evaluated: all in order, or whole batches evenly spread over them.

    Nothing is listed, so memory does not grow with the split.
    """

    num_samples: int
    """Samples held out."""
    batch_size: int
    """Samples in a batch; the last batch may have fewer."""
    max_batches: int | None
    """At most so many batches; None for all."""

    @property
    def num_chosen(self) -> int:
        """Samples in a pass."""
        if self.max_batches is None:
            return self.num_samples
        return min(self.num_samples, self.max_batches * self.batch_size)

    def __len__(self) -> int:
        """Return the number of batches in a pass."""
        return (self.num_chosen - 1) // self.batch_size + 1

    def samples_of(self, batch: int) -> np.ndarray:
        """Return the sample numbers of one batch, (B,) int64."""
        start = batch * self.batch_size
        chosen = np.arange(start, min(start + self.batch_size, self.num_chosen))
        return chosen * self.num_samples // self.num_chosen
