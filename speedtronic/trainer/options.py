"""What the trainer reads from a configuration, looked up once so that the loop never asks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from speedtronic.config import SpeedtronicConfig


@dataclass(frozen=True, kw_only=True)
class TrainerOptions:
    """The settings of a trainer; the defaults are those of a trainer without a configuration."""

    accumulation_steps: int = 1
    """Microbatches in one update, at least 1."""
    grad_clip: float | None = None
    """Largest gradient norm, None for no clipping."""
    loss_normalization: str = "microbatch"
    """``microbatch``: each counts 1/K; ``tokens``: each counts by its labels."""
    max_skipped_steps: int = 20
    """Skipped attempts in a row that end the run."""
    max_steps: int = 1000
    """Target of ``fit`` without an argument."""
    max_minutes: float | None = None
    """Time limit of one ``fit``, None for none."""
    eval_every_steps: int | None = None
    """Updates between two evaluations, None for no evaluation."""
    max_eval_batches: int | None = None
    """Batches of one evaluation, None for all."""
    patience: int | None = None
    """Evaluations without a new best after which training ends, None for no limit."""
    compile_model: bool = False
    """Whether the forward goes through ``torch.compile``."""
    compile_mode: str = "default"
    """Mode of ``torch.compile``."""
    gradient_checkpointing: bool | int = False
    """True for every layer, n for every n-th."""
    reset_inner_optimizer: bool = True
    """Whether a coordinator's request to clear the optimizer's state is honoured."""
    log_level: str = "INFO"
    """Level of the logger a trainer makes for itself."""
    log_every_steps: int = 10
    """Logging cadence of the logger a trainer makes for itself."""


def resolve_options(config: SpeedtronicConfig | None) -> TrainerOptions:
    """Return the options of a configuration, those of a bare trainer for None."""
    if config is None:
        return TrainerOptions()
    return TrainerOptions(
        accumulation_steps=config.data.accumulation_steps,
        grad_clip=config.optimizer.grad_clip,
        loss_normalization=config.trainer.loss_normalization,
        max_skipped_steps=config.trainer.max_skipped_steps,
        max_steps=config.effective_max_steps,
        max_minutes=config.run.max_minutes,
        eval_every_steps=config.evaluation.every_steps,
        max_eval_batches=config.evaluation.max_batches,
        patience=config.evaluation.patience,
        compile_model=config.compile,
        compile_mode=config.trainer.compile_mode,
        gradient_checkpointing=config.gradient_checkpointing,
        reset_inner_optimizer=config.distributed.reset_inner_optimizer is not False,
        log_level=config.logging.level,
        log_every_steps=config.logging.every_steps,
    )
