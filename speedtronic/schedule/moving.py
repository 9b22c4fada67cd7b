"""A LambdaLR that moves momentum and weight decay with the learning rate."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

Curve: TypeAlias = Callable[[int, float], float]
"""From a position and a base to the value in force; a pure function."""

MOVABLE = ("momentum", "weight_decay")
"""Hyperparameters of a group that a schedule may move, beside ``lr``."""


class FactorSchedule(LambdaLR):
    """Multiplies learning rates, and moves other hyperparameters along curves of their own.

    Each group keeps the base of a moved key beside it, as ``initial_<key>``, the way torch keeps
    ``initial_lr``; it is saved with the optimizer. A group that lacks the key, or whose base is 0
    (what is off), stays as it is.

    Args:
        optimizer: Gets the values of position 0 at once.
        factor: From a position to the factor on the base learning rates; a plain function, since
            torch saves the attributes of any other callable.
        curves: By key of a group, one of ``MOVABLE``.
    """

    def __init__(
        self, optimizer: Optimizer, factor: Callable[[int], float], *, curves: Mapping[str, Curve]
    ) -> None:
        self._curves = dict(curves)  # before torch's constructor, which takes the first step
        super().__init__(optimizer, factor)

    # The three below override methods with a body because torch asks for it: a schedule does its
    # work in `step`, and LambdaLR saves every attribute that its `state_dict` does not leave out.

    def step(self, epoch: int | None = None) -> None:
        """Advance by one update and put all values of the new position in force."""
        super().step(epoch)
        self.impose()

    def state_dict(self) -> dict[str, Any]:
        """Return what a LambdaLR saves, position and base learning rates, without the curves."""
        return {key: value for key, value in super().state_dict().items() if key != "_curves"}

    def impose(self) -> None:
        """Put the moved values, without the learning rates, of the present position in force."""
        for group in self.optimizer.param_groups:
            for key, curve in self._curves.items():
                if key not in group:
                    continue
                # Here and not in the constructor: a restored group may come from a run that did
                # not move this key, and its value is then the base.
                base = group.setdefault(base_key(key), group[key])
                group[key] = curve(self.last_epoch, base) if base else base


def base_key(key: str) -> str:
    """Return where a group keeps the base of a moved key."""
    return f"initial_{key}"


def restore_bases(optimizer: Optimizer) -> None:
    """Put the bases back in force that any schedule, of this run or an earlier one, has kept."""
    for group in optimizer.param_groups:
        for key in MOVABLE:
            if base_key(key) in group:
                group[key] = group[base_key(key)]
