"""Continuing a run from its newest good checkpoint, with the settings that may change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from speedtronic.checkpoint.codec import decode
from speedtronic.checkpoint.folder import candidates, read_manifest
from speedtronic.checkpoint.manager import CheckpointManager
from speedtronic.checkpoint.weights import check_model_state
from speedtronic.config import SpeedtronicConfig
from speedtronic.config.resume import changes_between, check_compatible
from speedtronic.core.errors import CheckpointError
from speedtronic.metrics.logger import MetricLogger
from speedtronic.models.attention import attention_form
from speedtronic.optim.hyperparameters import (
    Hyperparameters,
    configured_hyperparameters,
    set_hyperparameters,
)
from speedtronic.precision import PRECISION_MODES, PrecisionPlan
from speedtronic.run_folder.environment import cpu_model, package_versions
from speedtronic.schedule.build import reimpose_schedule
from speedtronic.trainer import Trainer

# Settings whose values stand in the groups of an optimizer under other names.
_GROUP_KEYS = {
    "muon_lr": ("lr",),
    "muon_momentum": ("momentum",),
    "muon_weight_decay": ("weight_decay",),
    "muon_nesterov": ("nesterov",),
    "muon_ns_steps": ("ns_steps",),
    "orthogonalization": ("orthogonalization", "ns_steps"),
    "normuon": ("normuon_beta2",),
    "routing": ("lr", "weight_decay"),
    "decay": ("weight_decay",),
}


def training_environment(
    config: SpeedtronicConfig,
    *,
    device: torch.device,
    precision: PrecisionPlan,
    num_threads: int | None,
) -> dict[str, Any]:
    """Return what bit-identical results depend on beside the locked settings.

    Args:
        config: The settings of this segment.
        device: Where the model runs.
        precision: Number format of the forward.
        num_threads: CPU threads that a fit puts in force; None for the present number.
    """
    deterministic = config.trainer.deterministic
    versions = package_versions()
    return {
        "device": device.type,
        "hardware": torch.cuda.get_device_name(device) if device.type == "cuda" else cpu_model(),
        "threads": num_threads or torch.get_num_threads(),
        "deterministic": deterministic or torch.are_deterministic_algorithms_enabled(),
        "compile": config.compile,
        "attention": attention_form(
            length=config.effective_block_size, dtype=precision.dtype, device=device
        ),
        "torch": versions.get("torch", torch.__version__),
        "speedtronic": versions.get("speedtronic", ""),
    }


def saved_precision(manager: CheckpointManager) -> str | None:
    """Return the number format the newest checkpoint was trained in, None without one."""
    paths = manager.paths()
    if not paths:
        return None
    precision = decode(read_manifest(paths[-1]).state.get("precision"), {})
    mode = precision.get("mode") if isinstance(precision, Mapping) else None
    return mode if mode in PRECISION_MODES else None


def refuse_all_damaged(manager: CheckpointManager) -> None:
    """Stop where checkpoints exist and none is whole: starting afresh would throw them away.

    Raises:
        CheckpointError: that is so.
    """
    damaged = candidates(manager.directory)
    if damaged:
        names = ", ".join(path.name for path in damaged)
        raise CheckpointError(
            f"{manager.directory}: every checkpoint is damaged ({names});"
            f" `python -m speedtronic.checkpoint {manager.directory}` says how; mend one, or start"
            " afresh with overwrite=true"
        )


def restore(
    trainer: Trainer,
    manager: CheckpointManager,
    *,
    config: SpeedtronicConfig,
    environment: Mapping[str, Any],
    logger: MetricLogger,
) -> int | None:
    """Put a trainer where the newest good checkpoint was, then apply what the settings change.

    Args:
        trainer: Just built.
        manager: Where the checkpoints are.
        config: The settings of this segment.
        environment: What this process computes with, see ``training_environment``.
        logger: Told of every change.

    Returns:
        The step of the checkpoint, or None (and a warning) when there is none.

    Raises:
        CheckpointError: there are checkpoints, and every one is damaged.
        ConfigError: a setting changed under which this would be another run.
        IncompatibleCheckpointError: the checkpoint belongs to another model.
    """
    state = manager.load_latest()
    if state is None:
        refuse_all_damaged(manager)
        logger.warning(f"resume: no checkpoint in {manager.directory}, starting from step 0")
        return None
    saved = state.get("config")
    if config.resume_strict and saved is not None:
        changes = changes_between(saved, config.to_dict())
        check_compatible(changes, run_dir=str(manager.directory.parent))
    check_model_state(trainer.model, state)
    configured = configured_hyperparameters(trainer.optimizer)
    trainer.resume(state)
    _apply_changes(trainer, state, config=config, configured=configured, logger=logger)
    differences = _differences(state.get("environment") or {}, environment)
    precision = state.get("precision") or {}
    if precision.get("mode", trainer.precision.mode) != trainer.precision.mode:
        differences.append(f"precision {precision['mode']} -> {trainer.precision.mode}")
    if differences:
        reason = f"the run goes on, but not bit for bit as undisturbed: {', '.join(differences)}"
        trainer.add_fallback("environment", reason, exact=False)
    logger.info(f"resume: continuing from step {trainer.step}")
    return trainer.step


def _apply_changes(
    trainer: Trainer,
    state: Mapping[str, Any],
    *,
    config: SpeedtronicConfig,
    configured: Hyperparameters,
    logger: MetricLogger,
) -> None:
    """Apply changed hyperparameters and a changed curve; say the learning rate before and after."""
    rate_before = trainer.optimizer.param_groups[0]["lr"]
    saved = (state.get("config") or {}).get("optimizer", {})
    wanted = config.to_dict()["optimizer"]
    changed = {key for key in wanted if wanted[key] != saved.get(key, wanted[key])}
    keys = {key for setting in changed for key in _GROUP_KEYS.get(setting, (setting,))}
    for line in set_hyperparameters(trainer.optimizer, configured, keys=keys):
        logger.info(f"resume: {line}")
    if isinstance(trainer.scheduler, LRScheduler):
        reimpose_schedule(trainer.scheduler)
    rate_after = trainer.optimizer.param_groups[0]["lr"]
    if rate_after != rate_before:
        logger.info(
            f"resume: learning rate at step {trainer.step}: {rate_before:g} -> {rate_after:g}"
        )


def _differences(saved: Mapping[str, Any], present: Mapping[str, Any]) -> list[str]:
    return [
        f"{key} {saved[key]} -> {present[key]}"
        for key in present
        if key in saved and saved[key] != present[key]
    ]
