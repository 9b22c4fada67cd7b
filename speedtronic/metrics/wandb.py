"""Weights & Biases as a logging hook, for the extra ``wandb``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from speedtronic.metrics.extras import check_extra
from speedtronic.metrics.records import find_scalars


class WandbHook:
    """Sends the numbers of every event to a W&B run, opened with the first event.

    Args:
        project: W&B project.
        name: Shown name of the run; W&B invents one when None.
        id: Identifier of the run; the same one again continues it.
        mode: ``online``, ``offline`` or ``disabled``; W&B's own default when None.
        folder: Where W&B keeps its files; its own default when None.
        settings: Shown as the run's configuration.

    Raises:
        MissingExtraError: The package wandb is not installed.
    """

    def __init__(
        self,
        *,
        project: str = "speedtronic",
        name: str | None = None,
        id: str | None = None,
        mode: str | None = None,
        folder: str | os.PathLike[str] | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        check_extra("wandb", feature="Weights & Biases")
        self._arguments = {
            "project": project,
            "name": name,
            "id": id,
            "mode": mode,
            "dir": folder,
            "config": dict(settings or {}),
            "resume": "allow",
        }
        self._run: Any = None

    def on_event(self, event: str, payload: Mapping[str, Any]) -> None:
        """Send the numbers of an event at its step."""
        if self._run is None:
            import wandb

            self._run = wandb.init(**self._arguments)
            # W&B's own axis only goes forward; a resumed run repeats steps.
            self._run.define_metric("step")
            self._run.define_metric("*", step_metric="step")
        scalars = find_scalars(event, payload)
        if scalars:
            self._run.log(scalars | {"step": payload.get("step", 0)})

    def close(self) -> None:
        """Finish the W&B run; waits for what is still to be sent."""
        if self._run is not None:
            self._run.finish()
            self._run = None
