"""Momentum and weight decay as functions of the position, with their values written out."""

from __future__ import annotations

import math

import pytest

from speedtronic.schedule.curves import (
    MomentumPlan,
    default_momentum_cooldown,
    default_momentum_warmup,
    momentum_at,
    weight_decay_factor,
)


def momenta(plan: MomentumPlan, *, horizon: int, count: int, base: float = 0.75) -> list[float]:
    return [momentum_at(s, base=base, horizon=horizon, plan=plan) for s in range(count)]


@pytest.mark.parametrize(
    ("horizon", "warmup", "cooldown"),
    [(1, 0, 0), (9, 0, 0), (10, 1, 1), (500, 50, 50), (2999, 299, 50), (3010, 300, 50)],
)
def test_momentum_moves_for_a_tenth_at_either_end_unless_told(horizon, warmup, cooldown) -> None:
    assert default_momentum_warmup(horizon) == warmup
    assert default_momentum_cooldown(horizon) == cooldown
    plan = MomentumPlan(start=0.85, end=0.85)
    assert (plan.resolve_warmup(horizon), plan.resolve_cooldown(horizon)) == (warmup, cooldown)
    explicit = MomentumPlan(start=0.85, end=0.85, warmup_steps=0, cooldown_steps=1)
    assert (explicit.resolve_warmup(horizon), explicit.resolve_cooldown(horizon)) == (0, 1)


def test_a_plan_without_ends_is_the_base_for_ever() -> None:
    plan = MomentumPlan()
    assert plan.is_constant
    assert momenta(plan, horizon=4, count=8) == [0.75] * 8


def test_momentum_rises_from_its_start_and_reaches_the_base_after_the_warmup() -> None:
    plan = MomentumPlan(start=0.25, warmup_steps=4)
    assert not plan.is_constant
    assert momenta(plan, horizon=20, count=7) == [0.25, 0.375, 0.5, 0.625, 0.75, 0.75, 0.75]
    assert momenta(plan, horizon=20, count=100)[5:] == [0.75] * 95


def test_momentum_falls_in_the_last_updates_and_stays_at_its_end() -> None:
    plan = MomentumPlan(end=0.25, cooldown_steps=4)
    assert not plan.is_constant
    expected = [0.75, 0.75, 0.625, 0.5, 0.375, 0.25, 0.25, 0.25]
    assert momenta(plan, horizon=6, count=8) == expected


def test_momentum_may_begin_above_the_base() -> None:
    plan = MomentumPlan(start=0.95, warmup_steps=2)
    found = momenta(plan, horizon=9, count=3, base=0.85)
    assert found == pytest.approx([0.95, 0.9, 0.85], abs=1e-15)


# optimizers.md (30): no update for one of the two, or for either
@pytest.mark.parametrize(
    ("warmup_steps", "cooldown_steps", "horizon", "expected"),
    [
        (3, 6, 5, [0.0, 0.25, 0.5, 0.5, 0.25, 0.25]),  # the fall begins after the rise: 2 updates
        (5, 5, 5, [0.0, 0.15, 0.3, 0.45, 0.6, 0.25, 0.25]),  # no update is left for it
        (6, 1, 4, [0.0, 0.125, 0.25, 0.375, 0.5, 0.625, 0.25, 0.25]),  # the rise is never cut
        (0, 0, 3, [0.75, 0.75, 0.75, 0.25]),  # neither has an update
        (0, 9, 1, [0.25, 0.25]),  # one update in all
        (9, 9, 1, [0.0, 0.75 / 9]),
    ],
)
def test_rise_and_fall_of_momentum_never_overlap(
    warmup_steps, cooldown_steps, horizon, expected
) -> None:
    plan = MomentumPlan(
        start=0.0, warmup_steps=warmup_steps, end=0.25, cooldown_steps=cooldown_steps
    )
    assert momenta(plan, horizon=horizon, count=len(expected)) == pytest.approx(expected, abs=1e-15)


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ("constant", [1.0, 1.0, 1.0, 1.0, 1.0, 1.0]),
        ("lr", [0.3, 0.3, 0.3, 0.3, 0.3, 0.3]),
        ("linear", [1.0, 0.75, 0.5, 0.25, 0.0, 0.0]),
        ("cosine", [1.0, 0.5 + math.sqrt(0.125), 0.5, 0.5 - math.sqrt(0.125), 0.0, 0.0]),
    ],
)
def test_weight_decay_follows_its_shape_and_stays_at_its_end(shape, expected) -> None:
    found = [
        weight_decay_factor(s, shape=shape, horizon=4, lr_factor=0.3) for s in (0, 1, 2, 3, 4, 99)
    ]
    assert found == pytest.approx(expected, abs=1e-15)


def test_weight_decay_of_one_update_is_whole_and_then_gone() -> None:
    for shape in ("linear", "cosine"):
        found = [weight_decay_factor(s, shape=shape, horizon=1, lr_factor=0.3) for s in (0, 1, 2)]
        assert found == [1.0, 0.0, 0.0]
