"""Speedtronic: fast, exactly repeatable training of language models and of any ``nn.Module``.

Names load on first use (PEP 562), so that importing the package costs no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from speedtronic.checkpoint.manager import CheckpointManager
    from speedtronic.config import ConfigError, SpeedtronicConfig, load_config
    from speedtronic.config.precision import resolve_precision
    from speedtronic.core.errors import SpeedtronicError
    from speedtronic.core.seeding import seed_everything
    from speedtronic.core.types import SyncCoordinator
    from speedtronic.data.feed import infinite_batches
    from speedtronic.metrics.logger import MetricLogger
    from speedtronic.models.gpt import GPT
    from speedtronic.models.registry import register_model
    from speedtronic.optim.adamw import supports_fused_adamw
    from speedtronic.optim.hybrid import HybridOptimizer
    from speedtronic.optim.muon import Muon
    from speedtronic.optim.routing import route_parameters
    from speedtronic.precision import PrecisionPlan
    from speedtronic.runs import Run, load_run
    from speedtronic.runtime import (
        build_logger,
        build_optimizer,
        build_runtime,
        build_scheduler,
        run,
        train,
        train_from_config,
    )
    from speedtronic.trainer import SpeedtronicTrainer, Trainer, TrainingEngine, TrainResult

_HOME_OF = {
    "CheckpointManager": "speedtronic.checkpoint.manager",
    "ConfigError": "speedtronic.config",
    "GPT": "speedtronic.models.gpt",
    "HybridOptimizer": "speedtronic.optim.hybrid",
    "MetricLogger": "speedtronic.metrics.logger",
    "Muon": "speedtronic.optim.muon",
    "PrecisionPlan": "speedtronic.precision",
    "Run": "speedtronic.runs",
    "SpeedtronicConfig": "speedtronic.config",
    "SpeedtronicError": "speedtronic.core.errors",
    "SpeedtronicTrainer": "speedtronic.trainer",
    "SyncCoordinator": "speedtronic.core.types",
    "TrainResult": "speedtronic.trainer",
    "Trainer": "speedtronic.trainer",
    "TrainingEngine": "speedtronic.trainer",
    "build_logger": "speedtronic.runtime",
    "build_optimizer": "speedtronic.runtime",
    "build_runtime": "speedtronic.runtime",
    "build_scheduler": "speedtronic.runtime",
    "infinite_batches": "speedtronic.data.feed",
    "load_config": "speedtronic.config",
    "load_run": "speedtronic.runs",
    "register_model": "speedtronic.models.registry",
    "resolve_precision": "speedtronic.config.precision",
    "route_parameters": "speedtronic.optim.routing",
    "run": "speedtronic.runtime",
    "seed_everything": "speedtronic.core.seeding",
    "supports_fused_adamw": "speedtronic.optim.adamw",
    "train": "speedtronic.runtime",
    "train_from_config": "speedtronic.runtime",
}

__all__ = [
    "GPT",
    "CheckpointManager",
    "ConfigError",
    "HybridOptimizer",
    "MetricLogger",
    "Muon",
    "PrecisionPlan",
    "Run",
    "SpeedtronicConfig",
    "SpeedtronicError",
    "SpeedtronicTrainer",
    "SyncCoordinator",
    "TrainResult",
    "Trainer",
    "TrainingEngine",
    "__version__",
    "build_logger",
    "build_optimizer",
    "build_runtime",
    "build_scheduler",
    "infinite_batches",
    "load_config",
    "load_run",
    "register_model",
    "resolve_precision",
    "route_parameters",
    "run",
    "seed_everything",
    "supports_fused_adamw",
    "train",
    "train_from_config",
]


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return sorted(__all__)
