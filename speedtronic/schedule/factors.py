"""Schedules as pure functions from a position to the factor on the base learning rate.

A position is the number of finished updates: update k, counted from 1, uses position k - 1.
"""

from __future__ import annotations

import math
from typing import Literal, TypeAlias

DecayShape: TypeAlias = Literal["linear", "1-sqrt", "cosine"]

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


def wsd_factor(
    position: int,
    *,
    warmup_steps: int,
    horizon: int,
    min_ratio: float,
    decay_ratio: float,
    shape: DecayShape,
) -> float:
    """Rise to 1 over the warm-up, stay there, and fall to ``min_ratio`` at the end.

    The fall takes the last ``D = round(horizon * decay_ratio)`` updates, fewer where it would begin
    within the warm-up. It aims at the floor one update past them, with progress
    ``(position + 1 - start) / (D + 1)`` from ``start = horizon - D``: so the first of them is
    already below 1, and the last still above the floor, where an update with a floor of 0 would be
    lost.

    Args:
        position: Finished updates.
        warmup_steps: The factor is 1 at this position; a warm-up above the horizon goes on past it.
        horizon: Position from which the factor is ``min_ratio``.
        min_ratio: The floor, as a part of the base learning rate.
        decay_ratio: Part of the horizon that falls, in (0, 1].
        shape: A straight line, one minus the root of the progress, or half a cosine.

    Source:
        Warm-up, stable, decay, and the root as best cooldown: Hägele et al. 2024, arXiv 2405.18392.

    Example:
        >>> updates = {"warmup_steps": 2, "horizon": 8, "min_ratio": 0.0}
        >>> [wsd_factor(s, **updates, decay_ratio=0.375, shape="linear") for s in range(9)]
        [0.5, 1.0, 1.0, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0]
    """
    if position < warmup_steps:
        return _warmup(position, warmup_steps)
    if position >= horizon:
        return min_ratio
    num_decaying = min(round(horizon * decay_ratio), horizon - warmup_steps)
    start = horizon - num_decaying
    if position < start:
        return 1.0
    progress = (position + 1 - start) / (num_decaying + 1)
    return min_ratio + (1 - min_ratio) * _remaining(shape, progress)


def _remaining(shape: DecayShape, progress: float) -> float:
    if shape == "linear":
        return 1 - progress
    if shape == "1-sqrt":
        return 1 - math.sqrt(progress)
    return 0.5 * (1 + math.cos(math.pi * progress))


def _warmup(position: int, warmup_steps: int) -> float:
    return max(_MIN_WARMUP_FACTOR, (position + 1) / warmup_steps)


def _progress(position: int, warmup_steps: int, horizon: int) -> float:
    return min(1.0, max(0.0, (position - warmup_steps) / max(1, horizon - warmup_steps)))
