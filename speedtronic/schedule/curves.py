"""Momentum and weight decay as pure functions of the position, like the learning rate's factor."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

WeightDecayShape: TypeAlias = Literal["constant", "lr", "cosine", "linear"]

# Record runs of modded-nanogpt warm momentum up over 300 updates and cool it down over the last 50.
_MAX_DEFAULT_MOMENTUM_WARMUP_STEPS = 300
_MAX_DEFAULT_MOMENTUM_COOLDOWN_STEPS = 50
_DEFAULT_DIVISOR = 10


@dataclass(frozen=True, kw_only=True)
class MomentumPlan:
    """How momentum departs from the optimizer's own at the start and the end of a run."""

    start: float | None = None
    """Momentum of the first update, in [0, 1); None begins with the optimizer's."""
    warmup_steps: int | None = None
    """Updates before it is the optimizer's; None derives them, see ``default_momentum_warmup``."""
    end: float | None = None
    """Momentum of the last update, in [0, 1); None ends with the optimizer's."""
    cooldown_steps: int | None = None
    """Last updates that fall; None derives them, see ``default_momentum_cooldown``."""

    @property
    def is_constant(self) -> bool:
        """Whether momentum stays the optimizer's own."""
        return self.start is None and self.end is None

    def resolve_warmup(self, horizon: int) -> int:
        """Return the updates of warm-up in force for a horizon, 0 without a start."""
        if self.start is None:
            return 0
        return default_momentum_warmup(horizon) if self.warmup_steps is None else self.warmup_steps

    def resolve_cooldown(self, horizon: int) -> int:
        """Return the updates of cool-down in force for a horizon, 0 without an end.

        The cool-down begins after the warm-up: where they would overlap, it is the shorter.
        """
        if self.end is None:
            return 0
        wanted = self.cooldown_steps
        wanted = default_momentum_cooldown(horizon) if wanted is None else wanted
        return min(wanted, max(0, horizon - self.resolve_warmup(horizon)))


def default_momentum_warmup(horizon: int) -> int:
    """Return the updates of a warm-up that names none: a tenth of the horizon, at most 300."""
    return min(_MAX_DEFAULT_MOMENTUM_WARMUP_STEPS, horizon // _DEFAULT_DIVISOR)


def default_momentum_cooldown(horizon: int) -> int:
    """Return the updates of a cool-down that names none: a tenth of the horizon, at most 50."""
    return min(_MAX_DEFAULT_MOMENTUM_COOLDOWN_STEPS, horizon // _DEFAULT_DIVISOR)


def momentum_at(position: int, *, base: float, horizon: int, plan: MomentumPlan) -> float:
    """Rise from the plan's start to the base, stay there, and fall to its end.

    With M updates of warm-up, update 1 uses the start and update M + 1 the base. With C updates of
    cool-down, the last before them uses the base, and the last before the horizon the end; later
    ones stay at the end.

    Args:
        position: Finished updates.
        base: The optimizer's own momentum.
        horizon: Position after the last update.
        plan: Both ends; without them the momentum is the base.

    Example:
        >>> plan = MomentumPlan(start=0.5, warmup_steps=2, end=0.25, cooldown_steps=2)
        >>> [momentum_at(s, base=0.75, horizon=6, plan=plan) for s in range(8)]
        [0.5, 0.625, 0.75, 0.75, 0.5, 0.25, 0.25, 0.25]
    """
    warmup_steps = plan.resolve_warmup(horizon)
    if plan.start is not None and position < warmup_steps:
        return plan.start + (base - plan.start) * position / warmup_steps
    if plan.end is None:
        return base
    if position >= horizon:
        return plan.end
    cooldown_steps = plan.resolve_cooldown(horizon)
    num_cooled = position + 1 - (horizon - cooldown_steps)
    return base + (plan.end - base) * num_cooled / cooldown_steps if num_cooled > 0 else base


def weight_decay_factor(
    position: int, *, shape: WeightDecayShape, horizon: int, lr_factor: float
) -> float:
    """Return the factor on the base weight decay.

    Args:
        position: Finished updates.
        shape: ``constant`` stays at 1; ``lr`` is the learning rate's factor, so that what an update
            takes off a weight follows its square; ``cosine`` (half of one) and ``linear`` fall from
            1 to 0, without a warm-up.
        horizon: Position from which a falling factor is 0.
        lr_factor: The factor on the learning rate at this position.

    Example:
        >>> weight_decay_factor(25, shape="linear", horizon=100, lr_factor=0.5)
        0.75
    """
    if shape == "constant":
        return 1.0
    if shape == "lr":
        return lr_factor
    progress = min(1.0, position / horizon)
    return 1 - progress if shape == "linear" else 0.5 * (1 + math.cos(math.pi * progress))
