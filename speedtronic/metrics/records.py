"""Turning an event and its payload into one line of strict JSON, and into copies for hooks."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from speedtronic.core.types import JSON


def encode_record(event: str, payload: Mapping[str, Any], *, step: int) -> str:
    r"""Write an event as one line of strict JSON, without the line break.

    ``event`` and ``step`` come first. A number that is not finite becomes null, and the record
    then has ``"nonfinite": true``. Only ASCII is written, so no text can break the line.

    Args:
        event: Name of the event; wins over a key ``event`` of the payload.
        payload: Names and values. Arrays become lists, anything unknown its text.
        step: Written where the payload has no step of its own.

    Example:
        >>> encode_record("train_step", {"step": 3, "loss": float("nan")}, step=0)
        '{"event": "train_step", "step": 3, "loss": null, "nonfinite": true}'
    """
    values: dict[str, Any] = {"event": event, "step": step}
    values.update((str(key), value) for key, value in payload.items() if str(key) != "event")
    nonfinite: list[float] = []
    record = {key: _to_json(value, nonfinite) for key, value in values.items()}
    if nonfinite:
        record["nonfinite"] = True
    return json.dumps(record, allow_nan=False)


def _to_json(value: Any, nonfinite: list[float]) -> JSON:
    """Return the JSON form of a value; numbers without one are collected in ``nonfinite``."""
    if isinstance(value, (float, int)) and not isinstance(value, bool):
        return _number(value, nonfinite)
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, Mapping):
        return {str(key): _to_json(item, nonfinite) for key, item in value.items()}
    if isinstance(value, (set, frozenset)):
        value = sorted(value, key=repr)
    if isinstance(value, (list, tuple)):
        return [_to_json(item, nonfinite) for item in value]
    as_list = getattr(value, "tolist", None)  # arrays, tensors and their scalars
    return _to_json(as_list(), nonfinite) if callable(as_list) else str(value)


def _number(value: float, nonfinite: list[float]) -> JSON:
    """Return a plain number; a subclass such as an enum member or numpy.float64 loses its class."""
    if isinstance(value, int):
        return int(value)
    if math.isfinite(value):
        return float(value)
    nonfinite.append(value)
    return None


def copy_payload(value: Any) -> Any:
    """Copy dicts, lists, tuples and sets all the way down; leaves are shared.

    Leaves are not copied because ``copy.deepcopy`` refuses some (locks, tensors with a history).
    """
    if isinstance(value, Mapping):
        return {key: copy_payload(item) for key, item in value.items()}
    if isinstance(value, list):
        return [copy_payload(item) for item in value]
    if type(value) is tuple:
        return tuple(copy_payload(item) for item in value)
    return set(value) if isinstance(value, set) else value


def find_scalars(event: str, payload: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of an event under the names that dashboards show.

    ``train_step`` and ``train_stats`` share the prefix ``train/``; other events use their own
    name. The step is the axis, and text and flags are no numbers. Start and end of a fit have none:
    they are points, not curves.

    Example:
        >>> find_scalars("train_step", {"step": 1, "loss": 2.5, "lr": 0.1})
        {'train/loss': 2.5, 'train/lr': 0.1}
    """
    if event in ("train_start", "train_end"):
        return {}
    prefix = "train" if event in ("train_step", "train_stats") else event
    return {
        f"{prefix}/{key}": float(value)
        for key, value in payload.items()
        if key != "step" and isinstance(value, (int, float)) and not isinstance(value, bool)
    }
