"""The training loader over token ids: shuffled blocks, read ahead in one background thread."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np
import torch

from speedtronic.core.stopping import StopFlag
from speedtronic.data.blocks import Blocks
from speedtronic.data.endless import EndlessLoader, GroupSource
from speedtronic.data.order import BatchOrder
from speedtronic.data.prefetch import Prefetcher
from speedtronic.data.stream import TokenStream, as_stream

Batch = dict[str, torch.Tensor]

# One wake-up of the thread makes this many tokens, one call of the permutation this many numbers:
# with one microbatch of 2,048 tokens a wake-up, handing over costs more than reading.
GROUP_TOKENS = 65_536
GROUP_BATCHES = 64
ORDER_AHEAD = 4_096


class TokenLoader(EndlessLoader):
    """Hands out microbatches ``{"input_ids", "labels"}`` of token blocks, each (B, T) int64.

    Labels are the next token of each position, -100 where an epoch has predicted it already. When
    no microbatch is dropped, an epoch predicts every position but the first once.

    Args:
        tokens: Token ids, (N,), or a stream of shards.
        block_size: Positions in a row (T).
        micro_batch_size: Rows in a microbatch (B).
        seed: Seed of the order.
        shuffle: Whether each epoch has an order of its own.
        drop_last: Whether the rows that fill no whole microbatch are left out of an epoch.
        prefetch_factor: Microbatches kept ready, at least; they are made in groups of about 65,536
            tokens. 0 reads in the calling thread.
        pin_memory: Whether batches lie in page-locked memory.

    Raises:
        DataError: fewer tokens than a block, or fewer blocks than a microbatch.
    """

    def __init__(  # noqa: PLR0913 - a loader has this many independent settings
        self,
        tokens: TokenStream | np.ndarray,
        *,
        block_size: int,
        micro_batch_size: int,
        seed: int,
        shuffle: bool = True,
        drop_last: bool = True,
        prefetch_factor: int = 2,
        pin_memory: bool = False,
    ) -> None:
        super().__init__()
        self._blocks = Blocks(as_stream(tokens), block_size)
        self._order = BatchOrder(
            num_samples=len(self._blocks),
            micro_batch_size=micro_batch_size,
            seed=seed,
            shuffle=shuffle,
            drop_last=drop_last,
            unit=f"blocks of {block_size} tokens",
        )
        self._prefetch_factor = prefetch_factor
        self._pin_memory = pin_memory

    @property
    def batches_per_epoch(self) -> int:
        """Microbatches in one pass over the data."""
        return self._order.batches_per_epoch

    def open_groups(self, start: int) -> GroupSource:
        """Start reading at microbatch ``start``."""
        reader = _GroupReader(
            self._blocks, order=self._order, start=start, pin_memory=self._pin_memory
        )
        if self._prefetch_factor < 1:
            return _InThisThread(reader)
        return Prefetcher(reader.read, depth=-(-self._prefetch_factor // reader.group_size))


class _GroupReader:
    """Reads one group of microbatches after another."""

    def __init__(self, blocks: Blocks, *, order: BatchOrder, start: int, pin_memory: bool) -> None:
        self._blocks = blocks
        self._order = order
        self._pin_memory = pin_memory
        self._next = start
        self._numbers: deque[np.ndarray] = deque()
        tokens_per_batch = blocks.block_size * order.micro_batch_size
        self.group_size = min(GROUP_BATCHES, max(1, GROUP_TOKENS // tokens_per_batch))
        self._ahead = max(self.group_size, ORDER_AHEAD // order.micro_batch_size)

    def read(self) -> list[Batch]:
        """Return the next group."""
        if len(self._numbers) < self.group_size:
            self._numbers += self._order.samples_from(self._next, count=self._ahead)
            self._next += self._ahead
        numbers = [self._numbers.popleft() for _ in range(self.group_size)]
        rows = self._blocks.read(np.concatenate(numbers), pin_memory=self._pin_memory)
        return rows.split([len(batch) for batch in numbers])


class _InThisThread:
    """Reads groups when asked, without a thread."""

    def __init__(self, reader: _GroupReader) -> None:
        self._reader = reader

    def get(self, stop: StopFlag | None = None) -> Sequence[Batch]:
        """Return the next group; there is nothing to wait for."""
        del stop
        return self._reader.read()

    def close(self) -> None:
        """Do nothing."""
