"""Caution: an update moves only the entries on which it agrees with the gradient.

Source: Liang et al. 2024, https://arxiv.org/abs/2411.16085 (masked updates), and Chen et al. 2025,
https://arxiv.org/abs/2510.12402 (cautious weight decay).
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor
from torch.optim import Optimizer

Caution: TypeAlias = Literal["wd", "update"]

_MIN_MASK_MEAN = 1e-3


def cautious_mask(direction: Tensor, gradient: Tensor) -> Tensor:
    """Return 1 / mean where direction and gradient have one sign, 0 elsewhere.

    ``mean`` is the part of entries that agree, at least 0.001, so that masking keeps the size of
    the whole update on average.

    Args:
        direction: What is subtracted from the weight, times a positive number.
        gradient: Of the same shape.

    Returns:
        Tensor of the shape and dtype of ``direction``.
    """
    mask = (direction * gradient > 0).to(direction.dtype)
    return mask / mask.mean().clamp(min=_MIN_MASK_MEAN)


def cautious_decay_(weights: list[Tensor], directions: list[Tensor], *, shrinkage: float) -> None:
    """Shrink the entries that the update shrinks as well, in place.

    ``W -= shrinkage * 1[u W >= 0] W``: an entry that the update pushes away from zero is left out.

    Args:
        weights: Changed in place.
        directions: What is subtracted from each weight, times a positive number.
        shrinkage: Learning rate times weight decay.
    """
    for weight, direction in zip(weights, directions, strict=True):
        weight.sub_(weight * (direction * weight >= 0), alpha=shrinkage)


def make_cautious(optimizer: Optimizer) -> None:
    """Make any optimizer cautious: what a step changes against the sign of the gradient is undone.

    The change of a step is masked as a whole, so a weight decay inside the step is masked as well;
    our own optimizers leave it out of the mask. Costs a copy of the parameters a step. The
    optimizer stays the same object with the same state; one copied by ``deepcopy`` is not cautious.

    Args:
        optimizer: Any but one whose step takes a closure that it calls several times.
    """
    before: dict[int, Tensor] = {}

    def remember(optimizer: Optimizer, *_: Any) -> None:
        before.clear()
        for parameter in _parameters(optimizer):
            before[id(parameter)] = parameter.detach().clone()

    def mask(optimizer: Optimizer, *_: Any) -> None:
        with torch.no_grad():
            for parameter in _parameters(optimizer):
                start = before.pop(id(parameter))
                if parameter.grad is not None:
                    direction = start - parameter
                    kept = direction * cautious_mask(direction, parameter.grad)
                    parameter.copy_(start - kept)

    optimizer.register_step_pre_hook(remember)
    optimizer.register_step_post_hook(mask)


def _parameters(optimizer: Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
