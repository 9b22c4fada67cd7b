"""What every schedule keeps, for any settings."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from speedtronic.schedule.factors import constant_factor, cosine_factor, linear_factor

settings = st.fixed_dictionaries(
    {
        "warmup_steps": st.integers(0, 2000),
        "horizon": st.integers(1, 2000),
        "min_ratio": st.floats(0, 1),
    }
)
positions = st.integers(0, 5000)


@given(positions, settings)
def test_factors_are_above_zero_in_the_warmup_and_between_floor_and_one_after(
    position: int, values: dict
) -> None:
    for factor_of in (cosine_factor, linear_factor):
        factor = factor_of(position, **values)
        if position < values["warmup_steps"]:
            assert 1e-8 <= factor <= 1
        else:
            assert values["min_ratio"] - 1e-15 <= factor <= 1


@given(positions, settings)
def test_factors_rise_in_the_warmup_and_never_after(position: int, values: dict) -> None:
    for factor_of in (cosine_factor, linear_factor):
        now, following = factor_of(position, **values), factor_of(position + 1, **values)
        if position + 1 < values["warmup_steps"]:
            assert following > now
        elif position >= values["warmup_steps"]:
            assert following <= now + 1e-15


@given(st.integers(0, 500), st.integers(0, 500))
def test_constant_is_one_after_the_warmup(warmup_steps: int, later: int) -> None:
    assert constant_factor(warmup_steps + later, warmup_steps=warmup_steps) == 1.0


@given(settings)
def test_the_full_rate_is_reached_at_the_end_of_the_warmup(values: dict) -> None:
    if values["warmup_steps"] > 0:
        assert cosine_factor(values["warmup_steps"] - 1, **values) == 1.0
    assert abs(cosine_factor(values["warmup_steps"], **values) - 1.0) < 1e-15
