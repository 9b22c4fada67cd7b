"""The schedule formulas, with their values written out."""

from __future__ import annotations

import math

import pytest

from speedtronic.schedule.factors import (
    constant_factor,
    cosine_factor,
    default_warmup,
    linear_factor,
    wsd_factor,
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


# optimizers.md (28): first above 0 and 1/W, the peak at update W, the last above 0, then the floor.
@pytest.mark.parametrize(
    ("shape", "falling"),
    [
        ("linear", [0.8, 0.6, 0.4]),
        ("1-sqrt", [0.6, 0.2 + 0.8 * (1 - math.sqrt(0.5)), 0.2 + 0.8 * (1 - math.sqrt(0.75))]),
        ("cosine", [0.2 + 0.4 * (1 + math.sqrt(0.5)), 0.6, 0.2 + 0.4 * (1 - math.sqrt(0.5))]),
    ],
)
def test_wsd_rises_stays_and_falls_towards_the_update_after_the_last(shape, falling) -> None:
    # Progress 1/4, 2/4 and 3/4 in the last three of 8 updates; 4/4 would be the ninth.
    settings = {"warmup_steps": 2, "horizon": 8, "min_ratio": 0.2, "decay_ratio": 0.375}
    factors = [wsd_factor(s, **settings, shape=shape) for s in range(12)]
    expected = [0.5, 1.0, 1.0, 1.0, 1.0, *falling, 0.2, 0.2, 0.2, 0.2]
    assert factors == pytest.approx(expected, abs=1e-15)


@pytest.mark.parametrize("shape", ["linear", "1-sqrt", "cosine"])
@pytest.mark.parametrize("horizon", [2, 10, 1_000_000])
def test_the_last_update_of_wsd_to_zero_still_learns(shape, horizon) -> None:
    settings = {"warmup_steps": 0, "horizon": horizon, "min_ratio": 0.0, "decay_ratio": 0.6}
    # One part in D + 1 is left of a line, about half of that of the root, its square of a cosine.
    least = {"linear": 1.0, "1-sqrt": 0.5, "cosine": 1 / horizon}[shape] / (horizon + 1)
    assert wsd_factor(horizon - 1, **settings, shape=shape) > least
    assert wsd_factor(horizon, **settings, shape=shape) == 0.0


def test_wsd_with_a_ratio_of_one_falls_from_the_end_of_the_warmup() -> None:
    settings = {"horizon": 4, "min_ratio": 0.0, "decay_ratio": 1.0, "shape": "linear"}
    assert [wsd_factor(s, warmup_steps=1, **settings) for s in range(5)] == [
        1.0,
        0.75,
        0.5,
        0.25,
        0.0,
    ]
    found = [wsd_factor(s, warmup_steps=0, **settings) for s in range(5)]
    assert found == pytest.approx([0.8, 0.6, 0.4, 0.2, 0.0], abs=1e-15)


# optimizers.md (30): warm-up above the horizon, one update in all, no warm-up, none that falls.
# Also seen elsewhere: a ZeroDivisionError with decay_steps=0.
@pytest.mark.parametrize(
    ("warmup_steps", "horizon", "decay_ratio", "factors"),
    [
        (6, 4, 0.5, [1 / 6, 2 / 6, 3 / 6, 4 / 6, 5 / 6, 1.0, 0.25, 0.25]),  # above the horizon
        (4, 4, 1.0, [0.25, 0.5, 0.75, 1.0, 0.25]),  # all of it: nothing is left that could fall
        (0, 4, 0.1, [1.0, 1.0, 1.0, 1.0, 0.25]),  # round(0.4) is 0
        (0, 1, 0.4, [1.0, 0.25]),  # round(0.4) is 0
        (0, 1, 1.0, [0.625, 0.25]),  # half of the way to the floor, in the only update
        (1, 1, 1.0, [1.0, 0.25]),
    ],
)
def test_wsd_has_a_value_at_every_edge(warmup_steps, horizon, decay_ratio, factors) -> None:
    settings = {"min_ratio": 0.25, "decay_ratio": decay_ratio, "shape": "linear"}
    found = [
        wsd_factor(s, warmup_steps=warmup_steps, horizon=horizon, **settings)
        for s in range(len(factors))
    ]
    assert found == pytest.approx(factors, abs=1e-15)


def test_without_warmup_the_first_position_has_the_full_rate() -> None:
    assert cosine_factor(0, warmup_steps=0, horizon=10, min_ratio=0.1) == 1.0
    assert linear_factor(0, warmup_steps=0, horizon=10, min_ratio=0.1) == 1.0
    assert constant_factor(0, warmup_steps=0) == 1.0


def test_a_horizon_of_one_has_the_full_rate_and_then_the_floor() -> None:
    assert cosine_factor(0, warmup_steps=0, horizon=1, min_ratio=0.1) == 1.0
    assert cosine_factor(1, warmup_steps=0, horizon=1, min_ratio=0.1) == pytest.approx(0.1)


def test_a_line_and_a_cosine_without_an_update_after_the_warmup_do_not_divide_by_zero() -> None:
    # seen elsewhere: ZeroDivisionError at decay_steps=0; 4 of 4 updates are warm-up
    for factor_of in (cosine_factor, linear_factor):
        found = [factor_of(s, warmup_steps=4, horizon=4, min_ratio=0.1) for s in range(6)]
        assert found == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0, 0.1])


def test_a_warmup_above_the_horizon_goes_on_rising_past_it() -> None:
    factors = [cosine_factor(s, warmup_steps=8, horizon=4, min_ratio=0.0) for s in range(11)]
    assert factors == [0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875, 1.0, 1.0, 0.0, 0.0]


def test_a_floor_of_one_is_constant() -> None:
    assert [cosine_factor(s, warmup_steps=0, horizon=3, min_ratio=1.0) for s in range(4)] == [
        1.0
    ] * 4


def test_the_first_factor_of_a_huge_warmup_is_not_below_its_least() -> None:
    assert constant_factor(0, warmup_steps=10**9) == 1e-8
