"""Settings around a run that change nothing in it."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from speedtronic.core.settings import Settings


class ExtrasSettings(Settings):
    """What is printed, called and returned around a run."""

    section: ClassVar[str] = "extras"

    print_config: bool = False
    """Whether the resolved configuration is printed before the run."""
    allow_targets: Annotated[tuple[str, ...], Field(strict=False)] = ()
    """Names and packages that ``_target_`` may call beyond the usual ones."""
    return_metric: Literal[
        "final_loss",
        "final_eval_loss",
        "best_eval_loss",
        "best_eval_step",
        "elapsed_s",
        "tokens_per_sec",
        "steps",
        "samples",
        "tokens",
        "skipped_steps",
    ] = "final_loss"
    """Which number of result.json a sweeper gets."""
