"""Figures with their targets, and the few ways to measure one."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROUNDS = 10
BYTES_PER_MB = 1_000_000


@dataclass(frozen=True)
class Figure:
    """One measured number and what it should be."""

    name: str
    value: float
    unit: str
    target: float | None = None
    """None where the number is only reported."""
    at_most: bool = True
    """Whether the target is an upper limit."""

    def __str__(self) -> str:
        """Return the line that is printed."""
        line = f"  {self.name:<58} {self.value:>10.3f} {self.unit:<10}"
        if self.target is None:
            return line.rstrip()
        reached = self.value <= self.target if self.at_most else self.value >= self.target
        limit = "at most" if self.at_most else "at least"
        return f"{line} {limit} {self.target:g}: {'reached' if reached else 'MISSED'}"


def show(*figures: Figure) -> None:
    """Print figures, one a line."""
    for figure in figures:
        print(figure, flush=True)


def seconds_of(action: Callable[[], object]) -> float:
    """Return how long an action takes."""
    start_s = time.perf_counter()
    action()
    return time.perf_counter() - start_s


def interleaved(
    contenders: dict[str, Callable[[], object]], *, rounds: int, warm_up: int = 2
) -> dict[str, list[float]]:
    """Run contenders in turns and return the seconds of each, round by round.

    Args:
        contenders: By name.
        rounds: Counted turns.
        warm_up: Turns before them that do not count.
    """
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(warm_up + rounds):
        for name, action in contenders.items():
            elapsed_s = seconds_of(action)
            if turn >= warm_up:
                seconds[name].append(elapsed_s)
    return seconds


def median(values: list[float]) -> float:
    """Return the median."""
    return statistics.median(values)


def median_ratio(above: list[float], below: list[float]) -> float:
    """Return the median of the ratios of each round."""
    return median([a / b for a, b in zip(above, below, strict=True)])


def anonymous_bytes() -> int:
    """Return this process's resident memory without mapped files."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("RssAnon:")[1].split()[0]) * 1024
