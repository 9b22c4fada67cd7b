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


@pytest.mark.parametrize("kind", ["cosine", "constant", "linear"])
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
