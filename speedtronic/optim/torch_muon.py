"""torch's own Muon as an algorithm of the hybrid: a reference, slower than ours and 2-D only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch.optim._muon import muon  # the functional form has no public name

from speedtronic.core.errors import ConfigError
from speedtronic.optim.grouping import ParameterGroup
from speedtronic.optim.matrices import default_layout
from speedtronic.optim.muon_groups import check_muon_numbers
from speedtronic.optim.polar import coefficients_of
from speedtronic.optim.routing import Route
from speedtronic.optim.tagged import (
    Algorithm,
    State,
    check_numbers,
    check_tensors,
    described,
    gradient_of,
    refuse_sharded,
)

_SCALES = ("original", "match_rms_adamw")


def update_torch_muon(group: ParameterGroup, state: State) -> None:
    """Take one step of ``torch.optim.Muon``; its buffers have the dtype of the gradients."""
    weights = [parameter for parameter in group["params"] if parameter.grad is not None]
    gradients = [gradient_of(weight, group) for weight in weights]
    for weight, gradient in zip(weights, gradients, strict=True):
        if "momentum_buffer" not in state[weight]:
            state[weight]["momentum_buffer"] = torch.zeros_like(gradient)
    muon(
        weights,
        gradients,
        [state[weight]["momentum_buffer"] for weight in weights],
        lr=group["lr"],
        weight_decay=group["weight_decay"],
        momentum=group["momentum"],
        nesterov=group["nesterov"],
        ns_coefficients=coefficients_of("kj5")[0],
        ns_steps=group["ns_steps"],
        eps=group["eps"],
        adjust_lr_fn=group["scale"],
        has_complex=False,
    )


def check_torch_muon_group(group: ParameterGroup) -> None:
    """Check that torch's Muon can train a group.

    Raises:
        ConfigError: a parameter is no 2-D matrix, a value is out of its range, or torch's Muon
            would corrupt its momentum.
    """
    check_tensors(group)
    refuse_sharded(group)
    check_muon_numbers(group)
    check_numbers(group, {"ns_steps": (1, 100)})
    if group["scale"] not in _SCALES:
        raise ConfigError(f"scale must be one of {', '.join(_SCALES)}, got {group['scale']!r}")
    for index, parameter in enumerate(group["params"]):
        if default_layout(parameter.shape) != "matrix":
            raise ConfigError(f"{described(group, index)} is not 2-D, as torch's Muon wants it")
        if parameter.dtype is torch.bfloat16 and not group["nesterov"]:
            # pytorch PR #194664: it would normalise the momentum itself, in place.
            raise ConfigError(
                f"nesterov must be True with torch's Muon and bf16: {described(group, index)} is"
                " bfloat16; use algorithm muon"
            )


def routes_for_torch(routes: Sequence[Route]) -> list[Route]:
    """Return routes as torch's Muon can follow them: 2-D matrices as stored and in one piece.

    Raises:
        ConfigError: a configured rule sends another shape to Muon.
    """
    return [_adapted(route) for route in routes]


def _adapted(route: Route) -> Route:
    route = replace(route, row_splits=())
    if route.algorithm != "muon" or route.layout in ("matrix", "transposed"):
        return route
    if route.rule is not None:
        raise ConfigError(
            f"optimizer.routing[{route.rule}].algorithm must be adamw with torch's Muon for"
            f" {route.name} of shape {route.shape}, which is not 2-D; use optimizer=muon"
        )
    reason = "not 2-D, as torch's Muon wants it"
    return replace(route, algorithm="adamw", reason=reason, layout="matrix")


TORCH_MUON = Algorithm(
    defaults={
        "lr": 0.03,
        "momentum": 0.95,
        "nesterov": True,
        "weight_decay": 0.1,
        "scale": "original",
        "ns_steps": 5,
        "eps": 1e-7,
    },
    check=check_torch_muon_group,
    update=update_torch_muon,
)
