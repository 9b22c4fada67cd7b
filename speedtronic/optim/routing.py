"""Which algorithm trains which parameter: a pure function of the model and the configured rules.

The rules stand here in their order; the first that matches decides. They ask for identity and the
type of a module first and for names last, and what no rule knows is trained by AdamW.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from torch import nn

from speedtronic.optim.configured_routes import (
    RoutingRule,
    attribute_role,
    check_weight_decay_is_used,
    match_rules,
    rule_form,
)
from speedtronic.optim.grouping import DecayRule, exempt_parameters, is_norm, is_positional
from speedtronic.optim.matrices import MATRIX_DIMENSIONS, Layout
from speedtronic.optim.matrix_forms import (
    MatrixForm,
    assumed_form,
    declared_splits,
    known_form,
    not_a_matrix,
    with_splits,
)
from speedtronic.optim.output_heads import output_heads
from speedtronic.optim.placement import (
    CONVOLUTIONS,
    EMBEDDINGS,
    LOW_RANK_NAMES,
    TRANSPOSED_CONVOLUTIONS,
    PlacedParameter,
    place_parameters,
)

__all__ = ["Algorithm", "Layout", "Route", "RoutingRule", "route_parameters"]

Algorithm: TypeAlias = Literal["muon", "adamw", "frozen"]

_MIN_SIDE = 8  # fewer directions than this leave little to equalise; a choice, not measured
_GATE_NAMES = ("gate", "gating", "wg")


@dataclass(frozen=True, kw_only=True)
class Route:
    """How one parameter is trained."""

    name: str
    """First name in ``model.named_parameters()``; tied weights have one route."""
    shape: tuple[int, ...]
    """Sizes of the dimensions as stored."""
    algorithm: Algorithm
    """``frozen`` ones are in no optimizer."""
    reason: str
    """The rule that decided, in a few words."""
    decays: bool
    """Whether weight decay applies."""
    layout: Layout = "matrix"
    """How to read the parameter as matrices; says something for ``muon`` only."""
    row_splits: tuple[int, ...] = ()
    """Rows of the independent blocks of a matrix, () for one; for ``muon`` only."""
    lr: float | None = None
    """Only where a configured rule sets one."""
    weight_decay: float | None = None
    """Only where a configured rule sets one."""
    rule: int | None = None
    """Index of the configured rule that decided."""


@dataclass(frozen=True, kw_only=True)
class _Subject:
    """A parameter and what the rules ask of its model."""

    placed: PlacedParameter
    form: MatrixForm
    """How to read it as matrices."""
    is_known: bool
    """Whether the type of a module says so; otherwise the form is only what a user may mean."""
    heads: set[int]
    """Ids of the modules that are output heads."""
    first_convolution: nn.Module | None

    def is_weight_of(self, *types: type[nn.Module]) -> bool:
        """Tell whether it is the weight of a module of these types, in any place."""
        return any(
            isinstance(place.owner, types) and place.attribute == "weight"
            for place in self.placed.places
        )


def route_parameters(
    model: nn.Module, *, rules: Sequence[RoutingRule] = (), decay: DecayRule = "matrices"
) -> list[Route]:
    """Decide for every parameter of a model what trains it; the model stays as it is.

    Args:
        model: Any module, before it is compiled or sharded.
        rules: Configured ones, ``optimizer.routing``; the first that matches a name decides.
        decay: With ``matrices``, embeddings, norms, tables of positions and everything below two
            dimensions do not decay under AdamW; with ``all``, everything trained does.

    Returns:
        One route for every parameter, frozen ones too, in the order of ``named_parameters``.

    Raises:
        ConfigError: a rule, role or declaration of row splits does not fit the model, or a
            parameter has no shape yet.

    Example:
        >>> model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10))
        >>> for route in route_parameters(model):
        ...     print(route.name, route.algorithm, route.reason)
        0.weight muon hidden matrix
        0.bias adamw vector or scalar
        2.weight adamw output head
        2.bias adamw vector or scalar
    """
    subjects = _subjects(model)
    rule_of = match_rules(rules, [subject.placed for subject in subjects])
    exempt = exempt_parameters(model) if decay == "matrices" else set()
    routes = []
    for subject in subjects:
        parameter = subject.placed.parameter
        is_exempt = id(parameter) in exempt
        index = rule_of.get(id(parameter))
        if index is None:
            algorithm, reason = _decide(subject)
            routes.append(_route(subject, algorithm, reason, is_exempt=is_exempt))
        else:
            routes.append(_configured(subject, rules[index], index=index, is_exempt=is_exempt))
    decaying = {route.rule for route in routes if route.decays and route.rule is not None}
    check_weight_decay_is_used(rules, decaying=decaying)
    return routes


def _subjects(model: nn.Module) -> list[_Subject]:
    parameters = place_parameters(model)
    known = {id(placed.parameter): known_form(placed) for placed in parameters}
    forms = {
        id(placed.parameter): known[id(placed.parameter)] or assumed_form(placed)
        for placed in parameters
    }
    splits = declared_splits(model, forms=forms)
    heads = output_heads(model)
    convolutions = (module for module in model.modules() if isinstance(module, CONVOLUTIONS))
    first_convolution = next(convolutions, None)
    return [
        _Subject(
            placed=placed,
            form=with_splits(forms[id(placed.parameter)], splits.get(id(placed.parameter))),
            is_known=known[id(placed.parameter)] is not None,
            heads=heads,
            first_convolution=first_convolution,
        )
        for placed in parameters
    ]


def _configured(subject: _Subject, rule: RoutingRule, *, index: int, is_exempt: bool) -> Route:
    """Return the route that a configured rule decides."""
    form = rule_form(rule, subject.placed, form=subject.form, index=index)
    subject = replace(subject, form=form)
    route = _route(subject, rule.algorithm, f"rule {rule.match!r}", is_exempt=is_exempt)
    return replace(route, lr=rule.lr, weight_decay=rule.weight_decay, rule=index)


def _route(subject: _Subject, algorithm: Algorithm, reason: str, *, is_exempt: bool) -> Route:
    form = subject.form if algorithm == "muon" else MatrixForm()
    return Route(
        name=subject.placed.name,
        shape=subject.placed.shape,
        algorithm=algorithm,
        reason=reason,
        decays=algorithm == "muon" or (algorithm == "adamw" and not is_exempt),
        layout=form.layout,
        row_splits=form.row_splits,
    )


def _decide(subject: _Subject) -> tuple[Algorithm, str]:
    """Return the algorithm and the reason for a parameter that no configured rule decides."""
    if not subject.placed.parameter.requires_grad:
        return "frozen", "frozen"
    role = attribute_role(subject.placed)
    if role is not None:
        return role, "role"
    for rule in _ADAMW_RULES:
        reason = rule(subject)
        if reason is not None:
            return "adamw", reason
    return ("muon", "hidden matrix") if subject.is_known else ("adamw", "unknown module")


def _vector_or_scalar(subject: _Subject) -> str | None:
    is_vector = subject.placed.parameter.ndim < MATRIX_DIMENSIONS
    return "vector or scalar" if is_vector else None


def _embedding(subject: _Subject) -> str | None:
    # By identity: a tied head stays with its embedding under whichever name comes first
    # (Megatron-LM #4642 routed one replica of it to Muon).
    if not subject.is_weight_of(*EMBEDDINGS):
        return None
    others = [place.name for place in subject.placed.places[1:]]
    return f"embedding tied with {others[0]}" if others else "embedding"


def _norm(subject: _Subject) -> str | None:
    return "norm" if any(is_norm(place.owner) for place in subject.placed.places) else None


def _output_head(subject: _Subject) -> str | None:
    is_head = any(
        id(place.owner) in subject.heads and place.attribute == "weight"
        for place in subject.placed.places
    )
    return "output head" if is_head else None


def _positional_table(subject: _Subject) -> str | None:
    is_table = any(is_positional(place.leaf) for place in subject.placed.places)
    return "positional table" if is_table else None


def _router(subject: _Subject) -> str | None:
    # A gate of experts has one output for each of them; the gate of a gated feed-forward, which
    # often has the same name, is as wide as the hidden layer.
    leaves = {place.leaf for place in subject.placed.places}
    num_out, num_in = subject.placed.shape[:2]
    is_gate = not leaves.isdisjoint(_GATE_NAMES) and num_out < num_in
    return "router" if is_gate or "router" in leaves else None


def _low_rank_adapter(subject: _Subject) -> str | None:
    components = {part for place in subject.placed.places for part in place.name.split(".")}
    return None if components.isdisjoint(LOW_RANK_NAMES) else "low-rank adapter"


def _first_convolution(subject: _Subject) -> str | None:
    is_first = subject.is_weight_of(*CONVOLUTIONS) and any(
        place.owner is subject.first_convolution for place in subject.placed.places
    )
    return "first convolution" if is_first else None


def _transposed_convolution(subject: _Subject) -> str | None:
    return "transposed convolution" if subject.is_weight_of(*TRANSPOSED_CONVOLUTIONS) else None


def _complex_or_sparse(subject: _Subject) -> str | None:
    obstacle = not_a_matrix(subject.placed.parameter)
    return None if obstacle is None else obstacle.removeprefix("is ")


def _narrow(subject: _Subject) -> str | None:
    is_matrix = subject.is_known or subject.placed.parameter.ndim == MATRIX_DIMENSIONS
    is_narrow = is_matrix and subject.form.narrowest_side(subject.placed.shape) < _MIN_SIDE
    return f"narrower than {_MIN_SIDE}" if is_narrow else None


_ADAMW_RULES: tuple[Callable[[_Subject], str | None], ...] = (
    _vector_or_scalar,
    _embedding,
    _norm,
    _output_head,
    _positional_table,
    _router,
    _low_rank_adapter,
    _first_convolution,
    _transposed_convolution,
    _complex_or_sparse,
    _narrow,
)
