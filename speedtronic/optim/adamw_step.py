"""One AdamW step with the parameters of a group: torch's kernels, or the cautious variant."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from speedtronic.core.errors import ConfigError
from speedtronic.optim.cautious import Caution, cautious_decay_, cautious_mask
from speedtronic.optim.grouping import ParameterGroup
from speedtronic.optim.tagged import (
    Algorithm,
    State,
    TaggedOptimizer,
    check_numbers,
    check_tensors,
    gradient_of,
)

_NUM_BETAS = 2


def update_adamw(group: ParameterGroup, state: State) -> None:
    """Take one AdamW step with the parameters of a group that have a gradient."""
    weights = [parameter for parameter in group["params"] if parameter.grad is not None]
    if not weights:
        return
    gradients = [gradient_of(weight, group) for weight in weights]
    states = [_moments(state[weight], weight, group) for weight in weights]
    moments = [entry["exp_avg"] for entry in states]
    squares = [entry["exp_avg_sq"] for entry in states]
    steps = [entry["step"] for entry in states]
    if group["cautious"] is not None:
        _update_cautiously(weights, gradients, moments, squares, steps, group)
        return
    beta1, beta2 = group["betas"]
    adamw(
        weights,
        gradients,
        moments,
        squares,
        [],
        steps,
        fused=group["fused"] or None,  # None lets torch choose between its other forms
        has_complex=any(weight.is_complex() for weight in weights),
        amsgrad=False,
        beta1=beta1,
        beta2=beta2,
        lr=group["lr"],
        weight_decay=group["weight_decay"],
        eps=group["eps"],
        maximize=False,
    )


def _update_cautiously(
    weights: list[Tensor],
    gradients: list[Tensor],
    moments: list[Tensor],
    squares: list[Tensor],
    steps: list[Tensor],
    group: ParameterGroup,
) -> None:
    """Take one step in the order of torch's loop, with the update or the decay masked."""
    beta1, beta2 = group["betas"]
    torch._foreach_add_(steps, 1)
    torch._foreach_lerp_(moments, gradients, 1 - beta1)
    torch._foreach_mul_(squares, beta2)
    torch._foreach_addcmul_(squares, gradients, gradients, 1 - beta2)
    counts = [step.item() for step in steps]  # on the CPU: no wait for the device
    roots = list(torch._foreach_sqrt(squares))  # noqa: SLF001 - torch has no public name
    torch._foreach_div_(roots, [math.sqrt(1 - beta2**count) for count in counts])
    torch._foreach_add_(roots, group["eps"])
    lr = float(group["lr"])  # it may be a tensor
    shrinkage = lr * group["weight_decay"]
    directions = moments
    if group["cautious"] == "wd":
        cautious_decay_(weights, moments, shrinkage=shrinkage)
    else:
        torch._foreach_mul_(weights, 1 - shrinkage)
        directions = [
            moment * cautious_mask(moment, gradient)
            for moment, gradient in zip(moments, gradients, strict=True)
        ]
    sizes = [-lr / (1 - beta1**count) for count in counts]
    torch._foreach_addcdiv_(weights, directions, roots, sizes)


def _moments(state: dict[str, Any], weight: Tensor, group: ParameterGroup) -> dict[str, Any]:
    if not state:
        # The fused kernels want the count beside the weight, the others read it on the CPU.
        device = weight.device if group["fused"] else torch.device("cpu")
        state["step"] = torch.zeros((), dtype=torch.float32, device=device)
        state["exp_avg"] = torch.zeros_like(weight, memory_format=torch.preserve_format)
        state["exp_avg_sq"] = torch.zeros_like(weight, memory_format=torch.preserve_format)
    return state


def check_adamw_group(group: ParameterGroup) -> None:
    """Check that AdamW can train a group.

    Raises:
        ConfigError: a parameter is sparse or not of real floating point, or a value is out of its
            range.
    """
    check_tensors(group, allows_complex=group["cautious"] is None)
    check_numbers(group, dict.fromkeys(("lr", "eps", "weight_decay"), (0, math.inf)))
    betas = group["betas"]
    is_pair = isinstance(betas, tuple | list) and len(betas) == _NUM_BETAS
    if not is_pair or not all(isinstance(b, int | float) and 0 <= b < 1 for b in betas):
        raise ConfigError(f"betas must be two numbers in [0, 1), got {group['betas']!r}")
    if group["cautious"] not in (None, "wd", "update"):
        raise ConfigError(f"cautious must be None, wd or update, got {group['cautious']!r}")
    if group["cautious"] is not None and group["fused"]:
        raise ConfigError("fused must be False with cautious: torch's kernel has no mask")


ADAMW = Algorithm(
    defaults={
        "lr": 1e-3,
        "betas": (0.9, 0.95),
        "eps": 1e-8,
        "weight_decay": 0.1,
        "cautious": None,
        "fused": False,
    },
    check=check_adamw_group,
    update=update_adamw,
)


class CautiousAdamW(TaggedOptimizer):
    """AdamW whose update or decay moves only where it agrees with the gradient."""

    algorithms: ClassVar[Mapping[str, Algorithm]] = {"adamw": ADAMW}

    def __init__(
        self,
        params: Any,
        *,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.95),
        eps: float = 1e-8,
        weight_decay: float = 0.1,
        cautious: Caution = "update",
    ) -> None:
        """Check every parameter and every number.

        Args:
            params: Parameters, named parameters or groups, as of any optimizer.
            lr: Learning rate.
            betas: Decay of the two moments.
            eps: Added to the root of the second moment.
            weight_decay: Shrinkage per update, times the learning rate; never masked by ``update``.
            cautious: ``update`` masks the update with ``moment * gradient > 0`` and divides by the
                part that is left; ``wd`` decays only what the update shrinks.

        Raises:
            ConfigError: a parameter is sparse or complex, or a value is out of its range.
        """
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "cautious": cautious,
        }
        super().__init__(params, defaults)
