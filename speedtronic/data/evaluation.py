"""Held-out batches: the same ones each pass, each held-out position once."""

from __future__ import annotations

from collections.abc import Iterator

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
        numbers = spread_over(
            len(self._blocks), batch_size=micro_batch_size, max_batches=max_batches
        )
        self._batches = [
            numbers[start : start + micro_batch_size]
            for start in range(0, len(numbers), micro_batch_size)
        ]

    def __len__(self) -> int:
        """Return the number of batches in a pass."""
        return len(self._batches)

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        """Yield the batches of one pass."""
        for numbers in self._batches:
            yield self._blocks.read(numbers, pin_memory=self._pin_memory).split([len(numbers)])[0]


def spread_over(num_samples: int, *, batch_size: int, max_batches: int | None) -> np.ndarray:
    """Return the samples to evaluate: all in order, or whole batches evenly spread over them."""
    if max_batches is None or max_batches * batch_size >= num_samples:
        return np.arange(num_samples)
    wanted = max_batches * batch_size
    return np.arange(wanted) * num_samples // wanted
