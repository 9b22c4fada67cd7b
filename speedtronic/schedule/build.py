"""The live schedule of an optimizer, and putting it in force after a restore."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Literal, TypeAlias

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from speedtronic.schedule.curves import (
    MomentumPlan,
    WeightDecayShape,
    momentum_at,
    weight_decay_factor,
)
from speedtronic.schedule.factors import (
    DecayShape,
    constant_factor,
    cosine_factor,
    default_warmup,
    linear_factor,
    wsd_factor,
)
from speedtronic.schedule.moving import Curve, FactorSchedule, base_key, restore_bases

ScheduleKind: TypeAlias = Literal["cosine", "constant", "linear", "wsd"]
_Factor: TypeAlias = Callable[[int], float]

_CONSTANT_MOMENTUM = MomentumPlan()


def build_schedule(  # noqa: PLR0913 - one argument per setting
    optimizer: Optimizer,
    *,
    kind: ScheduleKind,
    warmup_steps: int | None = None,
    horizon: int,
    min_ratio: float = 0.1,
    decay_ratio: float = 0.6,
    decay_shape: DecayShape = "linear",
    momentum: MomentumPlan = _CONSTANT_MOMENTUM,
    weight_decay_shape: WeightDecayShape = "constant",
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
        decay_ratio: Part of the horizon that falls, in (0, 1]; of ``wsd`` alone.
        decay_shape: How it falls; of ``wsd`` alone.
        momentum: How the momentum of the groups that have one moves.
        weight_decay_shape: How the weight decay of the groups that have one moves.

    Returns:
        A plain LambdaLR while momentum and weight decay stay constant, else a FactorSchedule.
    """
    if warmup_steps is None:
        warmup_steps = default_warmup(horizon)
    _warn_of_a_cut_warmup("warmup_steps", "learning rate", warmup_steps, horizon)
    momentum_warmup_steps = momentum.resolve_warmup(horizon)
    _warn_of_a_cut_warmup("momentum_warmup_steps", "momentum", momentum_warmup_steps, horizon)
    if kind == "wsd":
        factor = _wsd_function(warmup_steps, horizon, min_ratio, decay_ratio, decay_shape)
    else:
        factor = _factor_function(kind, warmup_steps, horizon, min_ratio)
    curves: dict[str, Curve] = {}
    if not momentum.is_constant:
        curves["momentum"] = _momentum_curve(momentum, horizon)
        key = "momentum_end" if momentum.start is None else "momentum_start"
        _warn_where_nothing_moves(optimizer, "momentum", setting=key)
    if weight_decay_shape != "constant":
        curves["weight_decay"] = _weight_decay_curve(weight_decay_shape, horizon, factor)
        _warn_where_nothing_moves(optimizer, "weight_decay", setting="weight_decay_shape")
    if not curves:
        return LambdaLR(optimizer, factor)
    return FactorSchedule(optimizer, factor, curves=curves)


def reimpose_schedule(schedule: LRScheduler) -> None:
    """Put learning rate, momentum and weight decay of the schedule's position into the optimizer.

    Needed after a restore or a change of a base: loading an optimizer brings back its old values,
    building a schedule sets position 0, and loading one sets nothing at all. What an earlier
    schedule moved and this one does not goes back to its base.

    Args:
        schedule: Ours. One of another class, which may compute each rate from the last, has its
            rates scaled by what its base rates change.
    """
    groups = schedule.optimizer.param_groups
    old_bases = list(getattr(schedule, "base_lrs", ()))
    schedule.base_lrs = [group.get("initial_lr", group["lr"]) for group in groups]
    if isinstance(schedule, LambdaLR):
        for group, factor, base in zip(groups, schedule.lr_lambdas, schedule.base_lrs, strict=True):
            group["lr"] = base * factor(schedule.last_epoch)
    else:
        for group, old, new in zip(groups, old_bases, schedule.base_lrs, strict=False):
            if "initial_lr" in group and old:
                group["lr"] *= new / old
    schedule._last_lr = [group["lr"] for group in groups]  # noqa: SLF001 - torch has no public way
    restore_bases(schedule.optimizer)
    if isinstance(schedule, FactorSchedule):
        schedule.impose()


def match_base_rates(schedule: LRScheduler) -> None:
    """Give a restored schedule the base learning rates of its optimizer's groups.

    A schedule saves them by position; the groups may have come back in another order.
    """
    groups = schedule.optimizer.param_groups
    schedule.base_lrs = [group.get("initial_lr", group["lr"]) for group in groups]


def _factor_function(
    kind: Literal["cosine", "constant", "linear"],
    warmup_steps: int,
    horizon: int,
    min_ratio: float,
) -> _Factor:
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


def _wsd_function(
    warmup_steps: int, horizon: int, min_ratio: float, decay_ratio: float, shape: DecayShape
) -> _Factor:
    def warm_stable_decaying(position: int) -> float:
        return wsd_factor(
            position,
            warmup_steps=warmup_steps,
            horizon=horizon,
            min_ratio=min_ratio,
            decay_ratio=decay_ratio,
            shape=shape,
        )

    return warm_stable_decaying


def _momentum_curve(plan: MomentumPlan, horizon: int) -> Curve:
    def momentum(position: int, base: float) -> float:
        return momentum_at(position, base=base, horizon=horizon, plan=plan)

    return momentum


def _weight_decay_curve(shape: WeightDecayShape, horizon: int, factor: _Factor) -> Curve:
    def weight_decay(position: int, base: float) -> float:
        return base * weight_decay_factor(
            position, shape=shape, horizon=horizon, lr_factor=factor(position)
        )

    return weight_decay


def _warn_of_a_cut_warmup(setting: str, subject: str, warmup_steps: int, horizon: int) -> None:
    if warmup_steps > horizon:
        warnings.warn(
            f"scheduler.{setting} ({warmup_steps}) is above the horizon ({horizon}): "
            f"the full {subject} is never reached",
            stacklevel=3,
        )


def _warn_where_nothing_moves(optimizer: Optimizer, key: str, *, setting: str) -> None:
    if not any(group.get(base_key(key), group.get(key)) for group in optimizer.param_groups):
        warnings.warn(
            f"scheduler.{setting} has nothing to move: no group of {type(optimizer).__name__} has"
            f" a {key} above 0",
            stacklevel=3,
        )
