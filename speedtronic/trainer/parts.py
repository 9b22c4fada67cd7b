"""What a trainer makes for itself where it was not given it: a logger, a number format."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from speedtronic.config.precision import resolve_precision
from speedtronic.core.errors import FallbackWarning
from speedtronic.metrics.logger import MetricLogger
from speedtronic.precision import PrecisionPlan, plan_precision
from speedtronic.trainer.options import TrainerOptions

if TYPE_CHECKING:
    from speedtronic.config import SpeedtronicConfig


def make_logger(options: TrainerOptions) -> MetricLogger:
    """Return a logger that writes to the console only."""
    return MetricLogger(level=options.log_level, every_steps=options.log_every_steps)


def make_plan(
    config: SpeedtronicConfig | None,
    *,
    device: torch.device,
    on_fallback: Callable[[str], None],
) -> PrecisionPlan:
    """Return the configured number format, fp32 without a configuration.

    Args:
        config: Its ``precision`` section counts.
        device: Where the model runs.
        on_fallback: Told why the device computes in another format than asked.
    """
    if config is None:
        return plan_precision(mode="fp32", device=device)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", FallbackWarning)
        plan = resolve_precision(config.precision, device)
    for warning in caught:
        on_fallback(str(warning.message))
    return plan
