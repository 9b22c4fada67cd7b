"""Public names, and what importing them may cost."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

import speedtronic

# The API contract and the Python surface of docs; later issues add theirs.
PROMISED = {
    "speedtronic": [
        "CheckpointManager",
        "ConfigError",
        "MetricLogger",
        "PrecisionPlan",
        "SpeedtronicConfig",
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
        "run",
        "seed_everything",
        "supports_fused_adamw",
        "train",
        "train_from_config",
    ],
    "speedtronic.runtime": [
        "build_logger",
        "build_optimizer",
        "build_runtime",
        "build_scheduler",
        "infinite_batches",
        "load_run",
        "register_model",
        "resolve_precision",
        "run",
        "seed_everything",
        "supports_fused_adamw",
        "train",
        "train_from_config",
    ],
    "speedtronic.trainer": [
        "SpeedtronicTrainer",
        "SyncCoordinator",
        "TrainResult",
        "Trainer",
        "TrainingEngine",
    ],
    "speedtronic.config": ["AdamWSettings", "ConfigError", "SpeedtronicConfig", "load_config"],
}


@pytest.mark.parametrize("module", PROMISED)
def test_promised_names_are_there(module: str) -> None:
    loaded = importlib.import_module(module)

    assert [name for name in PROMISED[module] if not hasattr(loaded, name)] == []


def test_every_name_of_the_package_imports_and_no_promised_one_is_missing() -> None:
    assert [name for name in speedtronic.__all__ if not hasattr(speedtronic, name)] == []
    assert set(PROMISED["speedtronic"]) <= set(speedtronic.__all__)
    assert speedtronic.__all__ == sorted(speedtronic.__all__, key=_as_ruff_sorts)
    assert dir(speedtronic) == sorted(speedtronic.__all__)


def _as_ruff_sorts(name: str) -> tuple[int, str]:
    if name.isupper():
        return (0, name)
    return (1 if name[0].isupper() else 2, name)


def test_aliases_are_the_same_object() -> None:
    assert speedtronic.run is speedtronic.train_from_config
    assert speedtronic.train is speedtronic.train_from_config
    assert speedtronic.TrainingEngine is speedtronic.Trainer
    assert speedtronic.SpeedtronicTrainer is speedtronic.Trainer
    assert speedtronic.Trainer.train is speedtronic.Trainer.fit


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'speedtronic' has no attribute 'nothing'"):
        _ = speedtronic.nothing


@pytest.mark.parametrize(
    "module",
    [
        "speedtronic",
        "speedtronic.config",
        "speedtronic.cli",
        "speedtronic.checkpoint",
        "speedtronic.data",
        "speedtronic.metrics.logger",
        "speedtronic.run_folder.layout",
    ],
)
def test_composing_a_run_does_not_import_torch(module: str) -> None:
    program = (
        f"import sys, {module}\n"
        "print([name for name in ('torch', 'matplotlib') if name in sys.modules])"
    )

    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    assert result.stdout == "[]\n"
