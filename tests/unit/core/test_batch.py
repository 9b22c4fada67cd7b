"""Moving and counting batches of every kind."""

from __future__ import annotations

from collections import UserDict, namedtuple
from typing import Any, NamedTuple

import pytest
import torch
from torch.nn.utils.rnn import pack_sequence

from speedtronic.core.batch import BatchCount, count_batch, move_batch

META = torch.device("meta")  # a device every machine has, to see that tensors really move


class Pair(NamedTuple):
    inputs: torch.Tensor
    labels: torch.Tensor


Triple = namedtuple("Triple", ["a", "b", "c"])


def test_tensors_in_nested_containers_move_and_the_rest_stays() -> None:
    batch = {
        "x": torch.ones(2),
        "more": [torch.ones(1), ("name", torch.ones(3))],
        "n": 3,
        "none": None,
    }
    moved = move_batch(batch, META)
    assert moved["x"].device == META
    assert moved["more"][0].device == META
    assert isinstance(moved["more"], list)
    assert isinstance(moved["more"][1], tuple)
    assert moved["more"][1][0] == "name"
    assert moved["more"][1][1].device == META
    assert (moved["n"], moved["none"]) == (3, None)
    assert batch["x"].device.type == "cpu"


def test_named_tuples_keep_their_type() -> None:
    moved = move_batch(Pair(torch.ones(2), torch.zeros(2)), META)
    assert isinstance(moved, Pair)
    assert moved.labels.device == META
    assert isinstance(move_batch(Triple(1, torch.ones(1), "c"), META), Triple)


def test_any_mapping_moves() -> None:
    moved = move_batch(UserDict(input_ids=torch.ones(2, 2)), META)
    assert moved["input_ids"].device == META


def test_a_packed_sequence_moves_with_its_batch_sizes_left_behind() -> None:
    packed = pack_sequence([torch.ones(3), torch.ones(2)])
    moved = move_batch(packed, torch.device("cpu"))
    assert type(moved) is type(packed)
    assert moved.batch_sizes.tolist() == [2, 2, 1]


def test_a_tensor_already_there_is_not_copied() -> None:
    tensor = torch.ones(2)
    assert move_batch(tensor, torch.device("cpu")) is tensor


IDS = torch.zeros(4, 8, dtype=torch.long)
MASK = torch.tensor([[1, 1, 0], [1, 0, 0]])


@pytest.mark.parametrize(
    ("batch", "samples", "tokens"),
    [
        ({"input_ids": IDS}, 4, 32),
        ({"input_ids": IDS, "inputs": torch.zeros(1, 1)}, 4, 32),
        ({"inputs": IDS}, 4, 32),
        ({"input_ids": None, "inputs": IDS}, 4, 32),
        (UserDict(input_ids=IDS), 4, 32),
        ((IDS, torch.zeros(9)), 4, 32),
        ([IDS, torch.zeros(9)], 4, 32),
        (Pair(IDS, IDS), 4, 32),
        (IDS, 4, 32),
        ({"inputs": torch.zeros(5)}, 5, 5),
        ({"input_ids": torch.zeros(2, 3), "attention_mask": MASK}, 2, 3),
        ({"input_ids": torch.zeros(2, 3), "attention_mask": MASK.bool()}, 2, 3),
        ({"inputs": torch.zeros(2, 3), "attention_mask": MASK}, 2, 3),
        ({"input_ids": torch.zeros(2, 3), "attention_mask": None}, 2, 6),
        ({"input_ids": torch.zeros(2, 3), "attention_mask": [[1]]}, 2, 6),
        ({"input_ids": torch.zeros(6), "attention_mask": torch.zeros(6)}, 6, 6),
        ({"pixels": IDS}, 1, 1),
        ({}, 1, 1),
        ((), 1, 1),
        (("text", IDS), 1, 1),
        (torch.tensor(3), 1, 1),
        ("text", 1, 1),
        (None, 1, 1),
    ],
)
def test_samples_and_tokens_of_a_batch(batch: Any, samples: int, tokens: int) -> None:
    assert count_batch(batch) == BatchCount(samples=samples, tokens=tokens)
