"""Wiring: settings become the live objects of one run, and nothing is written yet."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import torch
from torch import nn

from speedtronic.checkpoint.manager import CheckpointManager
from speedtronic.checkpoint.weights import check_model_state, load_weights
from speedtronic.config import SpeedtronicConfig
from speedtronic.config.precision import resolve_precision
from speedtronic.core.errors import FallbackWarning
from speedtronic.core.seeding import seed_everything
from speedtronic.core.stopping import StopFlag
from speedtronic.data.loaded import LoadedData
from speedtronic.metrics.logger import MetricLogger
from speedtronic.ownership import RunOwner
from speedtronic.precision import PrecisionPlan, plan_precision, resolve_device
from speedtronic.resuming import restore, saved_precision, training_environment
from speedtronic.run_folder.layout import RunFolder
from speedtronic.sample import continue_held_out_text
from speedtronic.trainer import Trainer


@dataclass(frozen=True, kw_only=True)
class Runtime:
    """The live objects of one run."""

    config: SpeedtronicConfig
    """The configuration with the effective target in it."""
    folder: RunFolder
    """Where the run writes; need not exist yet."""
    data: LoadedData
    """Loaders, tokenizer and facts."""
    model: nn.Module
    """The model, on its device."""
    precision: PrecisionPlan
    """Number format of forward and backward."""
    logger: MetricLogger
    """Text log, records and hooks."""
    manager: CheckpointManager
    """Checkpoints."""
    trainer: Trainer
    """The loop around all of them."""
    environment: dict[str, Any]
    """What bit-identical results depend on beside the settings."""


def assemble(
    config: SpeedtronicConfig,
    *,
    resume: bool = False,
    device: str | torch.device | None = None,
    owner: RunOwner | None = None,
    stop: StopFlag | None = None,
) -> Runtime:
    """Build every component of a run.

    Args:
        config: The configuration, with the effective target in it.
        resume: Whether to continue from the newest good checkpoint.
        device: Overrides ``run.device``.
        owner: Who holds the run folder; a new one, in a folder derived from ``run``, when None.
        stop: Polled by the loop.
    """
    owner = owner or RunOwner(choose_folder(config), config=config, resume=resume)
    folder = owner.folder
    logger = config.logging.build(folder=folder.path)
    manager = config.checkpoint.build(folder=folder.path)
    with _collect_warnings(logger) as fallbacks:
        seed_everything(config.run.seed)
        live_device = resolve_device(config.run.device if device is None else device)
        precision = choose_precision(config, manager, device=live_device, resume=resume)
        data = build_data(config, device=live_device)
        model = config.model.build(vocab_size=data.vocab_size).to(live_device)
        optimizer = config.optimizer.build(model=model, device=live_device)
        schedule = config.scheduler.build(optimizer=optimizer, max_steps=config.effective_max_steps)
    environment = training_environment(
        config, device=live_device, precision=precision, num_threads=owner.num_threads
    )
    tokenizer = data.tokenizer
    trainer = Trainer(
        model,
        optimizer,
        data.train,
        device=live_device,
        config=config,
        scheduler=schedule,
        precision=precision,
        logger=logger,
        checkpoint_manager=manager,
        coordinator=config.distributed.build(),
        eval_dataloader=data.evaluation,
        stop=stop,
        token_bytes=None if tokenizer is None else tokenizer.token_bytes(),
        sample_text=continue_held_out_text(model, data),
        environment=environment,
        claim=owner,
    )
    resumed_step = None
    if resume:
        with _collect_warnings(logger) as more_fallbacks:
            resumed_step = restore(
                trainer, manager, config=config, environment=environment, logger=logger
            )
        fallbacks += more_fallbacks
        owner.continue_from(resumed_step or 0)
    for reason in fallbacks:
        trainer.add_fallback("build", reason)
    if config.init_from is not None and resumed_step is None:
        start_from(model, config.init_from, logger=logger)
    # Also after a resume that found no checkpoint: a killed start may have drawn a few steps.
    purge_step = (resumed_step or 0) + 1 if resume else None
    attach_hooks(config, logger=logger, folder=folder, purge_step=purge_step)
    return Runtime(
        config=config,
        folder=folder,
        data=data,
        model=model,
        precision=precision,
        logger=logger,
        manager=manager,
        trainer=trainer,
        environment=environment,
    )


def choose_precision(
    config: SpeedtronicConfig, manager: CheckpointManager, *, device: torch.device, resume: bool
) -> PrecisionPlan:
    """Return the plan of the number format; a resumed ``auto`` means what it meant at the start."""
    saved = saved_precision(manager) if resume and config.precision.mode == "auto" else None
    if saved is not None:
        return plan_precision(mode=saved, device=device)
    return resolve_precision(config.precision, device)


def build_data(config: SpeedtronicConfig, *, device: torch.device) -> LoadedData:
    """Build the configured data for the block size and seed in force."""
    return config.data.build(
        block_size=config.effective_block_size,
        seed=config.effective_data_seed,
        max_eval_batches=config.evaluation.max_batches,
        device=device,
    )


def start_from(model: nn.Module, path: str, *, logger: MetricLogger) -> None:
    """Warm-start a model's weights from a run folder, a checkpoint or a safetensors file."""
    weights = load_weights(path)
    check_model_state(model, weights)
    model.load_state_dict(weights)
    logger.info(f"weights start from {path}")


def attach_hooks(
    config: SpeedtronicConfig,
    *,
    logger: MetricLogger,
    folder: RunFolder,
    purge_step: int | None,
) -> None:
    """Attach progress, TensorBoard and the configured hooks to a logger."""
    from speedtronic.metrics.progress import ProgressHook

    settings = config.logging
    logger.add_hook(
        ProgressHook(config.effective_max_steps, mode=settings.progress, console=logger.console)
    )
    if settings.tensorboard:
        from speedtronic.metrics.tensorboard import TensorBoardHook

        logger.add_hook(
            TensorBoardHook(folder.tensorboard, purge_step=purge_step, hparams=config.to_dict())
        )
    for hook in settings.build_hooks(folder=folder.path):
        logger.add_hook(hook)


def choose_folder(config: SpeedtronicConfig, *, run_dir: Path | None = None) -> RunFolder:
    """Return a run's folder: the given one, the configured one, or a new one named by the time."""
    given = run_dir or config.run.output_dir
    if given is not None:
        return _folder_at(Path(given), config)
    stamp = datetime.now().astimezone().strftime("%Y-%m-%d_%H-%M-%S-%f")
    return _folder_at(Path("outputs") / config.run.name / stamp, config)


def _folder_at(path: Path, config: SpeedtronicConfig) -> RunFolder:
    records = config.logging.json_file
    return RunFolder(
        path,
        metrics_name=RunFolder.metrics_name if records is None else records,
        checkpoints_name=config.checkpoint.directory,
    )


@contextmanager
def _collect_warnings(logger: MetricLogger) -> Iterator[list[str]]:
    """Collect the fallbacks announced while building; other user warnings go to the log."""
    fallbacks: list[str] = []
    caught: list[warnings.WarningMessage] = []
    try:
        with warnings.catch_warnings(record=True) as recorded:
            warnings.simplefilter("always", UserWarning)
            caught = recorded
            yield fallbacks
    finally:
        for warning in caught:
            if issubclass(warning.category, FallbackWarning):
                fallbacks.append(str(warning.message))
            elif issubclass(warning.category, UserWarning):
                logger.warning(str(warning.message))
            else:
                warnings.warn_explicit(
                    warning.message, warning.category, warning.filename, warning.lineno
                )
