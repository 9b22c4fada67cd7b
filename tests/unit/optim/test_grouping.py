"""Every trainable parameter once, in the group where it belongs."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from speedtronic.core.errors import ConfigError
from speedtronic.optim.grouping import decay_groups, trainable_parameters


class RootMeanSquareNorm2d(nn.Module):
    """A user's norm with a weight of two dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2, 2))


class Everything(nn.Module):
    """Each kind of parameter once, and a head tied to the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 8, bias=False)
        self.embedding = nn.Embedding(8, 4)
        self.head.weight = self.embedding.weight
        self.linear = nn.Linear(4, 4)
        self.conv = nn.Conv2d(1, 2, 3)
        self.norm = nn.LayerNorm([2, 2])
        self.batch_norm = nn.BatchNorm1d(4)
        self.own_norm = RootMeanSquareNorm2d()
        self.bag = nn.EmbeddingBag(3, 4)
        self.scale = nn.Parameter(torch.ones(()))
        self.bias = nn.Parameter(torch.ones(3, 3))
        self.stack = nn.Parameter(torch.ones(2, 3, 4))
        self.frozen = nn.Linear(2, 2).requires_grad_(False)


def names(groups: list[dict]) -> list[list[str]]:
    return [[name for name, _ in group["params"]] for group in groups]


def test_matrices_decay_and_embeddings_norms_biases_and_vectors_do_not() -> None:
    groups = decay_groups(Everything(), weight_decay=0.1)
    decayed, others = names(groups)
    assert sorted(decayed) == ["conv.weight", "linear.weight", "stack"]
    assert sorted(others) == [
        "bag.weight",
        "batch_norm.bias",
        "batch_norm.weight",
        "bias",
        "conv.bias",
        "head.weight",
        "linear.bias",
        "norm.bias",
        "norm.weight",
        "own_norm.weight",
        "scale",
    ]
    assert [group["weight_decay"] for group in groups] == [0.1, 0.0]
    assert [group["name"] for group in groups] == ["decay", "no_decay"]


def test_decay_all_has_one_group_with_everything() -> None:
    (group,) = decay_groups(Everything(), weight_decay=0.1, decay="all")
    assert len(group["params"]) == 14
    assert group["weight_decay"] == 0.1


@pytest.mark.parametrize("decay", ["matrices", "all"])
def test_groups_hold_the_trainable_parameters_exactly_once(decay: str) -> None:
    model = Everything()
    grouped = [
        p
        for group in decay_groups(model, weight_decay=0.1, decay=decay)
        for _, p in group["params"]
    ]
    trainable = {id(p) for p in model.parameters() if p.requires_grad}
    assert len(grouped) == len(trainable)
    assert {id(p) for p in grouped} == trainable


def test_a_model_with_one_kind_has_one_group() -> None:
    (only_matrices,) = decay_groups(nn.Linear(2, 2, bias=False), weight_decay=0.1)
    assert only_matrices["weight_decay"] == 0.1
    (only_vectors,) = decay_groups(nn.LayerNorm(3), weight_decay=0.1)
    assert only_vectors["weight_decay"] == 0.0


def test_a_model_without_trainable_parameter_is_refused() -> None:
    for model in (nn.ReLU(), nn.Linear(1, 1).requires_grad_(False)):
        kind = type(model).__name__
        with pytest.raises(ConfigError, match=f"model must have a trainable parameter, got {kind}"):
            trainable_parameters(model)


class Patches(nn.Module):
    """Tables of positions and tokens as plain parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.pos_embed = nn.Parameter(torch.zeros(1, 5, 8))
        self.cls_token = nn.Parameter(torch.zeros(1, 1, 8))
        self.attention = nn.MultiheadAttention(8, 2, add_bias_kv=True)
        self.compose_embed = nn.Parameter(torch.zeros(8, 8))


def test_tables_of_positions_tokens_and_attention_biases_do_not_decay() -> None:
    decayed, others = decay_groups(Patches(), weight_decay=0.1)
    assert [name for name, _ in decayed["params"]] == [
        "compose_embed",
        "attention.in_proj_weight",
        "attention.out_proj.weight",
    ]
    assert {name for name, _ in others["params"]} == {
        "pos_embed",
        "cls_token",
        "attention.in_proj_bias",
        "attention.bias_k",
        "attention.bias_v",
        "attention.out_proj.bias",
    }
