"""Momentum and weight decay of a live optimizer, moved with the learning rate."""

from __future__ import annotations

import copy
import json

import pytest
import torch
from torch import nn
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from speedtronic.optim.restore import load_optimizer_state
from speedtronic.schedule.build import build_schedule, reimpose_schedule
from speedtronic.schedule.curves import MomentumPlan
from speedtronic.schedule.moving import FactorSchedule

PLAN = MomentumPlan(start=0.25, warmup_steps=2, end=0.5, cooldown_steps=2)
SETTINGS = {
    "kind": "linear",
    "warmup_steps": 2,
    "horizon": 8,
    "min_ratio": 0.0,
    "momentum": PLAN,
    "weight_decay_shape": "linear",
}
# Of a base of 0.75, at positions 0 to 9.
MOMENTA = [0.25, 0.5, 0.75, 0.75, 0.75, 0.75, 0.625, 0.5, 0.5, 0.5]
# Of a base of 0.8: 0.1 less a position, down to 0 at the horizon.
DECAYS = [0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.0, 0.0]


def make_optimizer() -> SGD:
    """Return three groups: all, one without decay, one without momentum."""
    groups = [
        {"params": [("a", nn.Parameter(torch.ones(2)))]},
        {"params": [("b", nn.Parameter(torch.ones(2)))], "weight_decay": 0.0},
        {"params": [("c", nn.Parameter(torch.ones(2)))], "momentum": 0.0},
    ]
    return SGD(groups, lr=1.0, momentum=0.75, weight_decay=0.8)


def values(optimizer: Optimizer, *, group: int = 0) -> tuple[float, float, float]:
    found = optimizer.param_groups[group]
    return found["lr"], found["momentum"], found["weight_decay"]


def advance(optimizer: Optimizer, schedule: LambdaLR, updates: int) -> list[list[tuple]]:
    """Return the values that each update used, group by group."""
    used = []
    for _ in range(updates):
        used.append([values(optimizer, group=index) for index in range(3)])
        optimizer.step()
        schedule.step()
    return used


def test_update_k_uses_momentum_and_decay_of_position_k_minus_one() -> None:
    optimizer = make_optimizer()
    schedule = build_schedule(optimizer, **SETTINGS)
    assert isinstance(schedule, LambdaLR)
    first = [by_group[0] for by_group in advance(optimizer, schedule, 10)]
    assert [momentum for _, momentum, _ in first] == MOMENTA
    assert [decay for _, _, decay in first] == pytest.approx(DECAYS, abs=1e-15)
    assert [rate for rate, _, _ in first[:4]] == [0.5, 1.0, 1.0, 5 / 6]


def test_what_is_zero_stays_zero() -> None:
    optimizer = make_optimizer()
    schedule = build_schedule(optimizer, **SETTINGS)
    for _, undecayed, memoryless in advance(optimizer, schedule, 10):
        assert undecayed[2] == 0.0
        assert memoryless[1] == 0.0
    assert values(optimizer, group=1)[1] == 0.5
    assert values(optimizer, group=2)[2] == 0.0


def test_weight_decay_that_follows_the_rate_is_its_factor_times_the_base() -> None:
    optimizer = make_optimizer()
    settings = {**SETTINGS, "momentum": MomentumPlan(), "weight_decay_shape": "lr"}
    schedule = build_schedule(optimizer, **settings)
    assert type(schedule) is FactorSchedule
    found = [by_group[0] for by_group in advance(optimizer, schedule, 10)]
    factors = [0.5, 1.0, 1.0, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6, 0.0, 0.0]
    assert [decay for _, _, decay in found] == pytest.approx([0.8 * f for f in factors], abs=1e-15)
    assert {momentum for _, momentum, _ in found} == {0.75}


def test_groups_that_lack_a_key_do_not_get_it() -> None:
    optimizer = AdamW(
        [{"params": [nn.Parameter(torch.ones(1))]}, {"params": [nn.Parameter(torch.ones(1))]}]
    )
    optimizer.param_groups[1]["momentum"] = 0.75  # as in an optimizer of two algorithms
    build_schedule(optimizer, **SETTINGS)
    adamw, muon = optimizer.param_groups
    assert not {"momentum", "initial_momentum"} & set(adamw)
    assert (muon["momentum"], muon["initial_momentum"]) == (0.25, 0.75)
    assert adamw["betas"] == (0.9, 0.999)


def test_the_state_is_that_of_a_lambda_lr_without_the_curves() -> None:
    moving = build_schedule(make_optimizer(), **SETTINGS)
    plain = build_schedule(
        make_optimizer(), kind="linear", warmup_steps=2, horizon=8, min_ratio=0.0
    )
    assert moving.state_dict() == plain.state_dict()
    assert json.loads(json.dumps(moving.state_dict())) == moving.state_dict()


# optimizers.md (29): a function of the step alone, in either order of restoring
@pytest.mark.parametrize("optimizer_first", [True, False])
@pytest.mark.parametrize("restored_at", range(10))
def test_all_three_go_on_exactly_when_restored_at_any_step(restored_at, optimizer_first) -> None:
    optimizer = make_optimizer()
    schedule = build_schedule(optimizer, **SETTINGS)
    advance(optimizer, schedule, restored_at)
    saved, state = copy.deepcopy((optimizer.state_dict(), schedule.state_dict()))
    expected = advance(optimizer, schedule, 6)

    other = make_optimizer()
    resumed = None
    if not optimizer_first:
        resumed = build_schedule(other, **SETTINGS)
    load_optimizer_state(other, saved)
    if resumed is None:  # sets position 0 over the restored values
        resumed = build_schedule(other, **SETTINGS)
    resumed.load_state_dict(state)
    reimpose_schedule(resumed)
    assert advance(other, resumed, 6) == expected


def test_a_plan_that_was_not_in_the_checkpoint_takes_the_restored_values_as_bases() -> None:
    optimizer = make_optimizer()
    settings = {**SETTINGS, "momentum": MomentumPlan(), "weight_decay_shape": "constant"}
    plain = build_schedule(optimizer, **settings)
    advance(optimizer, plain, 6)

    other = make_optimizer()
    moving = build_schedule(other, **SETTINGS)
    load_optimizer_state(other, optimizer.state_dict())  # drops the bases that were kept
    moving.load_state_dict(plain.state_dict())
    reimpose_schedule(moving)
    assert values(other)[1:] == pytest.approx((MOMENTA[6], DECAYS[6]), abs=1e-15)


def test_a_plan_that_only_the_checkpoint_had_leaves_the_bases_in_force() -> None:
    optimizer = make_optimizer()
    moving = build_schedule(optimizer, **SETTINGS)
    advance(optimizer, moving, 7)
    assert values(optimizer)[1] == 0.5

    other = make_optimizer()
    settings = {**SETTINGS, "momentum": MomentumPlan(), "weight_decay_shape": "constant"}
    plain = build_schedule(other, **settings)
    load_optimizer_state(other, optimizer.state_dict())
    plain.load_state_dict(moving.state_dict())
    reimpose_schedule(plain)
    assert values(other)[1:] == (0.75, 0.8)


def test_a_changed_base_is_put_in_force() -> None:
    optimizer = make_optimizer()
    schedule = build_schedule(optimizer, **SETTINGS)
    advance(optimizer, schedule, 4)
    optimizer.param_groups[0]["initial_momentum"] = 0.9
    optimizer.param_groups[0]["initial_weight_decay"] = 0.4
    reimpose_schedule(schedule)
    assert values(optimizer)[1:] == (0.9, 0.2)


def test_the_horizon_of_the_checkpoint_does_not_move_momentum_or_decay() -> None:
    optimizer = make_optimizer()
    short = build_schedule(optimizer, **SETTINGS)
    advance(optimizer, short, 8)
    other = make_optimizer()
    long = build_schedule(other, **{**SETTINGS, "horizon": 16})
    load_optimizer_state(other, optimizer.state_dict())
    long.load_state_dict(short.state_dict())
    reimpose_schedule(long)
    assert values(other)[1:] == (0.75, 0.4)
