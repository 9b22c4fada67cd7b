"""The events of a fit: what the logger is told at its start, its updates and its end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.optim import Optimizer

from speedtronic.metrics.logger import MetricLogger
from speedtronic.trainer.records import StepRecords, describe_update
from speedtronic.trainer.state import FitOutcome
from speedtronic.trainer.update import Attempt, Update


class Reporter:
    """Tells a logger about the finished updates of one fit.

    Args:
        logger: Decides the cadence.
        records: Columns of the fit; each update is appended here.
        update: Knows how long data was waited for.
        optimizer: Knows the learning rates.
        device: Whose memory is reported.
    """

    def __init__(
        self,
        logger: MetricLogger,
        *,
        records: StepRecords,
        update: Update,
        optimizer: Optimizer,
        device: torch.device,
    ) -> None:
        self._logger = logger
        self._records = records
        self._update = update
        self._optimizer = optimizer
        self._device = device
        self._pending: tuple[int, Attempt, int] | None = None

    def add(
        self, attempt: Attempt, *, step: int, samples: int, tokens: int, skipped: int, is_last: bool
    ) -> None:
        """Record a finished update, and log it on the cadence or when it is the last.

        Args:
            attempt: The applied attempt.
            step: Its step.
            samples: Samples of the run so far.
            tokens: Tokens of the run so far.
            skipped: Skipped attempts of the run so far.
            is_last: Whether the target is reached.
        """
        lr = float(self._optimizer.param_groups[0]["lr"])
        self._records.append(attempt.loss, lr=lr, samples=samples, tokens=tokens)
        self._pending = step, attempt, skipped
        if is_last or self._logger.should_log(step):
            self.flush()

    def flush(self) -> None:
        """Log the latest update if that has not been done."""
        if self._pending is None:
            return
        step, attempt, skipped = self._pending
        self._pending = None
        self._logger.event("train_step", self._records.last())
        stats = describe_update(self._optimizer, grad_norm=attempt.grad_norm, device=self._device)
        waited_s = self._update.take_data_wait()
        self._logger.event(
            "train_stats", {"step": step, **stats, "skipped": skipped, "data_wait_s": waited_s}
        )


def report_checkpoint(logger: MetricLogger, name: str, payload: Mapping[str, Any]) -> None:
    """Pass an event of a checkpoint manager on; its warnings are text too."""
    if name == "warning":
        logger.warning(payload["message"])
    logger.event(name, payload)


def report_end(logger: MetricLogger, outcome: FitOutcome, *, facts: Mapping[str, Any]) -> None:
    """Emit ``train_end``, after a failure too: a progress bar must come down."""
    how = {
        "status": outcome.status,
        "reason": outcome.reason,
        "skipped": outcome.skipped_steps,
    }
    logger.event("train_end", {**facts, **how})
