"""What every schedule keeps, for any settings."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from speedtronic.schedule.curves import MomentumPlan, momentum_at, weight_decay_factor
from speedtronic.schedule.factors import (
    constant_factor,
    cosine_factor,
    linear_factor,
    wsd_factor,
)

settings = st.fixed_dictionaries(
    {
        "warmup_steps": st.integers(0, 2000),
        "horizon": st.integers(1, 2000),
        "min_ratio": st.floats(0, 1),
    }
)
falls = st.fixed_dictionaries(
    {
        "decay_ratio": st.floats(0, 1, exclude_min=True),
        "shape": st.sampled_from(["linear", "1-sqrt", "cosine"]),
    }
)
positions = st.integers(0, 5000)
momenta = st.floats(0, 0.999)
plans = st.builds(
    MomentumPlan,
    start=st.none() | momenta,
    warmup_steps=st.none() | st.integers(0, 2000),
    end=st.none() | momenta,
    cooldown_steps=st.none() | st.integers(0, 2000),
)


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


# optimizers.md (28) and (30), for any settings
@given(settings, falls)
def test_wsd_starts_above_zero_reaches_the_peak_and_ends_at_the_floor_for_ever(
    values: dict, fall: dict
) -> None:
    warmup_steps, horizon = values["warmup_steps"], values["horizon"]
    factors = [wsd_factor(s, **values, **fall) for s in range(max(warmup_steps, horizon) + 3)]

    assert 0 < factors[0] <= 1
    if warmup_steps:
        assert factors[0] == 1 / warmup_steps
        assert factors[warmup_steps - 1] == 1.0
    after = factors[warmup_steps:]
    assert all(values["min_ratio"] - 1e-15 <= factor <= 1 for factor in after)
    assert all(later <= now + 1e-15 for now, later in itertools.pairwise(after))
    assert factors[horizon - 1] > 0
    assert factors[max(warmup_steps, horizon) :] == [values["min_ratio"]] * 3


@given(settings, falls)
def test_wsd_falls_for_its_part_of_the_horizon_and_never_in_the_warmup(
    values: dict, fall: dict
) -> None:
    values = {**values, "min_ratio": 0.0}
    warmup_steps, horizon = values["warmup_steps"], values["horizon"]
    after = [wsd_factor(s, **values, **fall) for s in range(warmup_steps, horizon)]
    num_falling = sum(factor < 1 for factor in after)
    assert num_falling == min(len(after), round(horizon * fall["decay_ratio"]))


@given(positions, momenta, st.integers(1, 2000), plans)
def test_momentum_stays_between_the_base_and_its_ends(
    position: int, base: float, horizon: int, plan: MomentumPlan
) -> None:
    found = momentum_at(position, base=base, horizon=horizon, plan=plan)
    known = [value for value in (base, plan.start, plan.end) if value is not None]
    assert min(known) - 1e-15 <= found <= max(known) + 1e-15


@given(momenta, st.integers(1, 2000), plans)
def test_momentum_begins_and_ends_where_the_plan_says(
    base: float, horizon: int, plan: MomentumPlan
) -> None:
    warmup_steps, cooldown_steps = plan.resolve_warmup(horizon), plan.resolve_cooldown(horizon)
    first = momentum_at(0, base=base, horizon=horizon, plan=plan)
    last = momentum_at(horizon - 1, base=base, horizon=horizon, plan=plan)
    if warmup_steps:
        assert first == plan.start
    if cooldown_steps:
        assert abs(last - plan.end) < 1e-15
        assert warmup_steps + cooldown_steps <= horizon
    if not warmup_steps and not cooldown_steps:
        assert first == last == base


@given(
    positions,
    st.integers(1, 2000),
    st.sampled_from(["constant", "lr", "cosine", "linear"]),
    st.floats(0, 1),
)
def test_weight_decay_stays_between_zero_and_its_base(
    position: int, horizon: int, shape: str, lr_factor: float
) -> None:
    factor = weight_decay_factor(position, shape=shape, horizon=horizon, lr_factor=lr_factor)
    assert 0 <= factor <= 1
