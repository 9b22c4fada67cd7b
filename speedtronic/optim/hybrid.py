"""One optimizer for a whole model: Muon for its hidden matrices, AdamW for everything else."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Literal, TypeAlias

import torch
from torch import nn

from speedtronic.core.errors import FallbackWarning
from speedtronic.optim.adamw import fused_obstacle
from speedtronic.optim.adamw_step import ADAMW
from speedtronic.optim.grouping import (
    DECAYED,
    NOT_DECAYED,
    ParameterGroup,
    trainable_parameters,
)
from speedtronic.optim.muon import MUON
from speedtronic.optim.routing import Route
from speedtronic.optim.tagged import Algorithm, TaggedOptimizer
from speedtronic.optim.torch_muon import TORCH_MUON

MuonKind: TypeAlias = Literal["muon", "muon_torch"]


class HybridOptimizer(TaggedOptimizer):
    """Muon and AdamW as one optimizer.

    Every group says with ``algorithm`` how it is trained (``muon``, ``adamw``, ``muon_torch``) and
    has the hyperparameters of that algorithm; schedules scale each group's own learning rate.
    """

    algorithms: ClassVar[Mapping[str, Algorithm]] = {
        "muon": MUON,
        "adamw": ADAMW,
        "muon_torch": TORCH_MUON,
    }

    def __init__(self, groups: Iterable[ParameterGroup]) -> None:
        """Check every group.

        Args:
            groups: Parameter groups; ``build_hybrid`` makes them for a model.

        Raises:
            ConfigError: an algorithm cannot train a parameter of its group, or a value is out of
                its range.
        """
        super().__init__(list(groups), {})


def build_hybrid(
    model: nn.Module,
    *,
    routes: Sequence[Route],
    muon: Mapping[str, Any],
    adamw: Mapping[str, Any],
    muon_kind: MuonKind = "muon",
    device: torch.device,
) -> HybridOptimizer:
    """Build the optimizer of a model from its routes, each trainable parameter exactly once.

    Args:
        model: Whose routes these are.
        routes: From ``route_parameters``.
        muon: Hyperparameters of Muon's groups.
        adamw: Hyperparameters of AdamW's groups; ``fused`` None takes torch's fused kernel where it
            works, a kernel that does not work is left out with a ``FallbackWarning``.
        muon_kind: Which Muon.
        device: Where the parameters will be when the optimizer steps.

    Raises:
        ConfigError: the model has no trainable parameter, or as ``HybridOptimizer``.
    """
    parameters = trainable_parameters(model)
    adamw = {**adamw, "fused": _uses_fused(parameters, adamw, device=device)}
    keyed: dict[tuple[Any, ...], list[Route]] = {}
    for route in sorted(routes, key=_order_of):
        if route.algorithm != "frozen":
            keyed.setdefault((route.algorithm, route.decays, route.rule), []).append(route)
    return HybridOptimizer(
        _group(
            members,
            parameters,
            values=muon if members[0].algorithm == "muon" else adamw,
            muon_kind=muon_kind,
        )
        for members in keyed.values()
    )


def _order_of(route: Route) -> tuple[bool, bool, int]:
    """Return the place of a route's group: decayed Muon matrices first."""
    return route.algorithm != "muon", not route.decays, -1 if route.rule is None else route.rule


def _group(
    routes: Sequence[Route],
    parameters: Mapping[str, nn.Parameter],
    *,
    values: Mapping[str, Any],
    muon_kind: MuonKind,
) -> ParameterGroup:
    """Return the parameter group of routes that are trained alike."""
    first = routes[0]
    is_muon = first.algorithm == "muon"
    kind = "muon" if is_muon else f"adamw_{DECAYED}"
    name = kind if first.decays else f"{first.algorithm}_{NOT_DECAYED}"
    group: ParameterGroup = {
        **values,
        "params": [(route.name, parameters[route.name]) for route in routes],
        "name": name if first.rule is None else f"{name}_rule_{first.rule}",
        "algorithm": muon_kind if is_muon else "adamw",
    }
    if first.lr is not None:
        group["lr"] = first.lr
    if first.weight_decay is not None:
        group["weight_decay"] = first.weight_decay
    if not first.decays:
        group["weight_decay"] = 0.0
    if is_muon and muon_kind == "muon":
        group["layouts"] = {route.name: route.layout for route in routes}
        group["row_splits"] = {route.name: list(route.row_splits) for route in routes}
    return group


def _uses_fused(
    parameters: Mapping[str, nn.Parameter], adamw: Mapping[str, Any], *, device: torch.device
) -> bool:
    if adamw.get("fused") is False or adamw.get("cautious") is not None:
        return False
    reason = fused_obstacle(parameters, device=device)
    if reason is None:
        return True
    warnings.warn(
        FallbackWarning(f"fused AdamW cannot be used ({reason}); using the ordinary AdamW"),
        stacklevel=3,
    )
    return False
