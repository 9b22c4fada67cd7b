"""Settings of the number format, and the one function that turns them into a plan."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from speedtronic.core.settings import Settings

if TYPE_CHECKING:
    import torch

    from speedtronic.precision import PrecisionPlan


class PrecisionSettings(Settings):
    """The number format of forward and backward; parameters stay fp32."""

    section: ClassVar[str] = "precision"

    mode: Literal["auto", "bf16", "fp16", "fp32"] = "auto"
    """auto: the fastest the device computes itself; what it cannot run becomes fp32, visibly."""


def resolve_precision(settings: PrecisionSettings, device: str | torch.device) -> PrecisionPlan:
    """Return the plan that the trainer follows on a device.

    Args:
        settings: The precision section of a configuration.
        device: A device that is there.
    """
    import torch

    from speedtronic.precision import plan_precision

    return plan_precision(mode=settings.mode, device=torch.device(device))
