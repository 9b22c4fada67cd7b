"""Settings of the optimizer: AdamW, any ``torch.optim`` class, or the user's own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from speedtronic.config.factory import Factory
from speedtronic.core.settings import Settings

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.optim import Optimizer

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


class AdamWSettings(OptimizerSettings):
    """Adam with decoupled weight decay."""

    lr: Annotated[float, Field(gt=0)] = 1e-3
    """Peak learning rate, before the schedule's factor."""
    betas: Annotated[tuple[Beta, Beta], Field(strict=False)] = (0.9, 0.95)
    """Decay of the two moment averages per update, each in [0, 1)."""
    eps: Annotated[float, Field(gt=0)] = 1e-8
    """Added to the root of the second moment."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.1
    """Shrinkage per update, times the learning rate."""
    fused: bool | None = None
    """One kernel for all parameters; null: wherever it works, CPU included."""

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
            fused=self.fused,
            device=device,
        )


class ForeignOptimizerSettings(OptimizerSettings):
    """An optimizer class of ``torch.optim`` or the user's, given the same parameter groups."""

    factory: Factory
    """The class or function and its arguments."""

    def build(self, *, model: nn.Module, device: torch.device) -> Optimizer:
        """Call the class with the model's parameter groups.

        A function whose signature names ``model`` (and ``device``) gets those instead.
        """
        from speedtronic.optim.foreign import build_foreign_optimizer

        if self.factory.names("model"):
            offered = {"model": model, "device": device}
            built: Optimizer = self.factory.call(section=self.section, offered=offered)
            return built
        return build_foreign_optimizer(
            self.factory.resolve(),
            model,
            arguments=self.factory.build_arguments(section=self.section),
            decay=self.decay,
        )
