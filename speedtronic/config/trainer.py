"""Settings of the training loop."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from speedtronic.core.settings import Settings


class TrainerSettings(Settings):
    """How updates are made and when a run gives up."""

    section: ClassVar[str] = "trainer"

    loss_normalization: Literal["microbatch", "tokens"] = "microbatch"
    """microbatch: mean of microbatch means; tokens: weighted by unignored labels."""
    max_skipped_steps: Annotated[int, Field(ge=1)] = 20
    """Attempts in a row with non-finite loss or gradient after which the run fails."""
    deterministic: bool = False
    """Whether torch must use deterministic algorithms only."""
    num_threads: Annotated[int, Field(ge=1)] | None = None
    """CPU threads of torch; null: torch's own choice."""
    compile_mode: Literal[
        "default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"
    ] = "default"
    """Mode of ``torch.compile`` where ``compile`` is on."""
