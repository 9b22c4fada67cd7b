"""The table of routes for people and programs: lines for the log, records for routing.json."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from speedtronic.optim.routing import Route

_WIDTH = 110  # columns of a log line
_MAX_LINES = 3  # for each group, so that a deep model stays at about ten in all
_NAMES_INDENT = "  "
_NO_BREAK = "\xa0"  # a space where no line ends
_MAX_REASON = 50  # characters; a configured expression may be long
_ALGORITHMS = ("muon", "adamw", "frozen")
_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")  # a whole component, as in blocks.11.attention


def describe_routes(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """Summarise the records of ``routing_records`` in a few lines of at most 110 characters.

    Parameters that are trained alike for the same reason share an entry; names that differ in the
    number of a block only are one, with their count.

    Example:
        >>> route = Route(
        ...     name="blocks.0.up.weight", shape=(64, 16), algorithm="muon",
        ...     reason="hidden matrix", decays=True,
        ... )
        >>> records = routing_records(
        ...     [route], lr=0.01, weight_decay=0.1, muon_lr=0.03, muon_weight_decay=0.1
        ... )
        >>> for line in describe_routes(records):
        ...     print(line)
        muon, hidden matrix, lr 0.03, decay 0.1: 1 tensor, 1,024 parameters: blocks.0.up.weight
    """
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for algorithm in _ALGORITHMS:
        for record in records:
            if record["algorithm"] == algorithm:
                groups.setdefault(_label(record), []).append(record)
    return [line for label, members in groups.items() for line in _described(label, members)]


def routing_records(
    routes: Sequence[Route],
    *,
    lr: float,
    weight_decay: float,
    muon_lr: float,
    muon_weight_decay: float,
) -> list[dict[str, Any]]:
    """Return one plain record for every route, with the numbers that are in force for it.

    Args:
        routes: Of a whole model.
        lr: Of the AdamW half, where no rule sets one.
        weight_decay: Of the AdamW half; what does not decay has 0.0.
        muon_lr: Of the Muon half.
        muon_weight_decay: Of the Muon half.

    Returns:
        Dicts of JSON values; frozen parameters have no ``lr`` and no ``weight_decay``.
    """
    rates: dict[str, float | None] = {"muon": muon_lr, "adamw": lr, "frozen": None}
    decays: dict[str, float | None] = {
        "muon": muon_weight_decay,
        "adamw": weight_decay,
        "frozen": None,
    }
    records = []
    for route in routes:
        decay = decays[route.algorithm] if route.weight_decay is None else route.weight_decay
        is_without_decay = route.algorithm != "frozen" and not route.decays
        records.append(
            {
                "name": route.name,
                "shape": list(route.shape),
                "algorithm": route.algorithm,
                "reason": route.reason,
                "lr": rates[route.algorithm] if route.lr is None else route.lr,
                "weight_decay": 0.0 if is_without_decay else decay,
                "decays": route.decays,
                "layout": route.layout,
                "row_splits": list(route.row_splits),
            }
        )
    return records


def _label(record: Mapping[str, Any]) -> str:
    """Return how and why a parameter is trained."""
    algorithm, reason = record["algorithm"], record["reason"]
    if algorithm == "frozen":
        return "frozen"
    layout = "" if record["layout"] == "matrix" else f" ({record['layout']})"
    return (
        f"{algorithm}, {_clipped(reason, _MAX_REASON)}{layout},"
        f" lr {record['lr']:g}, decay {record['weight_decay']:g}"
    )


def _described(label: str, members: list[Mapping[str, Any]]) -> list[str]:
    num_parameters = sum(math.prod(record["shape"]) for record in members)
    counts = f"{_counted(len(members), 'tensor')}, {_counted(num_parameters, 'parameter')}"
    names = _folded_names([record["name"] for record in members])
    for num_shown in range(len(names), 0, -1):
        rest = len(names) - num_shown
        text = ", ".join(names[:num_shown]) + (f" and {rest} more" if rest else "")
        lines = _wrapped(f"{label}: {counts}: {text}")
        if len(lines) <= _MAX_LINES:
            break
    return [_clipped(line, _WIDTH) for line in lines[:_MAX_LINES]]


def _folded_names(names: Sequence[str]) -> list[str]:
    r"""Return names with the numbers of repeated blocks and what they share written once.

    Example:
        >>> _folded_names(["h.0.up.weight", "h.0.down.weight", "h.1.up.weight", "h.1.down.weight"])
        ['h.*.{up, down}.weight\xa0x2']
    """
    by_pattern: dict[str, list[str]] = {}
    for name in names:
        by_pattern.setdefault(_NUMBER.sub("*", name), []).append(name)
    shared: dict[tuple[str, str, int], list[str]] = {}
    for pattern, folded in by_pattern.items():
        if len(folded) == 1:
            key, middle = ("", "", 1), folded[0]
        else:
            start, star, rest = pattern.rpartition("*.")
            middle, dot, end = rest.rpartition(".")
            key = (start + star, dot + end, len(folded))
        shared.setdefault(key, []).append(middle)
    return [text for key, middles in shared.items() for text in _written(*key, middles)]


def _written(prefix: str, suffix: str, count: int, middles: list[str]) -> list[str]:
    if count == 1:
        return middles
    inner = middles[0] if len(middles) == 1 else "{" + ", ".join(middles) + "}"
    return [f"{prefix}{inner}{suffix}{_NO_BREAK}x{count}"]


def _wrapped(text: str) -> list[str]:
    lines = textwrap.wrap(
        text,
        width=_WIDTH,
        subsequent_indent=_NAMES_INDENT,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace(_NO_BREAK, " ") for line in lines]


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def _clipped(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 3] + "..."
