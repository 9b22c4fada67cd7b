"""The schedule formulas, with their values written out."""

from __future__ import annotations

import math

import pytest

from speedtronic.schedule.factors import (
    constant_factor,
    cosine_factor,
    default_warmup,
    linear_factor,
)


@pytest.mark.parametrize(
    ("horizon", "warmup"),
    [(1, 0), (9, 0), (10, 1), (300, 30), (999, 99), (1000, 100), (100_000, 100)],
)
def test_the_default_warmup_is_a_tenth_and_at_most_a_hundred(horizon: int, warmup: int) -> None:
    assert default_warmup(horizon) == warmup


@pytest.mark.parametrize(
    ("position", "factor"), [(0, 0.25), (1, 0.5), (2, 0.75), (3, 1.0), (4, 1.0), (99, 1.0)]
)
def test_constant_rises_by_a_wth_and_stays(position: int, factor: float) -> None:
    assert constant_factor(position, warmup_steps=4) == factor


@pytest.mark.parametrize(
    ("position", "factor"),
    [
        (0, 0.5),
        (1, 1.0),
        (2, 1.0),
        (4, 0.1 + 0.9 * 0.5 * (1 + math.sqrt(0.5))),  # a quarter of the way: cos(pi / 4)
        (6, 0.55),
        (8, 0.1 + 0.9 * 0.5 * (1 - math.sqrt(0.5))),
        (10, 0.1),
        (11, 0.1),
        (1000, 0.1),
    ],
)
def test_cosine_falls_to_the_floor_and_stays(position: int, factor: float) -> None:
    found = cosine_factor(position, warmup_steps=2, horizon=10, min_ratio=0.1)
    assert found == pytest.approx(factor, abs=1e-15)


@pytest.mark.parametrize(
    ("position", "factor"),
    [(0, 0.5), (1, 1.0), (2, 1.0), (4, 0.8), (6, 0.6), (9, 0.3), (10, 0.2), (50, 0.2)],
)
def test_linear_falls_to_the_floor_and_stays(position: int, factor: float) -> None:
    found = linear_factor(position, warmup_steps=2, horizon=10, min_ratio=0.2)
    assert found == pytest.approx(factor, abs=1e-15)


def test_without_warmup_the_first_position_has_the_full_rate() -> None:
    assert cosine_factor(0, warmup_steps=0, horizon=10, min_ratio=0.1) == 1.0
    assert linear_factor(0, warmup_steps=0, horizon=10, min_ratio=0.1) == 1.0
    assert constant_factor(0, warmup_steps=0) == 1.0


def test_a_horizon_of_one_has_the_full_rate_and_then_the_floor() -> None:
    assert cosine_factor(0, warmup_steps=0, horizon=1, min_ratio=0.1) == 1.0
    assert cosine_factor(1, warmup_steps=0, horizon=1, min_ratio=0.1) == pytest.approx(0.1)


def test_a_warmup_above_the_horizon_goes_on_rising_past_it() -> None:
    factors = [cosine_factor(s, warmup_steps=8, horizon=4, min_ratio=0.0) for s in range(11)]
    assert factors == [0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875, 1.0, 1.0, 0.0, 0.0]


def test_a_floor_of_one_is_constant() -> None:
    assert [cosine_factor(s, warmup_steps=0, horizon=3, min_ratio=1.0) for s in range(4)] == [
        1.0
    ] * 4


def test_the_first_factor_of_a_huge_warmup_is_not_below_its_least() -> None:
    assert constant_factor(0, warmup_steps=10**9) == 1e-8
