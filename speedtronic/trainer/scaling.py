"""The gradient scaler of each fit: a new object that goes on where the last one left off."""

from __future__ import annotations

from typing import Any

from torch.amp.grad_scaler import GradScaler

from speedtronic.precision import PrecisionPlan


class LossScaling:
    """Makes scalers and carries their state from fit to fit; disabled ones have none.

    Args:
        precision: Says whether gradients are scaled, and where.
    """

    def __init__(self, precision: PrecisionPlan) -> None:
        self._precision = precision
        self._scaler = self._new()
        self._staged: dict[str, Any] | None = None

    def stage(self, state: dict[str, Any] | None) -> None:
        """Keep a saved state for the next fit."""
        self._staged = state

    def renew(self) -> GradScaler:
        """Return a new scaler with the staged state, or that of the scaler before."""
        state = self.state_dict()
        self._scaler, self._staged = self._new(), None
        if state:
            self._scaler.load_state_dict(state)
        return self._scaler

    def state_dict(self) -> dict[str, Any] | None:
        """Return what the next scaler starts from, None for the defaults."""
        return self._staged or self._scaler.state_dict() or None

    def _new(self) -> GradScaler:
        return GradScaler(self._precision.device_type, enabled=self._precision.use_scaler)
