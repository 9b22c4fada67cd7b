"""When the held-out data is measured, and what its history says about going on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from speedtronic.core.stopping import StopRequestedError
from speedtronic.metrics.logger import MetricLogger
from speedtronic.trainer.evaluate import Evaluator
from speedtronic.trainer.state import EvaluationHistory


class HeldOut:
    """Evaluates on a cadence and remembers the best.

    Args:
        evaluator: What measures the model, None where there is no held-out data.
        logger: Gets ``eval`` events.
        every_steps: Updates between two evaluations, None for no evaluation.
        patience: Evaluations without a new best after which training may end, None for no limit.
    """

    def __init__(
        self,
        evaluator: Evaluator | None,
        *,
        logger: MetricLogger,
        every_steps: int | None,
        patience: int | None,
    ) -> None:
        self._evaluator = evaluator if every_steps is not None else None
        self._logger = logger
        self._every_steps = every_steps or 1
        self._patience = patience
        self.history = EvaluationHistory()

    def restore(self, history: Mapping[str, Any] | None) -> None:
        """Take over the history of a saved state; None empties it."""
        self.history = EvaluationHistory.from_dict(history)

    def evaluate_if_due(self, step: int, *, target: int) -> bool:
        """Measure on the cadence and at the target; true for a new best."""
        if self._evaluator is None or (step % self._every_steps and step != target):
            return False
        return self._evaluate(step)

    @property
    def is_due(self) -> bool:
        """Whether a stop cut the evaluation of the present step short."""
        return self._evaluator is not None and self.history.is_due

    def make_up(self, step: int) -> bool:
        """Do the evaluation that a stop cut short before a resume; true when it was done."""
        if not self.is_due:
            return False
        self._evaluate(step)
        return not self.history.is_due

    def _evaluate(self, step: int) -> bool:
        if self._evaluator is None:
            return False
        try:
            report = self._evaluator.run()
        except StopRequestedError:
            self.history.is_due = True
            return False
        is_best = self.history.add(report.loss, step=step)
        self._logger.event("eval", {"step": step, **report.to_payload()})
        return is_best

    @property
    def end_reason(self) -> str | None:
        """Why there is nothing to gain from going on, None while there is."""
        if self._patience is None or self.history.num_without_improvement < self._patience:
            return None
        return f"no new best in {self._patience} evaluations (evaluation.patience)"
