"""Live schedules: which update uses which position, and restoring them exactly."""

from __future__ import annotations

import copy
import json
import warnings

import pytest
import torch
from torch import nn
from torch.optim import SGD

from speedtronic.schedule.build import build_schedule, reimpose_schedule
from speedtronic.schedule.curves import MomentumPlan

KINDS = ["cosine", "constant", "linear", "wsd"]


def make_optimizer(lr: float = 1.0) -> SGD:
    weight, bias = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))
    return SGD([{"params": [weight]}, {"params": [bias], "lr": lr / 2}], lr=lr)


def rates(optimizer: SGD) -> list[float]:
    return [group["lr"] for group in optimizer.param_groups]


def advance(
    optimizer: SGD, schedule: torch.optim.lr_scheduler.LambdaLR, updates: int
) -> list[float]:
    used = []
    for _ in range(updates):
        used.append(rates(optimizer)[0])
        optimizer.step()
        schedule.step()
    return used


def test_construction_puts_position_zero_in_force() -> None:
    optimizer = make_optimizer()
    build_schedule(optimizer, kind="constant", warmup_steps=4, horizon=10)
    assert rates(optimizer) == [0.25, 0.125]


def test_update_k_uses_position_k_minus_one_and_the_report_is_one_ahead() -> None:
    optimizer = make_optimizer()
    schedule = build_schedule(optimizer, kind="linear", warmup_steps=2, horizon=6, min_ratio=0.0)
    assert advance(optimizer, schedule, 6) == [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]
    assert schedule.get_last_lr() == [0.0, 0.0]


def test_every_group_keeps_its_ratio() -> None:
    optimizer = make_optimizer()
    schedule = build_schedule(optimizer, kind="cosine", warmup_steps=2, horizon=6, min_ratio=0.1)
    for _ in range(8):
        advance(optimizer, schedule, 1)
        assert rates(optimizer)[0] == 2 * rates(optimizer)[1]


def test_the_rate_stays_at_the_floor_past_the_horizon() -> None:
    optimizer = make_optimizer()
    schedule = build_schedule(optimizer, kind="cosine", warmup_steps=0, horizon=4, min_ratio=0.25)
    advance(optimizer, schedule, 4)
    assert advance(optimizer, schedule, 8) == [0.25] * 8


def test_wsd_takes_its_ratio_and_shape() -> None:
    optimizer = make_optimizer()
    schedule = build_schedule(
        optimizer,
        kind="wsd",
        warmup_steps=2,
        horizon=8,
        min_ratio=0.0,
        decay_ratio=0.375,
        decay_shape="1-sqrt",
    )
    found = advance(optimizer, schedule, 10)
    falling = [0.5, 1 - 0.5**0.5, 1 - 0.75**0.5]
    expected = [0.5, 1.0, 1.0, 1.0, 1.0, *falling, 0.0, 0.0]
    assert found == pytest.approx(expected, abs=1e-15)


# optimizers.md (28); seen elsewhere: rate 0 on the first step
@pytest.mark.parametrize("kind", KINDS)
def test_the_first_update_has_a_wth_and_update_w_the_peak(kind: str) -> None:
    optimizer = make_optimizer()
    schedule = build_schedule(optimizer, kind=kind, warmup_steps=4, horizon=20)
    used = advance(optimizer, schedule, 20)
    assert used[:4] == [0.25, 0.5, 0.75, 1.0]
    assert max(used) == 1.0
    assert used[-1] > 0.0


# optimizers.md (28): the floor for ever
@pytest.mark.parametrize("kind", ["cosine", "linear", "wsd"])
def test_no_schedule_climbs_back_after_its_end(kind: str) -> None:
    optimizer = make_optimizer()
    torch_cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=4)
    theirs = [*advance(optimizer, torch_cosine, 8), rates(optimizer)[0]]
    assert theirs[4::2] == pytest.approx([0.0, 0.5, 1.0], abs=1e-15)  # T, 1.5 T, 2 T

    optimizer = make_optimizer()
    ours = build_schedule(optimizer, kind=kind, warmup_steps=0, horizon=4, min_ratio=0.0)
    assert advance(optimizer, ours, 13)[4:] == [0.0] * 9


# optimizers.md (30): one update in all
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("warmup_steps", [None, 0, 1])
def test_a_run_of_one_update_has_the_full_rate(kind: str, warmup_steps: int | None) -> None:
    optimizer = make_optimizer()
    build_schedule(optimizer, kind=kind, warmup_steps=warmup_steps, horizon=1, decay_ratio=0.4)
    assert rates(optimizer)[0] == 1.0


def test_no_warmup_given_means_a_tenth_of_the_horizon() -> None:
    optimizer = make_optimizer()
    schedule = build_schedule(optimizer, kind="constant", horizon=40)
    assert advance(optimizer, schedule, 5) == [0.25, 0.5, 0.75, 1.0, 1.0]


def test_a_warmup_above_the_horizon_is_kept_and_warned_about() -> None:
    optimizer = make_optimizer()
    message = r"scheduler.warmup_steps \(8\) is above the horizon \(4\): the full learning rate is"
    with pytest.warns(UserWarning, match=message):
        build_schedule(optimizer, kind="cosine", warmup_steps=8, horizon=4)
    assert rates(optimizer)[0] == 0.125
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        build_schedule(make_optimizer(), kind="cosine", warmup_steps=4, horizon=4)


# optimizers.md (29); seen elsewhere: resume order resets the rate
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("restored_at", [0, 1, 5, 12, 20])
@pytest.mark.parametrize("optimizer_first", [True, False])
def test_a_schedule_restored_at_any_step_and_in_any_order_goes_on_exactly(
    kind: str, restored_at: int, optimizer_first: bool
) -> None:
    settings = {"kind": kind, "warmup_steps": 4, "horizon": 17, "min_ratio": 0.1}
    optimizer = make_optimizer(0.3)
    schedule = build_schedule(optimizer, **settings)
    advance(optimizer, schedule, restored_at)
    optimizer_state, state = copy.deepcopy((optimizer.state_dict(), schedule.state_dict()))
    expected = advance(optimizer, schedule, 10)

    other = make_optimizer(0.3)
    if optimizer_first:  # building a schedule afterwards sets position 0
        other.load_state_dict(optimizer_state)
        resumed = build_schedule(other, **settings)
        resumed.load_state_dict(state)
        reimpose_schedule(resumed)
    else:
        resumed = build_schedule(other, **settings)
        other.load_state_dict(optimizer_state)
        resumed.load_state_dict(state)
        reimpose_schedule(resumed)
    assert advance(other, resumed, 10) == expected


# seen elsewhere: a restored schedule alone does not set the rate
def test_a_restored_schedule_is_in_force_once_it_is_put_in_force() -> None:
    optimizer = make_optimizer()
    settings = {"kind": "linear", "warmup_steps": 0, "horizon": 10, "min_ratio": 0.0}
    schedule = build_schedule(optimizer, **settings)
    advance(optimizer, schedule, 5)
    other = make_optimizer()
    resumed = build_schedule(other, **settings)
    resumed.load_state_dict(schedule.state_dict())
    assert rates(other) == [1.0, 0.5]
    reimpose_schedule(resumed)
    assert rates(other) == [0.5, 0.25]


# seen elsewhere: the horizon of a checkpoint overrides a new configuration
def test_the_horizon_of_a_checkpoint_does_not_override_the_configured_one() -> None:
    optimizer = make_optimizer()
    short = build_schedule(optimizer, kind="linear", warmup_steps=0, horizon=10, min_ratio=0.0)
    advance(optimizer, short, 5)
    other = make_optimizer()
    long = build_schedule(other, kind="linear", warmup_steps=0, horizon=20, min_ratio=0.0)
    long.load_state_dict(short.state_dict())
    reimpose_schedule(long)
    assert rates(other) == [0.75, 0.375]
    assert long.get_last_lr() == [0.75, 0.375]


def test_the_state_of_a_schedule_is_plain() -> None:
    schedule = build_schedule(make_optimizer(), kind="cosine", horizon=10)
    assert json.loads(json.dumps(schedule.state_dict()))["lr_lambdas"] == [None, None]


# Momentum and weight decay ------------------------------------------------------------------------


def test_with_constant_momentum_and_decay_it_is_a_plain_schedule_and_touches_neither() -> None:
    optimizer = SGD([nn.Parameter(torch.ones(1))], lr=1.0, momentum=0.9, weight_decay=0.1)
    schedule = build_schedule(optimizer, kind="wsd", horizon=10)
    assert type(schedule) is torch.optim.lr_scheduler.LambdaLR
    advance(optimizer, schedule, 12)
    group = optimizer.param_groups[0]
    assert (group["momentum"], group["weight_decay"]) == (0.9, 0.1)
    assert "initial_momentum" not in group
    assert "initial_weight_decay" not in group


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"momentum": MomentumPlan(start=0.85, end=0.8)},
            "scheduler.momentum_start has nothing to move: no group of SGD has a momentum above 0",
        ),
        (
            {"momentum": MomentumPlan(end=0.8)},
            "scheduler.momentum_end has nothing to move: no group of SGD has a momentum above 0",
        ),
        (
            {"weight_decay_shape": "cosine"},
            "scheduler.weight_decay_shape has nothing to move: no group of SGD has a"
            " weight_decay above 0",
        ),
    ],
)
def test_a_curve_with_nothing_to_move_is_warned_of_once(arguments, message) -> None:
    with pytest.warns(UserWarning) as caught:  # noqa: PT030 - the whole text is asserted below
        build_schedule(make_optimizer(), kind="cosine", horizon=10, **arguments)
    assert [str(warning.message) for warning in caught] == [message]


def test_a_momentum_warmup_above_the_horizon_is_warned_about() -> None:
    optimizer = SGD([nn.Parameter(torch.ones(1))], lr=1.0, momentum=0.9)
    plan = MomentumPlan(start=0.5, warmup_steps=11)
    message = r"scheduler.momentum_warmup_steps \(11\) is above the horizon \(10\): the full mom"
    with pytest.warns(UserWarning, match=message):
        build_schedule(optimizer, kind="cosine", horizon=10, momentum=plan)
