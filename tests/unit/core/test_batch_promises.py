"""What moving a batch promises about waiting."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from speedtronic.core.batch import move_batch

META = torch.device("meta")


class Watched(torch.Tensor):
    """A tensor that notes how it is asked to move."""

    moves: list[tuple[Any, Any]]

    def to(self, *arguments: Any, **keywords: Any) -> torch.Tensor:
        self.moves.append((arguments, keywords))
        return self


@pytest.fixture
def watched() -> Watched:
    tensor = torch.zeros(2).as_subclass(Watched)
    tensor.moves = []
    return tensor


@pytest.mark.parametrize(
    "wrap",
    [
        lambda tensor: tensor,
        lambda tensor: {"inputs": tensor},
        lambda tensor: (tensor, 1),
        lambda tensor: [tensor],
        lambda tensor: {"nested": ([{"deep": tensor}],)},
    ],
    ids=["tensor", "mapping", "tuple", "list", "nested"],
)
def test_a_tensor_is_moved_without_waiting(wrap: Any, watched: Watched) -> None:
    move_batch(wrap(watched), META)
    assert watched.moves == [((META,), {"non_blocking": True})]


def test_a_packed_sequence_is_moved_without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    moves: list[tuple[Any, Any]] = []

    def to(self: PackedSequence, *arguments: Any, **keywords: Any) -> PackedSequence:
        moves.append((arguments, keywords))
        return self

    monkeypatch.setattr(PackedSequence, "to", to)
    move_batch(pack_sequence([torch.ones(2)]), META)
    assert moves == [((META,), {"non_blocking": True})]
