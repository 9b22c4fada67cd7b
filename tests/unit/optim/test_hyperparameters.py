"""Applying changed hyperparameters to a restored optimizer."""

from __future__ import annotations

import torch
from torch import nn

from speedtronic.optim.adamw import build_adamw
from speedtronic.optim.hyperparameters import set_hyperparameters
from speedtronic.schedule.build import build_schedule, reimpose_schedule

CPU = torch.device("cpu")


def test_equal_values_change_nothing() -> None:
    optimizer = build_adamw(nn.Linear(2, 2), lr=0.1, device=CPU)
    assert set_hyperparameters(optimizer, lr=0.1, betas=(0.9, 0.95), weight_decay=0.1) == []
    assert set_hyperparameters(optimizer) == []


def test_each_change_is_made_and_named_once() -> None:
    optimizer = build_adamw(nn.Linear(2, 2), lr=0.1, device=CPU)
    changes = set_hyperparameters(optimizer, lr=0.2, betas=(0.8, 0.99), weight_decay=0.5)
    assert changes == [
        "optimizer.lr: 0.1 -> 0.2",
        "optimizer.betas: (0.9, 0.95) -> (0.8, 0.99)",
        "optimizer.weight_decay: 0.1 -> 0.5",
    ]
    assert [group["lr"] for group in optimizer.param_groups] == [0.2, 0.2]
    assert [group["betas"] for group in optimizer.param_groups] == [(0.8, 0.99)] * 2


def test_the_group_without_decay_keeps_its_zero() -> None:
    optimizer = build_adamw(nn.Linear(2, 2), lr=0.1, weight_decay=0.0, device=CPU)
    set_hyperparameters(optimizer, weight_decay=0.5)
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.5, 0.0]


def test_a_list_of_betas_equals_the_tuple() -> None:
    optimizer = build_adamw(nn.Linear(2, 2), lr=0.1, device=CPU)
    optimizer.param_groups[0]["betas"] = [0.9, 0.95]  # as a file may give it back
    assert set_hyperparameters(optimizer, betas=(0.9, 0.95)) == []


def test_keys_that_an_optimizer_lacks_are_not_added() -> None:
    optimizer = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)
    assert set_hyperparameters(optimizer, betas=(0.8, 0.9)) == []
    assert "betas" not in optimizer.param_groups[0]


def test_with_a_schedule_the_base_rate_changes_and_the_schedule_puts_it_in_force() -> None:
    optimizer = build_adamw(nn.Linear(2, 2), lr=0.1, device=CPU)
    schedule = build_schedule(optimizer, kind="constant", warmup_steps=4, horizon=10)
    assert set_hyperparameters(optimizer, lr=0.4) == ["optimizer.lr: 0.1 -> 0.4"]
    reimpose_schedule(schedule)
    assert [group["lr"] for group in optimizer.param_groups] == [
        0.1,
        0.1,
    ]  # position 0 of 4: a quarter
    for _ in range(4):
        optimizer.step()
        schedule.step()
    assert [group["lr"] for group in optimizer.param_groups] == [0.4, 0.4]
