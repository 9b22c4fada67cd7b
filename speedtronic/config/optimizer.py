"""Settings of the optimizer: AdamW, any ``torch.optim`` class, or the user's own.

Those with Muon are in ``config.muon``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from speedtronic.config.factory import Factory
from speedtronic.core.errors import ConfigError
from speedtronic.core.settings import Settings

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.optim import Optimizer

    from speedtronic.optim.cautious import Caution

Beta = Annotated[float, Field(ge=0, lt=1)]


class OptimizerSettings(Settings, ABC):
    """What every choice of ``optimizer`` has."""

    section: ClassVar[str] = "optimizer"

    decay: Literal["matrices", "all"] = "matrices"
    """What weight decay shrinks: matrices (no norm, bias or embedding), or all parameters."""
    grad_clip: Annotated[float, Field(gt=0)] | None = 1.0
    """Largest norm of the whole gradient; null: no clipping."""

    @abstractmethod
    def build(self, *, model: nn.Module, device: torch.device) -> Optimizer:
        """Build the optimizer over the model's trainable parameters, each exactly once."""


class AdamWFields(OptimizerSettings):
    """What every choice with AdamW in it has."""

    lr: Annotated[float, Field(gt=0)] = 1e-3
    """Peak learning rate, before the schedule's factor."""
    betas: Annotated[tuple[Beta, Beta], Field(strict=False)] = (0.9, 0.95)
    """Decay of the two moment averages per update, each in [0, 1)."""
    eps: Annotated[float, Field(gt=0)] = 1e-8
    """Added to the root of the second moment."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.1
    """Shrinkage per update, times the learning rate."""
    cautious: bool | Literal["wd", "update"] = False
    """What moves only where it agrees with the gradient: the update (true) or the decay (wd)."""
    fused: bool | None = None
    """One kernel for all parameters; null: wherever it works, CPU included."""

    @model_validator(mode="after")
    def _check_fused(self) -> Self:
        if self.cautious and self.fused:
            raise ConfigError(
                "optimizer.fused must be null or false with optimizer.cautious, got true; torch's"
                " kernel has no mask: leave it out"
            )
        return self


class AdamWSettings(AdamWFields):
    """Adam with decoupled weight decay."""

    def build(self, *, model: nn.Module, device: torch.device) -> Optimizer:
        """Build AdamW with one group for decayed matrices and one for the rest."""
        from speedtronic.optim.adamw import build_adamw

        return build_adamw(
            model,
            lr=self.lr,
            betas=self.betas,
            eps=self.eps,
            weight_decay=self.weight_decay,
            decay=self.decay,
            cautious=resolve_caution(self.cautious, default="update"),
            fused=self.fused,
            device=device,
        )


class ForeignOptimizerSettings(OptimizerSettings):
    """An optimizer class of ``torch.optim`` or the user's, given the same parameter groups."""

    factory: Factory
    """The class or function and its arguments."""
    cautious: bool = False
    """Whether what a step changes against the sign of the gradient is undone."""

    def build(self, *, model: nn.Module, device: torch.device) -> Optimizer:
        """Call the class with the model's parameter groups.

        A function whose signature names ``model`` (and ``device``) gets those instead.
        """
        from speedtronic.optim.cautious import make_cautious
        from speedtronic.optim.foreign import build_foreign_optimizer

        optimizer: Optimizer
        if self.factory.names("model"):
            offered = {"model": model, "device": device}
            optimizer = self.factory.call(section=self.section, offered=offered)
        else:
            optimizer = build_foreign_optimizer(
                self.factory.resolve(),
                model,
                arguments=self.factory.build_arguments(section=self.section),
                decay=self.decay,
            )
        if self.cautious:
            make_cautious(optimizer)
        return optimizer


def resolve_caution(
    setting: bool | Literal["wd", "update"],  # noqa: FBT001 - the value of a setting
    *,
    default: Caution,
) -> Caution | None:
    """Return what ``cautious`` means for an algorithm; true is what suits that one."""
    if setting is True:
        return default
    return setting or None
