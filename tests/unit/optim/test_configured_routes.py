"""What a user says about routes: rules of the configuration, and roles on modules."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn

from speedtronic.core.errors import ConfigError
from speedtronic.models.gpt import GPT
from speedtronic.optim.routing import Route, RoutingRule, route_parameters

ROLE = "_speedtronic_optimizer_role"


def small_gpt(**sizes: int) -> GPT:
    return GPT(vocab_size=64, max_seq_len=16, n_layer=2, n_head=2, d_model=32, d_ff=64, **sizes)


def routed(model: nn.Module, *rules: RoutingRule) -> dict[str, Route]:
    return {route.name: route for route in route_parameters(model, rules=rules)}


def message(model: nn.Module, *rules: RoutingRule) -> str:
    with pytest.raises(ConfigError) as caught:
        route_parameters(model, rules=rules)
    return str(caught.value)


# --- rules of the configuration -----------------------------------------------------------------


def test_the_first_rule_found_anywhere_in_a_name_decides() -> None:
    routes = routed(
        small_gpt(),
        RoutingRule(match=r"\.0\.attention\.qkv", algorithm="adamw", lr=0.5),
        RoutingRule(match=r"attention\.qkv", algorithm="adamw", weight_decay=0.25),
    )
    first, second = (routes[f"blocks.{index}.attention.qkv.weight"] for index in range(2))
    assert (first.algorithm, first.reason) == ("adamw", r"rule '\\.0\\.attention\\.qkv'")
    assert (first.rule, first.lr, first.weight_decay, first.decays) == (0, 0.5, None, True)
    assert (first.layout, first.row_splits) == ("matrix", ())
    assert (second.rule, second.lr, second.weight_decay) == (1, None, 0.25)
    assert routes["blocks.0.attention.output.weight"].rule is None


def test_a_rule_comes_before_roles_and_every_structural_rule() -> None:
    model = small_gpt()
    setattr(model.embedding, ROLE, "adamw")
    route = routed(model, RoutingRule(match="^embedding", algorithm="muon"))["embedding.weight"]
    assert (route.algorithm, route.decays, route.rule) == ("muon", True, 0)


def test_a_rule_leaves_the_row_splits_of_the_module_unless_it_has_its_own() -> None:
    name = "blocks.0.attention.qkv.weight"
    kept = RoutingRule(match=r"qkv\.weight", algorithm="muon", lr=0.1)
    own = RoutingRule(match=r"qkv\.weight", algorithm="muon", row_splits=(48, 32, 16))
    one = RoutingRule(match=r"qkv\.weight", algorithm="muon", row_splits=(96,))
    assert routed(small_gpt(), kept)[name].row_splits == (32, 32, 32)
    assert routed(small_gpt(), own)[name].row_splits == (48, 32, 16)
    assert routed(small_gpt(), one)[name].row_splits == ()


@pytest.mark.parametrize(
    ("module", "layout", "row_splits"),
    [
        (nn.Linear(4, 4), "matrix", (1, 3)),
        (nn.Conv2d(4, 6, 3), "flatten", (1, 5)),
        (nn.ConvTranspose1d(4, 6, 3), "flatten", (1, 3)),
        (nn.Bilinear(2, 5, 7), "stack", (1, 1)),
    ],
)
def test_a_rule_may_send_any_matrix_to_muon_and_splits_count_its_rows(
    module: nn.Module, layout: str, row_splits: tuple[int, ...]
) -> None:
    rule = RoutingRule(match="weight", algorithm="muon", row_splits=row_splits)
    route = routed(module, rule)["weight"]
    assert (route.algorithm, route.layout, route.row_splits) == ("muon", layout, row_splits)


def test_a_rule_for_adamw_does_not_make_vectors_and_embeddings_decay() -> None:
    rule = RoutingRule(match="", algorithm="adamw", weight_decay=0.25)
    routes = routed(small_gpt(), rule)
    assert not routes["embedding.weight"].decays
    assert not routes["norm.weight"].decays
    assert routes["blocks.0.attention.qkv.weight"].decays


def test_a_weight_decay_that_reaches_nothing_is_refused() -> None:
    rule = RoutingRule(match="norm", algorithm="adamw", weight_decay=0.25)
    assert message(small_gpt(), rule) == (
        "optimizer.routing[0].weight_decay must belong to parameters that decay, got 0.25 for "
        "'norm', of which none does; leave it out, or try optimizer.decay=all"
    )
    none = RoutingRule(match="norm", algorithm="adamw", weight_decay=0.0)
    assert routed(small_gpt(), none)["norm.weight"].weight_decay == 0.0
    (route, *_) = route_parameters(small_gpt(), rules=[none], decay="all")
    assert route.decays


def test_an_invalid_expression_is_refused() -> None:
    assert message(small_gpt(), RoutingRule(match="qkv(", algorithm="muon")) == (
        "optimizer.routing[0].match must be a regular expression, got 'qkv(' (missing ), "
        "unterminated subpattern at position 3); escape special characters with a backslash"
    )


def test_a_rule_that_matches_nothing_is_refused_with_near_names() -> None:
    rules = [
        RoutingRule(match="qkv", algorithm="muon"),
        RoutingRule(match=r"^blocks\.0\.atention\.output", algorithm="muon"),
    ]
    text = message(small_gpt(), *rules)
    assert text.startswith(
        "optimizer.routing[1].match must match a parameter that no earlier rule decided, got "
        r"'^blocks\\.0\\.atention\\.output'; near names: blocks.0.attention.output.weight"
    )


def test_a_rule_like_no_name_is_refused_with_the_first_names() -> None:
    assert message(nn.Linear(2, 2), RoutingRule(match="qqq", algorithm="adamw")) == (
        "optimizer.routing[0].match must match a parameter that no earlier rule decided, got "
        "'qqq'; near names: weight, bias"
    )


def test_a_rule_that_finds_only_decided_parameters_is_refused() -> None:
    rules = [RoutingRule(match=name, algorithm="muon") for name in ("qkv", r"1\..*qkv")]
    assert message(small_gpt(), *rules) == (
        "optimizer.routing[1].match must match a parameter that no earlier rule decided, got "
        r"'1\\..*qkv', which matches decided ones only (blocks.1.attention.qkv.weight); move it up"
    )


def test_a_rule_that_finds_only_frozen_parameters_is_refused() -> None:
    model = nn.Sequential(nn.Linear(2, 2).requires_grad_(False), nn.Linear(2, 2))
    assert message(model, RoutingRule(match="^0", algorithm="adamw")) == (
        "optimizer.routing[0].match must match a parameter that no earlier rule decided, got "
        "'^0', which matches frozen ones only (0.weight, 0.bias); remove the rule"
    )


def test_a_rule_with_the_second_name_of_a_tied_weight_learns_the_first() -> None:
    assert message(small_gpt(), RoutingRule(match="^head", algorithm="adamw")) == (
        "optimizer.routing[0].match must match a parameter that no earlier rule decided, got "
        "'^head'; head.weight is tied, its name is embedding.weight"
    )


@pytest.mark.parametrize(
    ("parameter", "obstacle"),
    [
        (torch.zeros(5), "of shape (5,), which has fewer than 2 dimensions"),
        (torch.zeros(()), "of shape (), which has fewer than 2 dimensions"),
        (torch.zeros(9, 9, dtype=torch.complex64), "of shape (9, 9), which is complex"),
        (torch.zeros(9, 9).to_sparse(), "of shape (9, 9), which is sparse"),
        (torch.zeros(0, 9), "of shape (0, 9), which is empty"),
    ],
)
def test_a_rule_that_sends_what_is_no_matrix_to_muon_is_refused(
    parameter: torch.Tensor, obstacle: str
) -> None:
    model = nn.Module()
    model.scale = nn.Parameter(parameter)
    assert message(model, RoutingRule(match="sc.le", algorithm="muon")) == (
        "optimizer.routing[0].algorithm must be adamw for what is no matrix, got muon for scale "
        f"{obstacle}; narrow match: 'sc.le'"
    )


@pytest.mark.parametrize(
    ("row_splits", "got"),
    [
        ((32, 32), "(32, 32), which sum to 64"),
        ((64, 0, 32), "(64, 0, 32)"),
        ((128, -32), "(128, -32)"),
        ((), "(), which sum to 0"),
    ],
)
def test_row_splits_of_a_rule_must_be_positive_and_sum_to_the_rows(
    row_splits: tuple[int, ...], got: str
) -> None:
    rule = RoutingRule(match=r"0.*qkv", algorithm="muon", row_splits=row_splits)
    assert message(small_gpt(), rule) == (
        "optimizer.routing[0].row_splits must be positive whole numbers that sum to the 96 rows of "
        f"blocks.0.attention.qkv.weight (96, 32), got {got}; count the rows of every block"
    )


def test_row_splits_beside_adamw_are_refused() -> None:
    rule = RoutingRule(match="qkv", algorithm="adamw", row_splits=(32, 64))
    assert message(small_gpt(), rule) == (
        "optimizer.routing[0].row_splits must stand beside algorithm: muon, got (32, 64) with "
        "adamw; leave it out"
    )


# --- roles on parameters and modules ------------------------------------------------------------


def test_the_role_of_a_parameter_comes_before_that_of_its_modules() -> None:
    model = small_gpt()
    setattr(model, ROLE, "adamw")
    setattr(model.embedding.weight, ROLE, "muon")
    routes = routed(model)
    assert (routes["embedding.weight"].algorithm, routes["embedding.weight"].reason) == (
        "muon",
        "role",
    )
    assert {route.reason for route in routes.values()} == {"role"}
    assert {name for name, route in routes.items() if route.algorithm == "muon"} == {
        "embedding.weight"
    }


def test_the_nearest_module_with_a_role_decides() -> None:
    model = small_gpt()
    setattr(model.blocks, ROLE, "adamw")
    setattr(model.blocks[1], ROLE, "muon")
    routes = routed(model)
    first, second = (routes[f"blocks.{index}.attention.qkv.weight"] for index in range(2))
    assert (first.algorithm, first.reason, first.row_splits) == ("adamw", "role", ())
    assert (second.algorithm, second.reason, second.row_splits) == ("muon", "role", (32, 32, 32))
    assert routes["norm.weight"].reason == "vector or scalar"


def test_the_role_muon_of_a_module_leaves_vectors_to_the_next_rules() -> None:
    model = nn.Sequential(nn.Linear(3, 3))
    setattr(model, ROLE, "muon")
    routes = routed(model)
    assert (routes["0.weight"].algorithm, routes["0.weight"].reason) == ("muon", "role")
    assert (routes["0.bias"].algorithm, routes["0.bias"].reason) == ("adamw", "vector or scalar")


def test_the_role_muon_on_a_vector_itself_is_refused() -> None:
    model = nn.Sequential(nn.Linear(3, 4))
    setattr(model[0].bias, ROLE, "muon")
    assert message(model) == (
        "0.bias._speedtronic_optimizer_role must be 'adamw' for what is no matrix, got 'muon' for "
        "shape (4,), which has fewer than 2 dimensions; remove it or set 'adamw'"
    )


@pytest.mark.parametrize("role", ["sgd", "", ["muon"]])
def test_another_role_is_refused(role: object) -> None:
    model = nn.Sequential(nn.Linear(3, 4))
    setattr(model, ROLE, role)
    assert message(model) == (
        "Sequential (over 0.weight)._speedtronic_optimizer_role must be 'muon' or 'adamw', got "
        f"{role!r}; remove it to let the rules decide"
    )
    parameter = nn.Linear(3, 4)
    setattr(parameter.bias, ROLE, role)
    assert re.match(
        r"bias\._speedtronic_optimizer_role must be 'muon' or 'adamw'", message(parameter)
    )
