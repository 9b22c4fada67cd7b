"""What a fit returns and what an evaluation leaves behind: plain values, no live objects."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol, cast


class RecordSource(Protocol):
    """Something that can build the list of metric records."""

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return one dict a step."""


class _BuiltWhenRead:
    """A field that takes a list or its source and is a list whenever it is read.

    A million steps are 40 MB in columns and about a gigabyte as dicts; most runs never read them.
    """

    def __get__(self, instance: object | None, owner: type | None = None) -> list[dict[str, Any]]:
        if instance is None:  # asked by @dataclass: this field has no default
            raise AttributeError("metrics")
        stored = instance.__dict__["metrics"]
        if not isinstance(stored, list):
            stored = instance.__dict__["metrics"] = stored.to_dicts()
        return cast("list[dict[str, Any]]", stored)

    def __set__(self, instance: object, value: list[dict[str, Any]] | RecordSource) -> None:
        instance.__dict__["metrics"] = value


@dataclass
class TrainResult:
    """What one ``fit`` did."""

    steps: int
    """Final absolute step, including resumed ones."""
    samples: int
    """Samples of the whole run so far."""
    tokens: int
    """Tokens of the whole run so far."""
    final_loss: float | None
    """Mean loss of the last update of this fit, None when no update ran."""
    elapsed_s: float
    """Duration of this fit, seconds."""
    metrics: list[dict[str, Any]] = cast("list[dict[str, Any]]", _BuiltWhenRead())  # noqa: RUF009 - a descriptor, no shared default
    """One record for every step of this fit, with the contract's nine keys."""

    def __repr__(self) -> str:
        """Show the numbers; the records of a long run would fill the screen."""
        return (
            f"TrainResult(steps={self.steps}, samples={self.samples}, tokens={self.tokens},"
            f" final_loss={self.final_loss}, elapsed_s={self.elapsed_s:.3f}, metrics=...)"
        )


@dataclass(frozen=True, kw_only=True)
class FitOutcome:
    """How a fit ended, and what of the whole run belongs into its result file."""

    status: str
    """``completed``, ``interrupted`` or ``failed``."""
    has_run: bool = True
    """False when the target was reached before, and nothing was done."""
    updates: int = 0
    """Updates of this fit."""
    signal_number: int | None = None
    """Signal that asked for the stop."""
    reason: str | None = None
    """Why the fit ended before its target."""
    best_eval_loss: float | None = None
    """Lowest loss of all evaluations of the run."""
    best_eval_step: int | None = None
    """Step of that evaluation."""
    final_eval_loss: float | None = None
    """Loss of the last evaluation of the run."""
    skipped_steps: int = 0
    """Skipped attempts of the run."""
    fallbacks: tuple[dict[str, Any], ...] = ()
    """Fallbacks of the run: ``kind``, ``reason``, ``step``."""
    exact: bool = True
    """False once something made the run differ from an undisturbed one."""


@dataclass
class EvaluationHistory:
    """The best and the last evaluation of a run; survives a resume."""

    best_loss: float | None = None
    """Lowest finite loss so far."""
    best_step: int | None = None
    """Its step."""
    last_loss: float | None = None
    """Loss of the latest evaluation."""
    last_step: int | None = None
    """Its step."""
    num_without_improvement: int = 0
    """Evaluations since the best one."""
    is_due: bool = False
    """Whether the evaluation of the current step was cut short and has to be done again."""

    def add(self, loss: float, *, step: int) -> bool:
        """Take one evaluation in; true when it is the new best."""
        self.last_loss, self.last_step, self.is_due = loss, step, False
        is_best = math.isfinite(loss) and (self.best_loss is None or loss < self.best_loss)
        if is_best:
            self.best_loss, self.best_step = loss, step
        self.num_without_improvement = 0 if is_best else self.num_without_improvement + 1
        return is_best

    def loss_at(self, step: int) -> float | None:
        """Return the loss measured at a step, None when it was not the latest evaluation."""
        return self.last_loss if self.last_step == step else None

    def to_dict(self) -> dict[str, Any]:
        """Return what ``from_dict`` takes."""
        return asdict(self)

    @classmethod
    def from_dict(cls, state: Mapping[str, Any] | None) -> EvaluationHistory:
        """Return the history of a saved state; an empty one for None."""
        return cls(**state) if state else cls()
