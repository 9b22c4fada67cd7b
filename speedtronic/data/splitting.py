"""What is held out for evaluation: whole files where there are many, otherwise the tail."""

from __future__ import annotations

from fractions import Fraction


def held_out_period(num_files: int, *, fraction: float) -> int | None:
    """Return n when every n-th file is held out, or None when the tail of the joined text is.

    Files are held out when at least two are; 0.05 of 40 files or more means every twentieth.

    Args:
        num_files: Files there are.
        fraction: Part to hold out, in [0, 1).
    """
    if not 0 < fraction <= 0.5:  # noqa: PLR2004 - above a half, every n-th file is too coarse
        return None
    period = round(1 / fraction)
    return period if num_files >= 2 * period else None


def is_held_out(index: int, *, period: int) -> bool:
    """Tell whether a file is held out: the n-th, the 2n-th and so on."""
    return index % period == period - 1


def tail_start(length: int, *, fraction: float) -> int:
    """Return where the held-out tail of a text of ``length`` begins; its size is rounded."""
    return length - round(length * Fraction(str(fraction)))
