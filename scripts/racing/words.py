"""How the numbers of an optimizer race are written, in tables and in the picture alike."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from racing.settings import Answer, Setting

_SMALL = 0.01
"""Numbers below it are written with an exponent, as people type learning rates."""
_SHORTENED = ("optimizer.", "speedtronic.config.")


def write_value(value: Any) -> str:
    """Return a setting's value as it is typed on a command line.

    Example:
        >>> [write_value(value) for value in (0.0015, 0.02, 3, True, None, "matrices", [0.9, 0.95])]
        ['1.5e-3', '0.02', '3', 'true', 'null', 'matrices', '[0.9, 0.95]']
    """
    if isinstance(value, float) and 0 < abs(value) < _SMALL:
        mantissa, exponent = f"{value:e}".split("e")
        return f"{float(mantissa):g}e{int(exponent)}"
    if isinstance(value, str):
        return _shorten(value)
    return f"{value:g}" if isinstance(value, float) else json.dumps(value, default=str)


def write_values(values: Mapping[str, Any]) -> str:
    """Return dotted keys and values in one line, ``lr 2e-3, scheduler.min_lr_ratio 0``."""
    return ", ".join(f"{_shorten(key)} {write_value(value)}" for key, value in values.items())


def write_key(key: str) -> str:
    """Return a dotted key without the section that goes without saying."""
    return _shorten(key)


def write_answer(answer: Answer) -> str:
    """Return the line that says in how many steps an optimizer reaches the baseline's best."""
    target, reached = answer.baseline, answer.reached
    best = f"{target.optimizer}'s best {target.mean:.3f} ({_where(target)})"
    if reached is None:
        closest = answer.closest
        return (
            f"{answer.optimizer} does not reach {best}:"
            f" its lowest is {closest.mean:.3f} ({_where(closest)})"
        )
    values = write_values(reached.values)
    return (
        f"{answer.optimizer} reaches {best} in {reached.steps} steps"
        f"{f' ({values})' if values else ''}: {_write_ratios(answer)}"
    )


def write_short_answer(answer: Answer) -> str:
    """Return the same without the settings, for a picture that shows them."""
    target, reached = answer.baseline, answer.reached
    best = f"{target.optimizer}'s best loss"
    if reached is None:
        lowest = f"{answer.closest.mean:.3f} against {target.mean:.3f}"
        return f"{answer.optimizer} does not reach {best}: {lowest}"
    steps = f"in {reached.steps} steps instead of {target.steps}"
    return f"{answer.optimizer} reaches {best} {steps}: {_write_ratios(answer)}"


def write_estimate(answer: Answer) -> str | None:
    """Return the line with the estimate between horizons; None where nothing was reached."""
    if answer.reached is None:
        return None
    if answer.estimated_steps is None or answer.shorter_steps is None:
        return (
            f"{answer.optimizer}: no run shorter than {answer.reached.steps} steps, so it may need"
            " fewer"
        )
    ratio = answer.estimated_steps / answer.baseline.steps
    return (
        f"{answer.optimizer}, an estimate, log-linear between the runs of {answer.shorter_steps}"
        f" and {answer.reached.steps} steps: {answer.estimated_steps:.0f} steps, {ratio:.2f} times"
        " the steps"
    )


def _write_ratios(answer: Answer) -> str:
    time = "" if answer.time_ratio is None else f", {answer.time_ratio:.2f} times the training time"
    return f"{answer.steps_ratio:.2f} times the steps{time}"


def _where(setting: Setting) -> str:
    seeds = f"{len(setting.runs)} seed{'s' if len(setting.runs) > 1 else ''}"
    parts = [write_values(setting.values), f"{setting.steps} steps", seeds]
    return ", ".join(part for part in parts if part)


def _shorten(text: str) -> str:
    for prefix in _SHORTENED:
        text = text.removeprefix(prefix)
    return text
