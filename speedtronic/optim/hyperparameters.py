"""Changing the hyperparameters of an optimizer that was restored from a checkpoint.

An optimizer as it was just built holds the configured values, group by group; they are noted before
the restore and put back after it where the configuration asks for them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, TypeAlias

from torch.optim import Optimizer

from speedtronic.optim.grouping import ParameterGroup

Hyperparameters: TypeAlias = Sequence[dict[str, Any]]
"""The values of every group, in the order of the groups."""

_STRUCTURE = frozenset({"params", "param_names", "name", "algorithm", "layouts", "row_splits"})
# Settings of Muon's groups have this prefix in the configuration.
_MUON_SETTINGS = frozenset({"lr", "momentum", "weight_decay", "nesterov", "ns_steps"})
_BASE = "initial_"  # a schedule keeps the value that it scales under this name


def configured_hyperparameters(optimizer: Optimizer) -> Hyperparameters:
    """Return the hyperparameters of an optimizer before any schedule's factor."""
    return [
        {
            key: group.get(_BASE + key, value)
            for key, value in group.items()
            if key not in _STRUCTURE and not key.startswith(_BASE)
        }
        for group in optimizer.param_groups
    ]


def set_hyperparameters(
    optimizer: Optimizer, configured: Hyperparameters, *, keys: Collection[str]
) -> list[str]:
    """Put configured hyperparameters in force where they differ from those of the optimizer.

    Where a schedule scales a value, the base is changed: call ``reimpose_schedule`` afterwards.

    Args:
        optimizer: Restored; its groups are those that ``configured`` was noted from.
        configured: From ``configured_hyperparameters``.
        keys: Which of them to change.

    Returns:
        One line for each change, like ``optimizer.lr: 0.001 -> 0.002``.
    """
    changes: dict[str, None] = {}  # a set that keeps its order
    for group, wanted in zip(optimizer.param_groups, configured, strict=True):
        for key in sorted(wanted.keys() & set(keys)):
            change = _set_in_group(group, key, wanted[key])
            if change is not None:
                changes[change] = None
    return list(changes)


def _set_in_group(group: ParameterGroup, key: str, new: Any) -> str | None:
    target = _BASE + key if _BASE + key in group else key
    old = group.get(target)
    if isinstance(old, list):
        old = tuple(old)  # as a file may give it back
    if old == (tuple(new) if isinstance(new, list) else new):
        return None
    group[target] = new
    is_muon = str(group.get("algorithm", "")).startswith("muon") and key in _MUON_SETTINGS
    prefix = "muon_" if is_muon else ""
    return f"optimizer.{prefix}{key}: {old} -> {new}"
