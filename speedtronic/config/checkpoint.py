"""Settings of checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from speedtronic.core.settings import PathText, Settings

if TYPE_CHECKING:
    from speedtronic.checkpoint.manager import CheckpointManager, EventHandler


class CheckpointSettings(Settings):
    """When checkpoints are saved, where, and how many stay."""

    section: ClassVar[str] = "checkpoint"

    enabled: bool = True
    """Whether anything is saved."""
    directory: Annotated[PathText, Field(min_length=1)] = "checkpoints"
    """Folder of the checkpoints; a relative path is below the run folder."""
    every_steps: Annotated[int, Field(ge=1)] = 500
    """Updates between two checkpoints."""
    every_minutes: Annotated[float, Field(gt=0)] | None = None
    """Minutes between two checkpoints, beside every_steps; null: never by the clock."""
    keep_last: Annotated[int, Field(ge=1)] | None = 3
    """How many of the newest stay; null: all."""
    keep_best: Annotated[int, Field(ge=0)] = 1
    """How many of those with the lowest held-out loss stay beside them."""
    async_save: bool = True
    """Whether files are written in the background."""

    def build(
        self, *, folder: Path | None, on_event: EventHandler | None = None
    ) -> CheckpointManager:
        """Build the manager; relative paths are below ``folder``, or the working directory.

        Args:
            folder: The run folder.
            on_event: Told of every checkpoint and of what went wrong with one.
        """
        from speedtronic.checkpoint.manager import CheckpointManager

        return CheckpointManager(
            (folder or Path()) / self.directory,
            every_steps=self.every_steps,
            keep_last=self.keep_last,
            enabled=self.enabled,
            keep_best=self.keep_best,
            every_minutes=self.every_minutes,
            async_save=self.async_save,
            on_event=on_event,
        )
