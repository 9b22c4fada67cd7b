"""The trainer's side of a coordinator: what stands for none, and the order of a start."""

from __future__ import annotations

from typing import Any

from speedtronic.core.types import SyncCoordinator


class NoCoordinator:
    """Stands where no coordinator was given, so that the loop does not ask."""

    def start(self) -> None:
        """Do nothing."""

    def after_optimizer_step(self, model: Any, step: int) -> bool | None:  # noqa: ARG002 - protocol
        """Ask for nothing."""
        return None

    def stop(self) -> None:
        """Do nothing."""

    def state_dict(self) -> dict[str, Any] | None:
        """Return None: nothing to save."""
        return None

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Ignore the state of a run that had a coordinator."""


def start_coordinator(coordinator: SyncCoordinator, state: dict[str, Any] | None) -> None:
    """Start a coordinator with the state of a checkpoint, if there is one.

    ``prepare_state``, where a coordinator has it, takes the state before the start, ahead of any
    remote refresh; otherwise ``load_state_dict`` takes it after.

    Args:
        coordinator: Any coordinator.
        state: What its ``state_dict`` returned, or None.
    """
    prepare = getattr(coordinator, "prepare_state", None)
    if state is not None and prepare is not None:
        prepare(state)
    coordinator.start()
    if state is not None and prepare is None:
        coordinator.load_state_dict(state)
