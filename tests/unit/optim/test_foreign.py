"""Optimizers of any class over our groups."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from speedtronic.core.errors import ConfigError
from speedtronic.optim.foreign import build_foreign_optimizer


def test_weight_decay_goes_to_the_decayed_group_only() -> None:
    optimizer = build_foreign_optimizer(
        torch.optim.SGD,
        nn.Linear(2, 2),
        arguments={"lr": 0.5, "weight_decay": 0.2, "momentum": 0.9},
    )
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.2, 0.0]
    assert [group["momentum"] for group in optimizer.param_groups] == [0.9, 0.9]
    assert [group["param_names"] for group in optimizer.param_groups] == [["weight"], ["bias"]]


def test_the_decay_of_the_class_is_used_where_none_is_given() -> None:
    optimizer = build_foreign_optimizer(torch.optim.AdamW, nn.Linear(2, 2), arguments={})
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.01, 0.0]


def test_decay_all_has_one_group() -> None:
    optimizer = build_foreign_optimizer(
        torch.optim.SGD, nn.Linear(2, 2), arguments={"weight_decay": 0.2}, decay="all"
    )
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.2]


def test_a_class_without_weight_decay_gets_one_group_with_everything() -> None:
    optimizer = build_foreign_optimizer(torch.optim.LBFGS, nn.Linear(2, 2), arguments={"lr": 0.1})
    (group,) = optimizer.param_groups
    assert group["param_names"] == ["weight", "bias"]
    assert "weight_decay" not in group


def test_arguments_that_the_class_refuses_are_one_line() -> None:
    with pytest.raises(
        ConfigError, match="optimizer: SGD could not be built: Invalid learning rate: -1"
    ):
        build_foreign_optimizer(torch.optim.SGD, nn.Linear(2, 2), arguments={"lr": -1})
    with pytest.raises(ConfigError, match=r"optimizer: SGD could not be built: .*lrr"):
        build_foreign_optimizer(torch.optim.SGD, nn.Linear(2, 2), arguments={"lrr": 1})
