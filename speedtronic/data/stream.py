"""Many arrays of token ids seen as one long sequence, read through views without being joined."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from speedtronic.core.errors import DataError


class TokenStream:
    """One sequence of token ids over several one-dimensional arrays.

    Arrays that are memory maps stay on disk: reading touches the pages it needs.

    Args:
        shards: uint16 or uint32 arrays, (N_i,), all of one type; empty ones are left out.
        names: What error messages call each shard.
        id_limit: Reading an id at or above it is an error; None trusts the ids.
    """

    def __init__(
        self,
        shards: Sequence[np.ndarray],
        *,
        names: Sequence[str] | None = None,
        id_limit: int | None = None,
    ) -> None:
        labels = [f"shard {number}" for number in range(len(shards))] if names is None else names
        kept = [
            (np.asarray(shard), label)
            for shard, label in zip(shards, labels, strict=True)
            if len(shard)
        ]
        self._shards = [shard for shard, _ in kept]
        self._names = [label for _, label in kept]
        self._id_limit = id_limit
        self._ends = np.cumsum([len(shard) for shard in self._shards], dtype=np.int64)
        self._starts = self._ends - np.array([len(shard) for shard in self._shards], dtype=np.int64)
        self._windows: dict[int, list[np.ndarray]] = {}

    def __len__(self) -> int:
        """Return the number of tokens."""
        return int(self._ends[-1]) if self._shards else 0

    @property
    def dtype(self) -> np.dtype[np.uint16] | np.dtype[np.uint32]:
        """The type of the ids."""
        return self._shards[0].dtype if self._shards else np.dtype(np.uint16)

    def part(self, start: int, stop: int) -> TokenStream:
        """Return tokens ``start`` to ``stop`` as a stream of views."""
        shards = []
        for shard, first in zip(self._shards, self._starts.tolist(), strict=True):
            low, high = max(0, start - first), max(0, min(len(shard), stop - first))
            shards.append(shard[low:high] if low < high else shard[:0])
        return TokenStream(shards, names=self._names, id_limit=self._id_limit)

    def pieces(self, size: int) -> Iterator[np.ndarray]:
        """Yield the whole stream in order as views of at most ``size`` tokens."""
        for shard in self._shards:
            for start in range(0, len(shard), size):
                yield shard[start : start + size]

    def gather(self, starts: np.ndarray, *, width: int) -> np.ndarray:
        """Read many runs of neighbouring tokens.

        Args:
            starts: First position of each run, (R,) int64, at most ``len(self) - width``.
            width: Tokens in a run.

        Returns:
            New array, (R, width), of the stream's type.

        Raises:
            DataError: an id is at or above the limit.
        """
        if len(self._shards) == 1:
            rows: np.ndarray = self._windows_of(width)[0][starts]
        else:
            rows = self._gather_over_shards(starts, width=width)
        if self._id_limit is not None and rows.size and int(rows.max()) >= self._id_limit:
            self._raise_bad_id(starts, rows)
        return rows

    def _gather_over_shards(self, starts: np.ndarray, *, width: int) -> np.ndarray:
        rows = np.empty((len(starts), width), dtype=self.dtype)
        owners = np.searchsorted(self._ends, starts, side="right")
        crosses = starts + width > self._ends[owners]
        for number in np.unique(owners[~crosses]).tolist():
            inside = np.flatnonzero((owners == number) & ~crosses)
            local_starts = starts[inside] - self._starts[number]
            rows[inside] = self._windows_of(width)[number][local_starts]
        for row in np.flatnonzero(crosses).tolist():
            self._read_across(int(starts[row]), out=rows[row])
        return rows

    def _read_across(self, start: int, *, out: np.ndarray) -> None:
        number = int(np.searchsorted(self._ends, start, side="right"))
        filled = 0
        while filled < len(out):
            offset = start + filled - int(self._starts[number])
            piece = self._shards[number][offset : offset + len(out) - filled]
            out[filled : filled + len(piece)] = piece
            filled += len(piece)
            number += 1

    def _windows_of(self, width: int) -> list[np.ndarray]:
        if width not in self._windows:
            self._windows[width] = [
                sliding_window_view(shard, width) if len(shard) >= width else shard[:0]
                for shard in self._shards
            ]
        return self._windows[width]

    def _raise_bad_id(self, starts: np.ndarray, rows: np.ndarray) -> None:
        assert self._id_limit is not None
        row, column = np.argwhere(rows >= self._id_limit)[0].tolist()
        position = int(starts[row]) + column
        number = int(np.searchsorted(self._ends, position, side="right"))
        raise DataError(
            f"data.path: {self._names[number]} holds id {int(rows[row, column])} at token "
            f"{position - int(self._starts[number])}, but the vocabulary has {self._id_limit} ids; "
            "give the vocabulary the file was written with"
        )


def as_stream(tokens: TokenStream | np.ndarray) -> TokenStream:
    """Return a stream over one array, or the stream itself."""
    return tokens if isinstance(tokens, TokenStream) else TokenStream([tokens])
