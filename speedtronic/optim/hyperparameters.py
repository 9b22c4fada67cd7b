"""Changing the hyperparameters of an optimizer that was restored from a checkpoint."""

from __future__ import annotations

from typing import Any

from torch.optim import Optimizer

from speedtronic.optim.grouping import NOT_DECAYED, ParameterGroup


def set_hyperparameters(
    optimizer: Optimizer,
    *,
    lr: float | None = None,
    betas: tuple[float, float] | None = None,
    weight_decay: float | None = None,
) -> list[str]:
    """Put configured hyperparameters in force where they differ from those of the optimizer.

    The group without decay keeps its zero. With a schedule, ``lr`` is the rate that it multiplies:
    call ``reimpose_schedule`` afterwards.

    Args:
        optimizer: Built by this package or any other; keys that a group lacks are not added.
        lr: Base learning rate; None leaves it.
        betas: Decay of the moments; None leaves it.
        weight_decay: None leaves it.

    Returns:
        One line for each change, like ``optimizer.lr: 0.001 -> 0.002``.
    """
    wanted = {"lr": lr, "betas": betas, "weight_decay": weight_decay}
    changes: dict[str, None] = {}  # a set that keeps its order
    for group in optimizer.param_groups:
        for key, value in wanted.items():
            if value is None or key not in group:
                continue
            change = _set_in_group(group, key, value)
            if change is not None:
                changes[change] = None
    return list(changes)


def _set_in_group(group: ParameterGroup, key: str, value: Any) -> str | None:
    if key == "weight_decay" and group.get("name") == NOT_DECAYED:
        return None
    target = "initial_lr" if key == "lr" and "initial_lr" in group else key
    new = tuple(value) if key == "betas" else value
    old = tuple(group[target]) if key == "betas" else group[target]
    if old == new:
        return None
    group[target] = new
    return f"optimizer.{key}: {old} -> {new}"
