"""What stands for a schedule or checkpoints that were not given, so that the loop does not ask."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol


class Schedule(Protocol):
    """What the trainer needs of a learning rate schedule."""

    def step(self) -> None:
        """Advance by one applied update."""

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint must hold."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a saved state."""


class NoSchedule:
    """Leaves the learning rate alone."""

    def step(self) -> None:
        """Do nothing."""

    def state_dict(self) -> dict[str, Any]:
        """Return an empty state."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Ignore the state of a run that had a schedule."""


class NoCheckpoints:
    """Saves nothing."""

    enabled = False
    keep_best = 0
    on_event: Callable[[str, Mapping[str, Any]], None] | None = None

    def should_save(self, step: int) -> bool:  # noqa: ARG002 - the manager's signature
        """Return False."""
        return False

    def save(self, step: int, state: dict[str, Any], *, metric: float | None = None) -> None:
        """Do nothing."""

    def poll(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""
