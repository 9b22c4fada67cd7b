"""Made-up tokens with something to learn, for tests, sweeps and speed measurements.

The next token is the current one plus a step, modulo the vocabulary; steps have fixed, unequal
chances. The rule is the same for every seed, only the draws differ, so losses can be compared
between seeds and a model of token pairs can reach the entropy of the steps.
"""

from __future__ import annotations

import math
from typing import Unpack

import numpy as np

from speedtronic.core.errors import DataError
from speedtronic.data.assemble import Loading, LoadingOptions, assemble
from speedtronic.data.loaded import LoadedData
from speedtronic.data.permutation import hash_counters, mix_key
from speedtronic.data.splitting import tail_start
from speedtronic.data.stream import TokenStream
from speedtronic.data.tokenizers import smallest_id_type

# Chances in 1/16; steps are scattered so that neighbours in the vocabulary mean nothing.
_CHANCES = (4, 3, 3, 2, 1, 1, 1, 1)
_STEPS = (1, 29, 53, 97, 131, 173, 211, 241)
_STREAM_KEY = 0x73796E7468  # Keeps these draws apart from those of the order.
_CHUNK_TOKENS = 1 << 20


def build_synthetic_data(
    *, num_tokens: int = 1_000_000, vocab_size: int = 256, **loading: Unpack[LoadingOptions]
) -> LoadedData:
    """Build data from a made-up stream; its tail is held out.

    Args:
        num_tokens: Length of the stream.
        vocab_size: Number of ids, at least 2.
        **loading: How samples become batches, see ``Loading``; ``seed`` picks the stream as well.

    Raises:
        DataError: the stream is shorter than a block, or the vocabulary too small.
    """
    options = Loading(**loading)
    tokens = synthetic_tokens(num_tokens, vocab_size=vocab_size, seed=options.seed)
    cut = tail_start(num_tokens, fraction=options.validation_fraction)
    return assemble(
        TokenStream([tokens[:cut]]),
        TokenStream([tokens[cut:]]),
        tokenizer=None,
        vocab_size=vocab_size,
        facts={
            "source": "synthetic",
            "num_tokens": num_tokens,
            "entropy_nats": entropy_nats(vocab_size),
        },
        loading=options,
    )


def synthetic_tokens(num_tokens: int, *, vocab_size: int, seed: int) -> np.ndarray:
    """Return a stream of ids, (N,); different seeds give independent streams.

    Raises:
        DataError: fewer than two ids.
    """
    if vocab_size < 2:  # noqa: PLR2004 - one id leaves nothing to learn
        raise DataError(f"data.vocab_size must be at least 2, got {vocab_size}")
    steps, chances = _distinct_steps(vocab_size)
    choices = np.repeat(np.array(steps, dtype=np.uint64), chances)
    key = mix_key(_STREAM_KEY, seed)
    tokens = np.empty(num_tokens, dtype=smallest_id_type(vocab_size))
    last = int(hash_counters(np.zeros(1, np.uint64), key=mix_key(key))[0]) % vocab_size
    for start in range(0, num_tokens, _CHUNK_TOKENS):
        stop = min(start + _CHUNK_TOKENS, num_tokens)
        draws = hash_counters(np.arange(start, stop), key=key) >> np.uint64(32)
        moves = choices[draws % np.uint64(len(choices))]
        tokens[start:stop] = (np.cumsum(moves) + np.uint64(last)) % np.uint64(vocab_size)
        last = int(tokens[stop - 1])
    return tokens


def entropy_nats(vocab_size: int) -> float:
    """Return the loss of a perfect model, in nats per token."""
    _, chances = _distinct_steps(vocab_size)
    total = sum(chances)
    return -sum(chance / total * math.log(chance / total) for chance in chances)


def _distinct_steps(vocab_size: int) -> tuple[list[int], list[int]]:
    """Return the steps modulo the vocabulary with their chances, equal steps joined."""
    joined: dict[int, int] = {}
    for step, chance in zip(_STEPS, _CHANCES, strict=True):
        joined[step % vocab_size] = joined.get(step % vocab_size, 0) + chance
    return list(joined), list(joined.values())
