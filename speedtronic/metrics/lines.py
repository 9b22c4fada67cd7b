"""The one line of text a person reads about an event."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

SECONDS_PER_MINUTE = 60
SECONDS_PER_HOUR = 3600
BYTES_PER_MB = 1_000_000
TEN_THOUSAND = 10_000
MILLION = 1_000_000


def describe_event(
    event: str, payload: Mapping[str, Any], *, total_steps: int | None = None
) -> str | None:
    """Return a line for the events that people follow, None for the others.

    Args:
        event: Name of the event.
        payload: Its values; missing ones are left out of the line.
        total_steps: Target of the run; adds it and the time left to a ``train_step``.

    Example:
        >>> describe_event("train_step", {"step": 10, "loss": 2.5, "lr": 0.003})
        'step 10  loss 2.5000  lr 3.00e-03'
    """
    if event == "train_step":
        return _describe_train_step(payload, total_steps)
    if event == "eval":
        return _describe_eval(payload)
    return _describe_checkpoint(payload) if event == "checkpoint" else None


def _describe_train_step(payload: Mapping[str, Any], total_steps: int | None) -> str:
    step = payload.get("step")
    position = f"step {step}" if total_steps is None else f"step {step}/{total_steps}"
    return "  ".join(
        part for part in (position, describe_pace(payload, total_steps=total_steps)) if part
    )


def describe_pace(payload: Mapping[str, Any], *, total_steps: int | None) -> str:
    """Return loss, learning rate, tokens a second and time left, as far as ``payload`` has them."""
    parts = _parts(
        payload,
        {
            "loss": "loss {:.4f}".format,
            "lr": "lr {:.2e}".format,
            "tokens_per_sec": lambda rate: f"{format_count(rate)} tokens/s",
        },
    )
    left_s = seconds_left(payload, total_steps=total_steps)
    if left_s is not None:
        parts.append(f"{format_seconds(left_s)} left")
    return "  ".join(parts)


def _describe_eval(payload: Mapping[str, Any]) -> str:
    parts = [f"step {payload.get('step')}"]
    parts += _parts(
        payload,
        {
            "loss": "held-out loss {:.4f}".format,
            "perplexity": "perplexity {:.4g}".format,
            "bits_per_byte": "{:.4f} bits per byte".format,
            "accuracy": "accuracy {:.1%}".format,
        },
    )
    return "  ".join(parts)


def _describe_checkpoint(payload: Mapping[str, Any]) -> str:
    line = f"step {payload.get('step')}  saved {payload.get('path')}"
    parts = _parts(
        payload,
        {
            "size_bytes": lambda size: f"{size / BYTES_PER_MB:.1f} MB",
            "seconds": "in {:.2f} s".format,
        },
    )
    return f"{line} ({' '.join(parts)})" if parts else line


def _parts(
    payload: Mapping[str, Any], formatters: Mapping[str, Callable[[float], str]]
) -> list[str]:
    """Format the numbers that are there, in the order of ``formatters``."""
    return [
        formatter(payload[key])
        for key, formatter in formatters.items()
        if isinstance(payload.get(key), (int, float))
    ]


def seconds_left(payload: Mapping[str, Any], *, total_steps: int | None) -> float | None:
    """Return the seconds from a ``train_step`` to the target at the run's mean rate, if known."""
    rate = payload.get("steps_per_sec")
    if total_steps is None or not isinstance(rate, (int, float)) or not rate > 0:
        return None
    return float(max(0, total_steps - payload["step"]) / rate)


def format_seconds(seconds: float) -> str:
    """Return minutes and seconds, with hours when there are any.

    Example:
        >>> format_seconds(75), format_seconds(3700)
        ('1:15', '1:01:40')
    """
    if not math.isfinite(seconds):
        return "?"
    total = round(seconds)
    hours, minutes = total // SECONDS_PER_HOUR, total % SECONDS_PER_HOUR // SECONDS_PER_MINUTE
    rest = total % SECONDS_PER_MINUTE
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def format_count(count: float) -> str:
    """Return a count in three or four digits: 950, 9800, 12.3k, 4.56M.

    Example:
        >>> format_count(12_345.6), format_count(4_560_000)
        ('12.3k', '4.56M')
    """
    if not math.isfinite(count):
        return str(count)
    if count < TEN_THOUSAND:
        return f"{count:.0f}"
    return f"{count / 1000:.1f}k" if count < MILLION else f"{count / MILLION:.2f}M"
