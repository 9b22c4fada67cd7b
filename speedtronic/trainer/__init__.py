"""The training loop: ``Trainer.fit`` and what it needs for one update, one record, one evaluation.

Names load on first use, so that importing the package costs no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from speedtronic.core.types import SyncCoordinator
    from speedtronic.trainer.loop import SpeedtronicTrainer, Trainer, TrainingEngine
    from speedtronic.trainer.state import FitOutcome, TrainResult

_HOME_OF = {
    "FitOutcome": "speedtronic.trainer.state",
    "SpeedtronicTrainer": "speedtronic.trainer.loop",
    "SyncCoordinator": "speedtronic.core.types",
    "TrainResult": "speedtronic.trainer.state",
    "Trainer": "speedtronic.trainer.loop",
    "TrainingEngine": "speedtronic.trainer.loop",
}

__all__ = [
    "FitOutcome",
    "SpeedtronicTrainer",
    "SyncCoordinator",
    "TrainResult",
    "Trainer",
    "TrainingEngine",
]


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return sorted(__all__)
