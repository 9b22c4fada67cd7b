"""Settings of the learning-rate schedule. Position 0 is in force before the first update."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from speedtronic.config.factory import Factory
from speedtronic.core.settings import Settings

if TYPE_CHECKING:
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LambdaLR, LRScheduler


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

    kind: ClassVar[Literal["cosine", "constant", "linear"]]

    warmup_steps: Annotated[int, Field(ge=0)] | None = None
    """Updates of linear warm-up; null: the smaller of 100 and a tenth of the horizon."""
    max_steps: Annotated[int, Field(ge=1)] | None = None
    """Horizon, in updates, at which the floor is reached; null: the run's target."""
    min_lr_ratio: Annotated[float, Field(ge=0, le=1)] = 0.1
    """Floor, as a part of the peak learning rate; constant never comes down to it."""

    def resolve_horizon(self, max_steps: int) -> int:
        """Return the horizon in force for a run with this target, in updates."""
        return max_steps if self.max_steps is None else self.max_steps

    def resolve_warmup(self, max_steps: int) -> int:
        """Return the warm-up in force for a run with this target, in updates."""
        from speedtronic.schedule.factors import default_warmup

        if self.warmup_steps is not None:
            return self.warmup_steps
        return default_warmup(self.resolve_horizon(max_steps))

    def build(self, *, optimizer: Optimizer, max_steps: int) -> LambdaLR:
        """Build the schedule; a warm-up that the horizon cuts off is warned of."""
        from speedtronic.schedule.build import build_schedule

        return build_schedule(
            optimizer,
            kind=self.kind,
            warmup_steps=self.warmup_steps,
            horizon=self.resolve_horizon(max_steps),
            min_ratio=self.min_lr_ratio,
        )


class CosineSettings(FactorScheduleSettings):
    """Half a cosine from the peak to the floor."""

    kind: ClassVar[Literal["cosine", "constant", "linear"]] = "cosine"


class ConstantSettings(FactorScheduleSettings):
    """The peak after warm-up, for ever."""

    kind: ClassVar[Literal["cosine", "constant", "linear"]] = "constant"


class LinearSettings(FactorScheduleSettings):
    """A straight line from the peak to the floor."""

    kind: ClassVar[Literal["cosine", "constant", "linear"]] = "linear"


class ForeignSchedulerSettings(SchedulerSettings):
    """A schedule class of ``torch.optim.lr_scheduler`` or the user's."""

    factory: Factory
    """The class or function and its arguments."""

    def build(self, *, optimizer: Optimizer, max_steps: int) -> LRScheduler:
        """Call the class; ``max_steps`` is passed when its signature names it."""
        offered = {"optimizer": optimizer, "max_steps": max_steps}
        schedule: LRScheduler = self.factory.call(section=self.section, offered=offered)
        return schedule
