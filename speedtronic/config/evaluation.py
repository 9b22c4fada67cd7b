"""Settings of evaluation on the held-out split."""

from __future__ import annotations

from typing import Annotated, ClassVar, Self

from pydantic import Field, model_validator

from speedtronic.core.errors import ConfigError
from speedtronic.core.settings import Settings


class EvaluationSettings(Settings):
    """When the held-out split is measured, and when a run stops for want of progress."""

    section: ClassVar[str] = "evaluation"

    every_steps: Annotated[int, Field(ge=1)] | None = 250
    """Updates between two evaluations; null: off."""
    max_batches: Annotated[int, Field(ge=1)] | None = 50
    """Most microbatches of one evaluation, the same every time; null: the whole split."""
    patience: Annotated[int, Field(ge=1)] | None = None
    """Evaluations without a new best after which the run stops; null: never."""

    @model_validator(mode="after")
    def _check_patience(self) -> Self:
        if self.patience is not None and self.every_steps is None:
            raise ConfigError(
                "evaluation.patience needs evaluation.every_steps, got"
                f" evaluation.patience={self.patience} with evaluation.every_steps=null; set both"
            )
        return self
