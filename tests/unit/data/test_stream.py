"""Shards seen as one sequence."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from speedtronic.core.errors import DataError
from speedtronic.data.stream import TokenStream


def _stream(*lengths, id_limit=None):
    edges = np.cumsum([0, *lengths])
    shards = [np.arange(low, high, dtype=np.uint16) for low, high in itertools.pairwise(edges)]
    return TokenStream(shards, names=[f"s{i}.bin" for i in range(len(shards))], id_limit=id_limit)


@pytest.mark.parametrize("lengths", [(30,), (7, 3, 20), (1, 1, 1, 27), (15, 0, 15)])
@pytest.mark.parametrize("width", [1, 4, 9])
def test_runs_are_read_across_shard_borders(lengths, width):
    stream = _stream(*lengths)
    starts = np.array([0, 30 - width, 5, 6, 7, 13, 14, 0])
    expected = [list(range(start, start + width)) for start in starts]
    assert len(stream) == 30
    assert stream.gather(starts, width=width).tolist() == expected


def test_a_part_holds_the_tokens_between_its_ends():
    part = _stream(7, 3, 20).part(5, 12)
    assert len(part) == 7
    assert part.gather(np.array([0, 2]), width=5).tolist() == [[5, 6, 7, 8, 9], [7, 8, 9, 10, 11]]


def test_an_empty_part_has_no_tokens():
    assert len(_stream(7, 3).part(4, 4)) == 0
    assert len(TokenStream([])) == 0


def test_parts_are_views_of_the_shards():
    shard = np.arange(10, dtype=np.uint16)
    part = TokenStream([shard]).part(2, 8)
    shard[2] = 99
    assert part.gather(np.array([0]), width=1).tolist() == [[99]]


def test_an_id_outside_the_vocabulary_names_shard_token_and_both_numbers():
    stream = _stream(7, 3, 20, id_limit=12)
    assert stream.gather(np.array([8]), width=4).tolist() == [[8, 9, 10, 11]]
    message = r"data.path: s2.bin holds id 12 at token 2, but the vocabulary has 12 ids"
    with pytest.raises(DataError, match=message):
        stream.gather(np.array([0, 10]), width=4)
