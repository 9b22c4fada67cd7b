"""The functions a Python user calls: builders of single components, of a whole run, and training.

Every component is built by its own settings; ``assembly`` wires them, ``session`` owns the folder.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from speedtronic.assembly import assemble
from speedtronic.checkpoint.manager import CheckpointManager
from speedtronic.config import SpeedtronicConfig, load_config
from speedtronic.config.precision import resolve_precision
from speedtronic.core.seeding import seed_everything
from speedtronic.data.feed import infinite_batches
from speedtronic.metrics.logger import MetricLogger
from speedtronic.models.registry import register_model
from speedtronic.optim.adamw import supports_fused_adamw
from speedtronic.runs import load_run
from speedtronic.session import run_command
from speedtronic.trainer import Trainer, TrainResult

__all__ = [
    "build_logger",
    "build_optimizer",
    "build_runtime",
    "build_scheduler",
    "infinite_batches",
    "load_run",
    "register_model",
    "resolve_precision",
    "run",
    "run_command",
    "seed_everything",
    "supports_fused_adamw",
    "train",
    "train_from_config",
]

Configuration = SpeedtronicConfig | Mapping[str, Any]


def build_optimizer(
    model: nn.Module, config: Configuration, device: str | torch.device
) -> Optimizer:
    """Build the configured optimizer over the model's trainable parameters, each exactly once.

    Args:
        model: On ``device``.
        config: A configuration or a dict of one; only ``optimizer`` is read.
        device: Where the model's parameters are.

    Raises:
        ConfigError: the model has no trainable parameter.
    """
    return load_config(config).optimizer.build(model=model, device=torch.device(device))


def build_scheduler(optimizer: Optimizer, config: Configuration) -> LRScheduler:
    """Build the configured schedule over the effective target; position 0 is in force at once.

    Args:
        optimizer: Its learning rates are scaled, group by group.
        config: A configuration or a dict of one.
    """
    settings = load_config(config)
    return settings.scheduler.build(optimizer=optimizer, max_steps=settings.effective_max_steps)


def build_logger(config: Configuration, *, folder: Path | None = None) -> MetricLogger:
    """Build the logger of the logging settings; no hook is attached.

    Args:
        config: A configuration or a dict of one; only ``logging`` is read.
        folder: Where relative paths start; the working directory when None.
    """
    return load_config(config).logging.build(folder=folder)


def build_runtime(
    config: Configuration,
    *,
    resume: bool = False,
    device: str | torch.device | None = None,
    max_steps: int | None = None,
) -> tuple[Trainer, CheckpointManager]:
    """Validate, seed, and build every component of a run.

    Nothing is written before ``fit``, which claims the run folder while it runs.

    Args:
        config: A configuration or a dict of one.
        resume: Whether to continue from the newest good checkpoint, like ``config.resume``; a
            missing checkpoint is a warning.
        device: Overrides ``run.device``.
        max_steps: Overrides ``data.max_steps`` and ``run.max_steps``, at least 1.

    Returns:
        The trainer and its checkpoint manager.

    Raises:
        ConfigError: a setting is wrong.
        IncompatibleCheckpointError: the checkpoint belongs to another model.
    """
    settings = load_config(config).with_target(max_steps)
    runtime = assemble(settings, resume=resume or settings.resume, device=device)
    return runtime.trainer, runtime.manager


def train_from_config(
    config: Configuration,
    *,
    resume: bool = False,
    device: str | torch.device | None = None,
    max_steps: int | None = None,
) -> TrainResult:
    """Build a run, train it, and write its whole run folder except ``.hydra``.

    Args:
        config: As for ``build_runtime``.
        resume: As for ``build_runtime``.
        device: As for ``build_runtime``.
        max_steps: As for ``build_runtime``.

    Raises:
        RunFolderError: the folder holds a run and neither ``resume`` nor ``overwrite`` is set.
        KeyboardInterrupt: Ctrl-C; the run was saved first.
        SystemExit: another stop signal; the run was saved first.
    """
    settings = load_config(config).with_target(max_steps)
    report = run_command(settings, resume=resume, device=device)
    if report.signal_number == signal.SIGINT:
        raise KeyboardInterrupt
    if report.signal_number is not None:
        raise SystemExit(report.exit_status)
    return report.train_result


run = train_from_config
train = train_from_config
