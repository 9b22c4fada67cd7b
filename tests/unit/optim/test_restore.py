"""Restoring optimizers by name: exact, in any order, and refused where the names differ."""

from __future__ import annotations

import copy
import re

import pytest
import torch
from torch import nn
from torch.optim import AdamW

from speedtronic.core.errors import IncompatibleCheckpointError
from speedtronic.optim.adamw import build_adamw
from speedtronic.optim.restore import load_optimizer_state

CPU = torch.device("cpu")


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3), nn.Linear(3, 3))


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int, seed: int = 1) -> None:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        model(torch.randn(4, 3, generator=generator)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def named_state(optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    moments = {}
    for group in optimizer.param_groups:
        for name, parameter in zip(group["param_names"], group["params"], strict=True):
            moments[name] = optimizer.state[parameter]["exp_avg"]
    return moments


def test_a_restored_optimizer_continues_bit_for_bit() -> None:
    straight, other = make_model(), make_model()
    optimizer = build_adamw(straight, lr=0.01, device=CPU)
    train(straight, optimizer, 3)
    model_state, state = copy.deepcopy((straight.state_dict(), optimizer.state_dict()))
    train(straight, optimizer, 3, seed=2)
    other.load_state_dict(model_state)
    resumed = build_adamw(other, lr=0.5, device=CPU)
    load_optimizer_state(resumed, state)
    train(other, resumed, 3, seed=2)
    assert all(
        torch.equal(a, b) for a, b in zip(straight.parameters(), other.parameters(), strict=True)
    )


def test_another_order_is_put_right_by_name() -> None:
    model = make_model()
    saved = AdamW(list(model.named_parameters()), lr=0.1)
    train(model, saved, 2)
    reordered = AdamW(list(reversed(list(model.named_parameters()))), lr=0.1)
    load_optimizer_state(reordered, saved.state_dict())
    assert reordered.param_groups[0]["param_names"] == [
        n for n, _ in reversed(list(model.named_parameters()))
    ]
    expected, found = named_state(saved), named_state(reordered)
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    train(model, reordered, 1)  # every moment has the shape of its parameter


def test_another_grouping_keeps_its_own_hyperparameters_and_gets_the_moments() -> None:
    model = make_model()
    saved = build_adamw(model, lr=0.1, weight_decay=0.3, device=CPU)
    train(model, saved, 2)
    whole = build_adamw(model, lr=0.2, weight_decay=0.4, decay="all", device=CPU)
    load_optimizer_state(whole, saved.state_dict())
    assert [(group["lr"], group["weight_decay"]) for group in whole.param_groups] == [(0.2, 0.4)]
    expected, found = named_state(saved), named_state(whole)
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_saved_hyperparameters_come_back_learning_rate_included() -> None:
    model = make_model()
    saved = build_adamw(model, lr=0.1, weight_decay=0.3, device=CPU)
    saved.param_groups[0]["lr"] = 0.07
    restored = build_adamw(model, lr=0.2, device=CPU)
    load_optimizer_state(restored, saved.state_dict())
    assert [group["lr"] for group in restored.param_groups] == [0.07, 0.1]
    assert [group["weight_decay"] for group in restored.param_groups] == [0.3, 0.0]


def test_how_a_step_is_computed_follows_the_present_machine() -> None:
    model = make_model()
    saved = build_adamw(model, lr=0.1, fused=True, device=CPU)
    ordinary = build_adamw(model, lr=0.1, fused=False, device=CPU)
    load_optimizer_state(ordinary, saved.state_dict())
    assert [group["fused"] for group in ordinary.param_groups] == [None, None]
    unnamed = AdamW(model.parameters(), lr=0.1)
    load_optimizer_state(unnamed, AdamW(model.parameters(), lr=0.1, fused=True).state_dict())
    assert unnamed.param_groups[0]["fused"] is None


def test_later_steps_leave_the_loaded_state_as_it_is() -> None:
    model = make_model()
    optimizer = build_adamw(model, lr=0.1, device=CPU)
    train(model, optimizer, 1)
    state = copy.deepcopy(optimizer.state_dict())
    before = state["state"][0]["exp_avg"].clone()
    load_optimizer_state(optimizer, state)
    train(model, optimizer, 1)
    assert torch.equal(state["state"][0]["exp_avg"], before)
    assert state["state"][0]["step"].item() == 1


def test_other_names_are_refused_and_named() -> None:
    wide = nn.Sequential(*[nn.Linear(1, 1, bias=False) for _ in range(6)])
    saved = build_adamw(wide, lr=0.1, device=CPU).state_dict()
    message = (
        "the optimizer of the checkpoint belongs to another model: it lacks bias, weight; "
        "it has unknown 0.weight, 1.weight, 2.weight ..."
    )
    with pytest.raises(IncompatibleCheckpointError, match=re.escape(message)):
        load_optimizer_state(build_adamw(nn.Linear(1, 1), lr=0.1, device=CPU), saved)


def test_optimizers_without_names_are_compared_by_number() -> None:
    saved = AdamW(make_model().parameters(), lr=0.1).state_dict()
    with pytest.raises(
        IncompatibleCheckpointError, match="does not fit this one: loaded state dict"
    ):
        load_optimizer_state(AdamW(nn.Linear(1, 1).parameters(), lr=0.1), saved)
    two_groups = AdamW([{"params": [p]} for p in nn.Linear(1, 1).parameters()], lr=0.1)
    with pytest.raises(IncompatibleCheckpointError, match="does not fit this one"):
        load_optimizer_state(two_groups, saved)


def test_a_state_before_the_first_step_loads() -> None:
    model = make_model()
    fresh = build_adamw(model, lr=0.1, device=CPU)
    load_optimizer_state(fresh, build_adamw(model, lr=0.1, device=CPU).state_dict())
    assert dict(fresh.state) == {}
