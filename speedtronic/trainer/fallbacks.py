"""The fallbacks of a run: each is one warning, one event and one field of the result."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from speedtronic.metrics.logger import MetricLogger


class Fallbacks:
    """Collects fallbacks; those found before a fit are announced when it starts.

    A trainer is built before its run folder is claimed, and may not write until then.

    Args:
        logger: Where a fallback is announced.
    """

    def __init__(self, logger: MetricLogger) -> None:
        self._logger = logger
        self._earlier: list[dict[str, Any]] = []
        self._found: list[dict[str, Any]] = []
        self._num_announced = 0
        self._is_open = False

    def add(self, kind: str, reason: str, *, step: int, event: str = "fallback") -> None:
        """Note a fallback, once for each kind and reason."""
        if any(_key(known) == (kind, reason) for known in self._found):
            return
        self._found.append({"kind": kind, "reason": reason, "step": step, "_event": event})
        if self._is_open:
            self.announce()

    def announce(self) -> None:
        """Warn of all that was not announced yet; from now on new ones are announced at once."""
        self._is_open = True
        for fallback in self._found[self._num_announced :]:
            self._num_announced += 1
            self._logger.warning(f"{fallback['kind']}: {fallback['reason']}")
            self._logger.event(fallback["_event"], {**_public(fallback), "fallback": True})

    def restore(self, fallbacks: Iterable[Mapping[str, Any]]) -> None:
        """Take over those of the run's earlier segments; they were announced then."""
        self._earlier = [dict(fallback) for fallback in fallbacks]

    def to_list(self) -> list[dict[str, Any]]:
        """Return all of the run, each kind and reason once, with the step it was first taken."""
        known = {_key(fallback) for fallback in self._earlier}
        return self._earlier + [_public(f) for f in self._found if _key(f) not in known]


def _key(fallback: Mapping[str, Any]) -> tuple[str, str]:
    return fallback["kind"], fallback["reason"]


def _public(fallback: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in fallback.items() if not key.startswith("_")}
