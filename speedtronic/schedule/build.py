"""The live schedule of an optimizer, and putting it in force after a restore."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Literal, TypeAlias

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from speedtronic.schedule.factors import (
    constant_factor,
    cosine_factor,
    default_warmup,
    linear_factor,
)

ScheduleKind: TypeAlias = Literal["cosine", "constant", "linear"]


def build_schedule(
    optimizer: Optimizer,
    *,
    kind: ScheduleKind,
    warmup_steps: int | None = None,
    horizon: int,
    min_ratio: float = 0.1,
) -> LambdaLR:
    """Build a schedule that advances once per optimizer update, with position 0 in force.

    What a checkpoint holds of it is its position and the base learning rates; the curve itself
    is always the one that was built.

    Args:
        optimizer: Its learning rates are multiplied, group by group.
        kind: Shape after the warm-up.
        warmup_steps: None derives them from the horizon, see ``default_warmup``.
        horizon: Update at which the floor is reached.
        min_ratio: The floor; without effect on ``constant``.
    """
    if warmup_steps is None:
        warmup_steps = default_warmup(horizon)
    elif warmup_steps > horizon:
        warnings.warn(
            f"scheduler.warmup_steps ({warmup_steps}) is above the horizon ({horizon}): "
            "the full learning rate is never reached",
            stacklevel=2,
        )
    return LambdaLR(optimizer, _factor_function(kind, warmup_steps, horizon, min_ratio))


def reimpose_schedule(schedule: LambdaLR) -> None:
    """Put the schedule's learning rates for its present position into the optimizer.

    Needed after a restore or a change of a base rate: loading an optimizer brings back its old
    rates, building a schedule sets position 0, and loading one sets no rate at all.
    """
    groups = schedule.optimizer.param_groups
    schedule.base_lrs = [group["initial_lr"] for group in groups]
    for group, factor, base_lr in zip(groups, schedule.lr_lambdas, schedule.base_lrs, strict=True):
        group["lr"] = base_lr * factor(schedule.last_epoch)
    schedule._last_lr = [group["lr"] for group in groups]  # noqa: SLF001 - torch has no public way


def _factor_function(
    kind: ScheduleKind, warmup_steps: int, horizon: int, min_ratio: float
) -> Callable[[int], float]:
    # Plain functions: LambdaLR saves the attributes of any other callable, and a restored horizon
    # would then override the configured one.
    if kind == "constant":

        def constant(position: int) -> float:
            return constant_factor(position, warmup_steps=warmup_steps)

        return constant
    shape = {"cosine": cosine_factor, "linear": linear_factor}[kind]

    def decaying(position: int) -> float:
        return shape(position, warmup_steps=warmup_steps, horizon=horizon, min_ratio=min_ratio)

    return decaying
