"""Applying changed hyperparameters to a restored optimizer."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from speedtronic import build_optimizer
from speedtronic.optim.adamw import build_adamw
from speedtronic.optim.hyperparameters import configured_hyperparameters, set_hyperparameters
from speedtronic.schedule.build import build_schedule, reimpose_schedule

CPU = torch.device("cpu")


ALL = ("lr", "betas", "weight_decay", "momentum")


def changed(optimizer: torch.optim.Optimizer, **values: Any) -> list[str]:
    """Set values as if the optimizer had been built with them."""
    configured = configured_hyperparameters(optimizer)
    wanted = [{**group, **{k: v for k, v in values.items() if k in group}} for group in configured]
    return set_hyperparameters(optimizer, wanted, keys=values)


def test_equal_values_change_nothing() -> None:
    optimizer = build_adamw(nn.Linear(2, 2), lr=0.1, device=CPU)
    configured = configured_hyperparameters(optimizer)
    assert set_hyperparameters(optimizer, configured, keys=ALL) == []


def test_each_change_is_made_and_named_once() -> None:
    optimizer = build_adamw(nn.Linear(2, 2), lr=0.1, device=CPU)
    assert sorted(changed(optimizer, lr=0.2, betas=(0.8, 0.99))) == [
        "optimizer.betas: (0.9, 0.95) -> (0.8, 0.99)",
        "optimizer.lr: 0.1 -> 0.2",
    ]
    assert [group["lr"] for group in optimizer.param_groups] == [0.2, 0.2]
    assert [group["betas"] for group in optimizer.param_groups] == [(0.8, 0.99)] * 2


def test_only_the_asked_keys_change() -> None:
    optimizer = build_adamw(nn.Linear(2, 2), lr=0.1, device=CPU)
    wanted = [{**group, "lr": 0.5} for group in configured_hyperparameters(optimizer)]
    assert set_hyperparameters(optimizer, wanted, keys=["betas"]) == []
    assert [group["lr"] for group in optimizer.param_groups] == [0.1, 0.1]


def test_a_group_without_decay_keeps_the_zero_it_was_built_with() -> None:
    restored = build_adamw(nn.Linear(2, 2), lr=0.1, weight_decay=0.1, device=CPU)
    fresh = build_adamw(nn.Linear(2, 2), lr=0.1, weight_decay=0.5, device=CPU)
    lines = set_hyperparameters(restored, configured_hyperparameters(fresh), keys=["weight_decay"])
    assert lines == ["optimizer.weight_decay: 0.1 -> 0.5"]
    assert [group["weight_decay"] for group in restored.param_groups] == [0.5, 0.0]


def test_muon_and_adamw_values_are_told_apart() -> None:
    model = nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16), nn.Linear(16, 8))
    old, new = (
        build_optimizer(model, {"optimizer": {"name": "muon", **values}}, CPU)
        for values in ({}, {"lr": 0.1, "muon_lr": 0.2, "muon_momentum": 0.9})
    )
    lines = set_hyperparameters(old, configured_hyperparameters(new), keys=["lr", "momentum"])
    assert lines == [
        "optimizer.muon_lr: 0.03 -> 0.2",
        "optimizer.muon_momentum: 0.95 -> 0.9",
        "optimizer.lr: 0.008 -> 0.1",
    ]
    assert [group["lr"] for group in old.param_groups] == [0.2, 0.1, 0.1]
    assert old.param_groups[0]["momentum"] == 0.9


def test_a_list_of_betas_equals_the_tuple() -> None:
    optimizer = build_adamw(nn.Linear(2, 2), lr=0.1, device=CPU)
    configured = configured_hyperparameters(optimizer)
    optimizer.param_groups[0]["betas"] = [0.9, 0.95]  # as a file may give it back
    assert set_hyperparameters(optimizer, configured, keys=["betas"]) == []


def test_any_key_of_a_foreign_optimizer_may_change() -> None:
    optimizer = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1, momentum=0.9)
    assert changed(optimizer, momentum=0.8, betas=(0.8, 0.9)) == ["optimizer.momentum: 0.9 -> 0.8"]
    assert "betas" not in optimizer.param_groups[0]


def test_with_a_schedule_the_base_rate_changes_and_the_schedule_puts_it_in_force() -> None:
    optimizer = build_adamw(nn.Linear(2, 2), lr=0.1, device=CPU)
    schedule = build_schedule(optimizer, kind="constant", warmup_steps=4, horizon=10)
    assert changed(optimizer, lr=0.4) == ["optimizer.lr: 0.1 -> 0.4"]
    reimpose_schedule(schedule)
    assert [group["lr"] for group in optimizer.param_groups] == [
        0.1,
        0.1,
    ]  # position 0 of 4: a quarter
    for _ in range(4):
        optimizer.step()
        schedule.step()
    assert [group["lr"] for group in optimizer.param_groups] == [0.4, 0.4]
