"""From the section ``scheduler`` to a live schedule, and what the section refuses."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.optim import SGD
from torch.optim.lr_scheduler import LambdaLR

from speedtronic import build_scheduler
from speedtronic.config import (
    ConfigError,
    ConstantSettings,
    CosineSettings,
    LinearSettings,
    WSDSettings,
    load_config,
)

ALL = [ConstantSettings, CosineSettings, LinearSettings, WSDSettings]


def make_optimizer() -> SGD:
    return SGD([nn.Parameter(torch.ones(1))], lr=1.0, momentum=0.75, weight_decay=0.5)


def test_wsd_is_built_over_the_target_with_its_own_defaults() -> None:
    optimizer = make_optimizer()
    schedule = build_scheduler(optimizer, load_config({"scheduler": "wsd", "max_steps": 20}))
    assert type(schedule) is LambdaLR
    used = []
    for _ in range(21):
        used.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    # Warm-up 2 of 20, then 1 until 12 = 0.6 * 20 are left: 12/13, 11/13 ... 1/13, and 0.
    expected = [0.5, 1.0, *[1.0] * 6, *[left / 13 for left in range(12, -1, -1)]]
    assert used == pytest.approx(expected, abs=1e-15)


def test_wsd_passes_its_ratio_and_shape_on() -> None:
    optimizer = make_optimizer()
    settings = WSDSettings(
        warmup_steps=0, decay_ratio=1.0, decay_shape="1-sqrt", min_lr_ratio=0.5, max_steps=3
    )
    settings.build(optimizer=optimizer, max_steps=100)
    assert optimizer.param_groups[0]["lr"] == 0.75  # progress 1/4: half of the way to the floor


@pytest.mark.parametrize("cls", ALL)
def test_every_schedule_of_ours_moves_momentum_and_decay(cls) -> None:
    optimizer = make_optimizer()
    settings = cls(
        warmup_steps=0,
        momentum_start=0.25,
        momentum_warmup_steps=2,
        momentum_end=0.5,
        momentum_cooldown_steps=1,
        weight_decay_shape="linear",
    )
    schedule = settings.build(optimizer=optimizer, max_steps=4)
    used = []
    for _ in range(5):
        group = optimizer.param_groups[0]
        used.append((group["momentum"], group["weight_decay"]))
        optimizer.step()
        schedule.step()
    assert used == [(0.25, 0.5), (0.5, 0.375), (0.75, 0.25), (0.5, 0.125), (0.5, 0.0)]


def test_momentum_steps_that_are_not_given_are_a_tenth_of_the_horizon() -> None:
    settings = CosineSettings(momentum_start=0.85, momentum_end=0.85)
    plan = settings.momentum_plan()
    assert (plan.resolve_warmup(2000), plan.resolve_cooldown(2000)) == (200, 50)


@pytest.mark.parametrize("cls", ALL)
@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"momentum_warmup_steps": 3},
            "scheduler.momentum_warmup_steps must be null without scheduler.momentum_start, got 3;"
            " set scheduler.momentum_start, such as 0.85",
        ),
        (
            {"momentum_cooldown_steps": 0, "momentum_start": 0.5},
            "scheduler.momentum_cooldown_steps must be null without scheduler.momentum_end, got 0;"
            " set scheduler.momentum_end, such as 0.85",
        ),
        (
            {"momentum_start": 1.0},
            "scheduler.momentum_start: must be less than 1 or null, got 1.0; the default is null",
        ),
        (
            {"momentum_end": -0.1},
            "scheduler.momentum_end: must be at least 0 or null, got -0.1; the default is null",
        ),
        (
            {"momentum_start": 0.5, "momentum_warmup_steps": -1},
            "scheduler.momentum_warmup_steps: must be at least 0 or null, got -1;"
            " the default is null",
        ),
        (
            {"weight_decay_shape": "cosin"},
            "scheduler.weight_decay_shape: must be one of 'constant', 'lr', 'cosine' or 'linear',"
            " got 'cosin'; did you mean 'cosine'?",
        ),
    ],
)
def test_a_plan_that_says_too_little_or_too_much_is_refused(cls, values, message) -> None:
    with pytest.raises(ConfigError) as caught:
        cls(**values)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"decay_ratio": 0},
            "scheduler.decay_ratio: must be greater than 0, got 0; the default is 0.6",
        ),
        (
            {"decay_ratio": 1.5},
            "scheduler.decay_ratio: must be at most 1, got 1.5; the default is 0.6",
        ),
        (
            {"decay_shape": "sqrt"},
            "scheduler.decay_shape: must be one of 'linear', '1-sqrt' or 'cosine', got 'sqrt';"
            " did you mean '1-sqrt'?",
        ),
    ],
)
def test_a_fall_that_does_not_exist_is_refused(values, message) -> None:
    with pytest.raises(ConfigError) as caught:
        WSDSettings(**values)
    assert str(caught.value) == message
