"""The table of routes in the log and in routing.json."""

from __future__ import annotations

import json

import pytest
from torch import nn

from speedtronic.models.gpt import GPT
from speedtronic.optim.routing import Route, RoutingRule, route_parameters
from speedtronic.optim.routing_table import describe_routes, routing_records

RATES = {"lr": 0.003, "weight_decay": 0.1, "muon_lr": 0.02, "muon_weight_decay": 0.05}


def described(routes: list[Route]) -> list[str]:
    return describe_routes(routing_records(routes, **RATES))


def gpt(n_layer: int) -> GPT:
    return GPT(vocab_size=64, max_seq_len=8, n_layer=n_layer, n_head=2, d_model=32, d_ff=64)


def test_a_hundred_layers_take_as_many_lines_as_two_and_count_everything() -> None:
    model = gpt(100)
    lines = [
        "muon, hidden matrix, lr 0.02, decay 0.05: 400 tensors, 1,024,000 parameters:"
        " blocks.*.{attention.qkv,",
        "  attention.output, feed_forward.gate_and_value, feed_forward.output}.weight x100",
        "adamw, embedding tied with head.weight, lr 0.003, decay 0: 1 tensor, 2,048 parameters:"
        " embedding.weight",
        "adamw, vector or scalar, lr 0.003, decay 0: 201 tensors, 6,432 parameters:"
        " blocks.*.{attention_norm,",
        "  feed_forward_norm}.weight x100, norm.weight",
    ]
    assert described(route_parameters(model)) == lines
    assert model.num_parameters() == 1_024_000 + 2_048 + 6_432


def test_entries_differ_by_algorithm_reason_and_layout_and_frozen_ones_come_last() -> None:
    model = nn.Sequential(
        nn.Linear(4, 4, bias=False).requires_grad_(False),
        nn.Conv2d(3, 16, 3, bias=False),
        nn.Conv2d(16, 16, 1, bias=False),
        nn.Linear(16, 16, bias=False),
        nn.Linear(16, 2, bias=False),
    )
    assert described(route_parameters(model)) == [
        "muon, hidden matrix (flatten), lr 0.02, decay 0.05: 1 tensor, 256 parameters: 2.weight",
        "muon, hidden matrix, lr 0.02, decay 0.05: 1 tensor, 256 parameters: 3.weight",
        "adamw, first convolution, lr 0.003, decay 0.1: 1 tensor, 432 parameters: 1.weight",
        "adamw, output head, lr 0.003, decay 0.1: 1 tensor, 32 parameters: 4.weight",
        "frozen: 1 tensor, 16 parameters: 0.weight",
    ]


def test_only_whole_components_are_folded() -> None:
    routes = [
        Route(name=name, shape=(2,), algorithm="adamw", reason="r", decays=False)
        for name in ("layer1.0.conv1.bias", "layer1.10.conv1.bias", "layer2.0.conv1.bias", "12")
    ]
    assert described(routes) == [
        "adamw, r, lr 0.003, decay 0: 4 tensors, 8 parameters: layer1.*.conv1.bias x2,"
        " layer2.0.conv1.bias, 12"
    ]


@pytest.mark.parametrize("length", [5, 60, 300])
def test_many_and_long_names_and_reasons_stay_in_three_lines_of_110_characters(length: int) -> None:
    routes = [
        Route(
            name=f"{'n' * length}_{index}",
            shape=(1,),
            algorithm="adamw",
            reason=f"rule {'x' * 200!r}",
            decays=False,
        )
        for index in range(500)
    ]
    lines = described(routes)
    assert len(lines) <= 3
    assert max(len(line) for line in lines) <= 110
    start = f"adamw, rule '{'x' * 41}..., lr 0.003, decay 0: 500 tensors, 500 parameters:"
    assert lines[0].startswith(start)
    if length < 300:
        assert lines[-1].endswith(" more")


def test_records_hold_the_numbers_in_force() -> None:
    model = nn.Sequential(
        nn.Embedding(30, 16),
        nn.Linear(16, 32, bias=False),
        nn.Linear(32, 16).requires_grad_(False),
        nn.Linear(16, 9, bias=False),
    )
    model[1].muon_row_splits = {"weight": (16, 16)}
    common = {"layout": "matrix", "row_splits": []}
    expected = [
        {
            **common,
            "name": "0.weight",
            "shape": [30, 16],
            "algorithm": "adamw",
            "reason": "embedding",
            "lr": 0.003,
            "weight_decay": 0.0,
            "decays": False,
        },
        {
            "name": "1.weight",
            "shape": [32, 16],
            "algorithm": "muon",
            "reason": "hidden matrix",
            "lr": 0.02,
            "weight_decay": 0.05,
            "decays": True,
            "layout": "matrix",
            "row_splits": [16, 16],
        },
        *(
            {
                **common,
                "name": name,
                "shape": shape,
                "algorithm": "frozen",
                "reason": "frozen",
                "lr": None,
                "weight_decay": None,
                "decays": False,
            }
            for name, shape in (("2.weight", [16, 32]), ("2.bias", [16]))
        ),
        {
            **common,
            "name": "3.weight",
            "shape": [9, 16],
            "algorithm": "adamw",
            "reason": "output head",
            "lr": 0.003,
            "weight_decay": 0.1,
            "decays": True,
        },
    ]

    records = routing_records(route_parameters(model), **RATES)

    assert records == expected
    assert json.loads(json.dumps(records)) == records


def test_records_hold_the_numbers_of_a_configured_rule_where_it_sets_them() -> None:
    rules = [
        RoutingRule(match="qkv", algorithm="muon", lr=0.5),
        RoutingRule(match="output", algorithm="muon", weight_decay=0.0),
        RoutingRule(match="", algorithm="adamw", lr=0.25, weight_decay=0.75),
    ]
    records = routing_records(route_parameters(gpt(1), rules=rules), **RATES)
    assert {record["name"]: (record["lr"], record["weight_decay"]) for record in records} == {
        "embedding.weight": (0.25, 0.0),
        "blocks.0.attention_norm.weight": (0.25, 0.0),
        "blocks.0.attention.qkv.weight": (0.5, 0.05),
        "blocks.0.attention.output.weight": (0.02, 0.0),
        "blocks.0.feed_forward_norm.weight": (0.25, 0.0),
        "blocks.0.feed_forward.gate_and_value.weight": (0.25, 0.75),
        "blocks.0.feed_forward.output.weight": (0.02, 0.0),
        "norm.weight": (0.25, 0.0),
    }
