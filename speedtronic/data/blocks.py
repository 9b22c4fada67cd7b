"""Cutting a stream of N tokens into blocks of T that predict each position from 1 to N - 1 once.

R rows, T tokens in a block. Block ``i`` reads tokens ``iT`` to ``iT + T`` inclusive, so its last
label is the next block's first input. The last block starts early enough to be whole; what the
block before it has predicted already carries the label -100 there.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from speedtronic.core.errors import DataError
from speedtronic.core.loss import IGNORED_LABEL
from speedtronic.data.stream import TokenStream


@dataclass(frozen=True)
class Blocks:
    """The blocks of one stream."""

    stream: TokenStream
    """The tokens, at least ``block_size + 1`` of them."""
    block_size: int
    """Positions a block predicts (T)."""

    def __post_init__(self) -> None:
        if self.block_size < 1:
            raise DataError(f"data.block_size must be at least 1, got {self.block_size}")
        if len(self.stream) < self.block_size + 1:
            raise DataError(
                f"the data has {len(self.stream)} tokens, fewer than a block needs "
                f"(data.block_size + 1 = {self.block_size + 1}); give more data or a smaller block"
            )

    def __len__(self) -> int:
        """Return the number of blocks in one pass."""
        return (len(self.stream) - 2) // self.block_size + 1

    def read(self, numbers: np.ndarray, *, pin_memory: bool = False) -> BlockRows:
        """Read blocks by number.

        Args:
            numbers: Block numbers, (R,) int64.
            pin_memory: Whether the tensors lie in page-locked memory, for copies to a GPU.
        """
        width = self.block_size + 1
        last_start = len(self.stream) - width
        rows = self.stream.gather(np.minimum(numbers * self.block_size, last_start), width=width)
        # Two contiguous halves of one buffer. Views of one row of T + 1 would be copied again by
        # each embedding, loss and transfer to a GPU, and a model's `labels.view(-1)` would fail.
        both = torch.empty(
            (2, len(numbers), self.block_size), dtype=torch.int64, pin_memory=pin_memory
        )
        inputs, labels = both.numpy()
        inputs[:] = rows[:, :-1]
        labels[:] = rows[:, 1:]
        num_repeated = len(self) * self.block_size - (len(self.stream) - 1)
        if num_repeated:
            labels[numbers == len(self) - 1, :num_repeated] = IGNORED_LABEL
        return BlockRows(inputs=both[0], labels=both[1])


@dataclass(frozen=True)
class BlockRows:
    """Blocks that were read."""

    inputs: torch.Tensor
    """Token ids, (R, T) int64."""
    labels: torch.Tensor
    """The token that follows each input, (R, T) int64; -100 where it was predicted before."""

    def split(self, sizes: list[int]) -> list[dict[str, torch.Tensor]]:
        """Cut the rows into batches of the given numbers of rows, without copying."""
        return [
            {"input_ids": inputs, "labels": labels}
            for inputs, labels in zip(
                self.inputs.split_with_sizes(sizes),
                self.labels.split_with_sizes(sizes),
                strict=True,
            )
        ]
