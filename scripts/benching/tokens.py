"""How fast the loader of memory-mapped tokens is, and that it keeps no corpus in memory."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from benching.figures import (
    BYTES_PER_MB,
    ROUNDS,
    Figure,
    anonymous_bytes,
    median,
    seconds_of,
    show,
)


def bench_tokens() -> None:
    """Tokens a second from a memory-mapped shard, and memory for corpora of two sizes."""
    import numpy as np

    # What imports and the first batches cost once is not the corpus's.
    loader_rate(np.zeros(1_000_000, dtype=np.uint16), block_size=128, prefetch_factor=0)
    figures, growths_mb = [], []
    with tempfile.TemporaryDirectory() as folder:
        for size_mb in (64, 512):
            path = Path(folder) / f"{size_mb}.bin"
            write_tokens(path, num_tokens=size_mb * BYTES_PER_MB // 2)
            before_bytes = anonymous_bytes()
            tokens = np.memmap(path, dtype=np.uint16, mode="r")
            for block_size in (128, 1024):
                name = f"{size_mb} MB, 16 x {block_size}"
                rate = loader_rate(tokens, block_size=block_size, prefetch_factor=0)
                figures.append(Figure(f"{name}, one thread", rate, "M/s", target=40, at_most=False))
                rate = loader_rate(tokens, block_size=block_size, prefetch_factor=2)
                figures.append(Figure(f"{name}, read ahead in the background", rate, "M/s"))
            growths_mb.append((anonymous_bytes() - before_bytes) / BYTES_PER_MB)
            del tokens
            path.unlink()
    small_mb, large_mb = growths_mb
    show(
        *figures,
        Figure("RssAnon growth, corpus of 64 MB", small_mb, "MB"),
        Figure("RssAnon growth, corpus of 512 MB", large_mb, "MB", target=max(small_mb, 0) + 8),
    )


def write_tokens(path: Path, *, num_tokens: int) -> None:
    """Write a shard in pieces, so that writing leaves no memory behind."""
    import numpy as np

    rng = np.random.default_rng(0)
    with path.open("wb") as file:
        for _ in range(num_tokens // 1_000_000):
            file.write(rng.integers(0, 256, 1_000_000, dtype=np.uint16).tobytes())


def loader_rate(tokens: Any, *, block_size: int, prefetch_factor: int) -> float:
    """Return the median rate of rounds of 2 million tokens, in million tokens a second."""
    from speedtronic.data.loader import TokenLoader

    micro_batch_size = 16
    loader = TokenLoader(
        tokens,
        block_size=block_size,
        micro_batch_size=micro_batch_size,
        seed=1,
        prefetch_factor=prefetch_factor,
    )
    num_batches = 2_000_000 // (micro_batch_size * block_size)
    batches = iter(loader)

    def draw() -> None:
        for _ in range(num_batches):
            next(batches)

    draw()
    num_tokens = num_batches * micro_batch_size * block_size
    rates = [num_tokens / seconds_of(draw) / 1e6 for _ in range(ROUNDS)]
    batches.close()  # type: ignore[attr-defined] # a generator: ends its thread
    return median(rates)
