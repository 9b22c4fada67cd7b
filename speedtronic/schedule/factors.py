"""Schedules as pure functions from a position to the factor on the base learning rate.

A position is the number of finished updates: update k, counted from 1, uses position k - 1.
"""

from __future__ import annotations

import math

_MAX_DEFAULT_WARMUP_STEPS = 100
_DEFAULT_WARMUP_DIVISOR = 10
# From the contract; only a warm-up of more than 1e8 steps would start below it.
_MIN_WARMUP_FACTOR = 1e-8


def default_warmup(horizon: int) -> int:
    """Return the warm-up steps of a schedule that names none: a tenth, at most 100."""
    return min(_MAX_DEFAULT_WARMUP_STEPS, horizon // _DEFAULT_WARMUP_DIVISOR)


def constant_factor(position: int, *, warmup_steps: int) -> float:
    """Rise to 1 over the warm-up and stay there."""
    return _warmup(position, warmup_steps) if position < warmup_steps else 1.0


def cosine_factor(position: int, *, warmup_steps: int, horizon: int, min_ratio: float) -> float:
    """Rise to 1 over the warm-up, then fall along half a cosine to ``min_ratio`` and stay there.

    Args:
        position: Finished updates.
        warmup_steps: The factor is 1 at this position.
        horizon: Position from which the factor is ``min_ratio``.
        min_ratio: The floor, as a part of the base learning rate.

    Example:
        >>> cosine_factor(50, warmup_steps=0, horizon=100, min_ratio=0.1)
        0.55
    """
    if position < warmup_steps:
        return _warmup(position, warmup_steps)
    progress = _progress(position, warmup_steps, horizon)
    return min_ratio + (1 - min_ratio) * 0.5 * (1 + math.cos(math.pi * progress))


def linear_factor(position: int, *, warmup_steps: int, horizon: int, min_ratio: float) -> float:
    """Rise to 1 over the warm-up, then fall in a straight line to ``min_ratio`` and stay there."""
    if position < warmup_steps:
        return _warmup(position, warmup_steps)
    return min_ratio + (1 - min_ratio) * (1 - _progress(position, warmup_steps, horizon))


def _warmup(position: int, warmup_steps: int) -> float:
    return max(_MIN_WARMUP_FACTOR, (position + 1) / warmup_steps)


def _progress(position: int, warmup_steps: int, horizon: int) -> float:
    return min(1.0, max(0.0, (position - warmup_steps) / max(1, horizon - warmup_steps)))
