"""Settings of the schedule. Position 0 is in force before the first update."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from speedtronic.config.factory import Factory
from speedtronic.core.errors import ConfigError
from speedtronic.core.settings import Settings

if TYPE_CHECKING:
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LambdaLR, LRScheduler

    from speedtronic.schedule.curves import MomentumPlan

Kind = Literal["cosine", "constant", "linear", "wsd"]
Momentum = Annotated[float, Field(ge=0, lt=1)]
Updates = Annotated[int, Field(ge=0)]


class SchedulerSettings(Settings, ABC):
    """What every choice of ``scheduler`` can do."""

    section: ClassVar[str] = "scheduler"

    @abstractmethod
    def build(self, *, optimizer: Optimizer, max_steps: int) -> LRScheduler:
        """Build the schedule.

        Args:
            optimizer: Whose learning rates are scaled.
            max_steps: The run's target, the horizon of a schedule that names none.
        """


class FactorScheduleSettings(SchedulerSettings):
    """Warm-up, then a factor between 1 and a floor that depends on the step alone."""

    kind: ClassVar[Kind]
    curve_fields: ClassVar[tuple[str, ...]] = ()
    """Fields of a class of its own that shape its curve; passed on under their names."""

    warmup_steps: Updates | None = None
    """Updates of linear warm-up; null: the smaller of 100 and a tenth of the horizon."""
    max_steps: Annotated[int, Field(ge=1)] | None = None
    """Horizon, in updates, at which the floor is reached; null: the run's target."""
    min_lr_ratio: Annotated[float, Field(ge=0, le=1)] = 0.1
    """Floor, as a part of the peak learning rate; constant never comes down to it."""
    momentum_start: Momentum | None = None
    """Momentum of the first update, in [0, 1); rises to the optimizer's; null: constant."""
    momentum_warmup_steps: Updates | None = None
    """Updates of that rise; null: the smaller of 300 and a tenth of the horizon."""
    momentum_end: Momentum | None = None
    """Momentum of the last update, in [0, 1); falls linearly to it; null: constant."""
    momentum_cooldown_steps: Updates | None = None
    """Updates of that fall, before the horizon; null: the smaller of 50 and a tenth of it."""
    weight_decay_shape: Literal["constant", "lr", "cosine", "linear"] = "constant"
    """Of the weight decay: constant, with the rate (lr), or from 1 to 0 over the horizon."""

    @model_validator(mode="after")
    def _check_momentum(self) -> Self:
        for steps, end, example in (
            ("momentum_warmup_steps", "momentum_start", "0.85"),
            ("momentum_cooldown_steps", "momentum_end", "0.85"),
        ):
            if getattr(self, steps) is not None and getattr(self, end) is None:
                raise ConfigError(
                    f"scheduler.{steps} must be null without scheduler.{end}, got"
                    f" {getattr(self, steps)}; set scheduler.{end}, such as {example}"
                )
        return self

    def resolve_horizon(self, max_steps: int) -> int:
        """Return the horizon in force for a run with this target, in updates."""
        return max_steps if self.max_steps is None else self.max_steps

    def resolve_warmup(self, max_steps: int) -> int:
        """Return the warm-up in force for a run with this target, in updates."""
        from speedtronic.schedule.factors import default_warmup

        if self.warmup_steps is not None:
            return self.warmup_steps
        return default_warmup(self.resolve_horizon(max_steps))

    def momentum_plan(self) -> MomentumPlan:
        """Return how momentum moves."""
        from speedtronic.schedule.curves import MomentumPlan

        return MomentumPlan(
            start=self.momentum_start,
            warmup_steps=self.momentum_warmup_steps,
            end=self.momentum_end,
            cooldown_steps=self.momentum_cooldown_steps,
        )

    def build(self, *, optimizer: Optimizer, max_steps: int) -> LambdaLR:
        """Build the schedule; a warm-up that is cut off and updates at rate 0 are warned of."""
        from speedtronic.schedule.build import build_schedule

        horizon = self.resolve_horizon(max_steps)
        if horizon < max_steps and self.min_lr_ratio == 0 and self.kind != "constant":
            warnings.warn(
                f"scheduler.max_steps ({horizon}) is below the run's target ({max_steps}) and"
                " scheduler.min_lr_ratio is 0: the updates after it change nothing",
                stacklevel=2,
            )
        return build_schedule(
            optimizer,
            kind=self.kind,
            warmup_steps=self.warmup_steps,
            horizon=horizon,
            min_ratio=self.min_lr_ratio,
            momentum=self.momentum_plan(),
            weight_decay_shape=self.weight_decay_shape,
            **{name: getattr(self, name) for name in self.curve_fields},
        )


class CosineSettings(FactorScheduleSettings):
    """Half a cosine from the peak to the floor."""

    kind: ClassVar[Kind] = "cosine"


class ConstantSettings(FactorScheduleSettings):
    """The peak after warm-up, for ever."""

    kind: ClassVar[Kind] = "constant"


class LinearSettings(FactorScheduleSettings):
    """A straight line from the peak to the floor."""

    kind: ClassVar[Kind] = "linear"


class WSDSettings(FactorScheduleSettings):
    """The peak after warm-up, then a fall to the floor over the last part of the horizon."""

    kind: ClassVar[Kind] = "wsd"
    curve_fields: ClassVar[tuple[str, ...]] = ("decay_ratio", "decay_shape")

    min_lr_ratio: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Floor, as a part of the peak learning rate; the last update is still above it."""
    decay_ratio: Annotated[float, Field(gt=0, le=1)] = 0.6
    """Part of the horizon that falls, in (0, 1]; it never begins within the warm-up."""
    decay_shape: Literal["linear", "1-sqrt", "cosine"] = "linear"
    """How it falls: a straight line, one minus the root of the progress, or half a cosine."""


class ForeignSchedulerSettings(SchedulerSettings):
    """A schedule class of ``torch.optim.lr_scheduler`` or the user's."""

    factory: Factory
    """The class or function and its arguments."""

    def build(self, *, optimizer: Optimizer, max_steps: int) -> LRScheduler:
        """Call the class; ``max_steps`` is passed when its signature names it."""
        offered = {"optimizer": optimizer, "max_steps": max_steps}
        schedule: LRScheduler = self.factory.call(section=self.section, offered=offered)
        return schedule
