"""What a user says about routes: configured rules, and role attributes of modules."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from speedtronic.core.errors import ConfigError
from speedtronic.optim.matrix_forms import MatrixForm, checked_splits, not_a_matrix, with_splits
from speedtronic.optim.placement import PlacedParameter

ROLE_ATTRIBUTE = "_speedtronic_optimizer_role"
"""Of a parameter, or of a module for everything below it: ``muon`` or ``adamw``."""

_NUM_NAMES_SHOWN = 3
_CLOSENESS = 0.3  # of difflib: a regular expression resembles the name it was meant for less


@dataclass(frozen=True, kw_only=True)
class RoutingRule:
    """One entry of ``optimizer.routing``; the first whose expression is found in a name decides."""

    match: str
    """Regular expression, searched for anywhere in the first name of a parameter."""
    algorithm: Literal["muon", "adamw"]
    """What trains the parameters that it matches."""
    lr: float | None = None
    """Learning rate of these parameters; None leaves that of the algorithm."""
    weight_decay: float | None = None
    """Weight decay of those among them that decay; None leaves that of the algorithm."""
    row_splits: tuple[int, ...] | None = None
    """Rows of the independent blocks; None leaves what the module says. For ``muon`` only."""


def match_rules(
    rules: Sequence[RoutingRule], parameters: Sequence[PlacedParameter]
) -> dict[int, int]:
    """Return the index of the rule that decides a parameter, by its id; frozen ones have none.

    Raises:
        ConfigError: an expression is invalid, or a rule decides nothing.
    """
    expressions = [_compiled(rule, index=index) for index, rule in enumerate(rules)]
    rule_of: dict[int, int] = {}
    for placed in parameters:
        if not placed.parameter.requires_grad:
            continue
        for index, expression in enumerate(expressions):
            if expression.search(placed.name):
                rule_of[id(placed.parameter)] = index
                break
    for index in range(len(rules)):
        if index not in rule_of.values():
            raise ConfigError(_nothing_decided(expressions[index], parameters, index=index))
    return rule_of


def rule_form(
    rule: RoutingRule, placed: PlacedParameter, *, form: MatrixForm, index: int
) -> MatrixForm:
    """Return how a rule reads a parameter that it decides.

    Raises:
        ConfigError: the rule wants a matrix where there is none, or its row splits do not fit.
    """
    setting = f"optimizer.routing[{index}]"
    if rule.algorithm == "adamw":
        if rule.row_splits is not None:
            raise ConfigError(
                f"{setting}.row_splits must stand beside algorithm: muon, got {rule.row_splits} "
                "with adamw; leave it out"
            )
        return form
    obstacle = not_a_matrix(placed.parameter)
    if obstacle is not None:
        raise ConfigError(
            f"{setting}.algorithm must be adamw for what is no matrix, got muon for {placed.name} "
            f"of shape {placed.shape}, which {obstacle}; narrow match: {rule.match!r}"
        )
    if rule.row_splits is None:
        return form
    splits = checked_splits(
        rule.row_splits,
        setting=f"{setting}.row_splits",
        name=placed.name,
        shape=placed.shape,
        form=form,
    )
    return with_splits(form, splits)


def check_weight_decay_is_used(rules: Sequence[RoutingRule], *, decaying: Collection[int]) -> None:
    """Refuse a weight decay that would silently reach no parameter.

    Args:
        rules: The configured ones.
        decaying: Indices of the rules that decided a parameter that decays.

    Raises:
        ConfigError: a rule with weight decay is not among them.
    """
    for index, rule in enumerate(rules):
        if rule.weight_decay and index not in decaying:
            raise ConfigError(
                f"optimizer.routing[{index}].weight_decay must belong to parameters that decay, "
                f"got {rule.weight_decay} for {rule.match!r}, of which none does; leave it out, or "
                "try optimizer.decay=all"
            )


def attribute_role(placed: PlacedParameter) -> Literal["muon", "adamw"] | None:
    """Return the role that a parameter has by attribute, its own before the nearest module's.

    A module's ``muon`` does not reach what is no matrix, such as its biases.

    Raises:
        ConfigError: a role is neither ``muon`` nor ``adamw``, or a parameter that is no matrix
            asks for ``muon`` itself.
    """
    own = _role(placed.parameter, label=placed.name)
    obstacle = not_a_matrix(placed.parameter)
    if own == "muon" and obstacle is not None:
        raise ConfigError(
            f"{placed.name}.{ROLE_ATTRIBUTE} must be 'adamw' for what is no matrix, got 'muon' for "
            f"shape {placed.shape}, which {obstacle}; remove it or set 'adamw'"
        )
    if own is not None:
        return own
    for place in placed.places:
        for module in place.lineage:
            role = _role(module, label=f"{type(module).__name__} (over {place.name})")
            if role is not None:
                return None if role == "muon" and obstacle is not None else role
    return None


def _role(holder: Any, *, label: str) -> Literal["muon", "adamw"] | None:
    role = getattr(holder, ROLE_ATTRIBUTE, None)
    if role in (None, "muon", "adamw"):
        return role
    raise ConfigError(
        f"{label}.{ROLE_ATTRIBUTE} must be 'muon' or 'adamw', got {role!r}; "
        "remove it to let the rules decide"
    )


def _compiled(rule: RoutingRule, *, index: int) -> re.Pattern[str]:
    try:
        return re.compile(rule.match)
    except re.error as error:
        raise ConfigError(
            f"optimizer.routing[{index}].match must be a regular expression, got {rule.match!r} "
            f"({error}); escape special characters with a backslash"
        ) from error


def _nothing_decided(
    expression: re.Pattern[str], parameters: Sequence[PlacedParameter], *, index: int
) -> str:
    """Say why a rule decides nothing, and what it may have meant."""
    start = (
        f"optimizer.routing[{index}].match must match a parameter that no earlier rule decided, "
        f"got {expression.pattern!r}"
    )
    matched = [placed for placed in parameters if expression.search(placed.name)]
    if matched and not any(placed.parameter.requires_grad for placed in matched):
        return f"{start}, which matches frozen ones only ({_listed(matched)}); remove the rule"
    if matched:
        return f"{start}, which matches decided ones only ({_listed(matched)}); move it up"
    for placed in parameters:
        for place in placed.places[1:]:
            if expression.search(place.name):
                return f"{start}; {place.name} is tied, its name is {placed.name}"
    names = [placed.name for placed in parameters]
    bare = re.sub(r"[\\^$*+?()\[\]|]", "", expression.pattern)
    close = difflib.get_close_matches(bare, names, n=_NUM_NAMES_SHOWN, cutoff=_CLOSENESS)
    return f"{start}; near names: {', '.join(close or names[:_NUM_NAMES_SHOWN])}"


def _listed(parameters: Sequence[PlacedParameter]) -> str:
    names = ", ".join(placed.name for placed in parameters[:_NUM_NAMES_SHOWN])
    return names + (", ..." if len(parameters) > _NUM_NAMES_SHOWN else "")
