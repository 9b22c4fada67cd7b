"""Which layers give the outputs of a model."""

from __future__ import annotations

import pytest
from torch import nn

from speedtronic.optim.routing import route_parameters

ROLE = "_speedtronic_optimizer_role"

NAMES = ["lm_head", "head", "heads", "unembed", "unembedding", "classifier", "score", "decoder"]


def heads(model: nn.Module) -> list[str]:
    """Return the modules whose weights are output heads."""
    return [
        route.name.removesuffix("weight").removesuffix(".")
        for route in route_parameters(model)
        if route.reason == "output head"
    ]


def block(width: int = 16) -> nn.Module:
    return nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width))


def model_of(**modules: nn.Module) -> nn.Module:
    model = nn.Module()
    for name, module in modules.items():
        model.add_module(name, module)
    return model


def test_a_single_linear_layer_is_a_head() -> None:
    assert heads(nn.Linear(16, 16)) == [""]


def test_the_last_linear_layer_of_a_perceptron_is_its_head() -> None:
    assert heads(block()) == ["2"]
    assert heads(nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16), nn.Tanh())) == ["1"]


def test_the_last_linear_layer_after_blocks_is_the_head() -> None:
    assert heads(model_of(layers=nn.ModuleList([block(), block()]), fc=nn.Linear(16, 16))) == ["fc"]
    assert heads(nn.Sequential(block(), block(), nn.Linear(16, 16))) == ["2"]


def test_a_plain_container_after_stages_that_hold_other_layers_is_no_repetition_of_them() -> None:
    stages = [nn.Sequential(nn.Conv2d(8, 8, 3), nn.ReLU()) for _ in range(2)]
    assert heads(nn.Sequential(*stages, nn.Sequential(nn.Flatten(), nn.Linear(16, 9)))) == ["2.1"]


class TwoLayers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(16, 16)
        self.output = nn.Linear(16, 20)


@pytest.mark.parametrize(
    "container",
    [
        lambda: nn.ModuleList([TwoLayers(), TwoLayers()]),
        lambda: nn.Sequential(TwoLayers(), TwoLayers()),
        lambda: nn.ModuleDict({"a": TwoLayers(), "b": TwoLayers()}),
        lambda: nn.ModuleList([TwoLayers()] * 2),
    ],
)
def test_inside_repeated_blocks_is_no_head_by_position_name_or_number_of_outputs(container) -> None:
    assert heads(model_of(embedding=nn.Embedding(20, 16), layers=container())) == []


def test_a_block_that_stands_alone_is_no_repetition() -> None:
    assert heads(nn.Sequential(TwoLayers(), nn.Tanh())) == ["0.head", "0.output"]


def test_an_attention_module_at_the_end_is_no_head() -> None:
    model = model_of(embed=nn.Linear(16, 16), attention=nn.MultiheadAttention(16, 2))
    assert heads(model) == []


@pytest.mark.parametrize("name", NAMES)
def test_a_leaf_with_an_exact_name_is_a_head_and_a_container_of_that_name_is_none(
    name: str,
) -> None:
    last = nn.Linear(16, 16)
    assert heads(model_of(**{name: nn.Linear(16, 16), "last": last})) == [name, "last"]
    inside = model_of(**{name: model_of(linear=nn.Linear(16, 16)), "last": last})
    assert heads(inside) == ["last"]
    assert heads(model_of(**{f"{name}_dense": nn.Linear(16, 16), "last": last})) == ["last"]


def test_names_of_hidden_layers_are_no_heads() -> None:
    last = nn.Linear(16, 16)
    model = model_of(
        dense=nn.Linear(16, 16), decoder=nn.ModuleDict({"0": nn.Linear(16, 16)}), last=last
    )
    assert heads(model) == ["last"]


def test_two_heads_on_one_trunk_are_both_heads() -> None:
    model = model_of(
        trunk=block(), heads=nn.ModuleDict({"lm_head": nn.Linear(16, 50), "b": nn.Linear(16, 16)})
    )
    assert heads(model) == ["heads.lm_head", "heads.b"]


def test_the_earlier_of_two_heads_needs_a_known_name_or_a_role() -> None:
    model = model_of(trunk=block(), policy=nn.Linear(16, 16), value=nn.Linear(16, 16))
    assert heads(model) == ["value"]
    setattr(model.policy, ROLE, "adamw")
    (policy,) = [r for r in route_parameters(model) if r.name == "policy.weight"]
    assert (policy.algorithm, policy.reason) == ("adamw", "role")


def test_a_layer_with_as_many_outputs_as_an_embedding_has_rows_is_a_head() -> None:
    model = model_of(
        words=nn.Embedding(50, 16), to_words=nn.Linear(16, 50), value=nn.Linear(16, 16)
    )
    assert heads(model) == ["to_words", "value"]


def test_a_table_of_positions_says_nothing_about_outputs() -> None:
    model = model_of(
        wpe=nn.Embedding(16, 16), pooler=nn.Linear(16, 16), classifier=nn.Linear(16, 9)
    )
    assert heads(model) == ["classifier"]


def test_a_convolution_is_a_head_by_name_only_with_a_kernel_of_one() -> None:
    stem = nn.Conv2d(8, 16, 3)
    assert heads(model_of(stem=stem, classifier=nn.Conv2d(16, 9, 1))) == ["classifier"]
    assert heads(model_of(stem=stem, classifier=nn.Conv2d(16, 9, 3))) == []
    assert heads(model_of(stem=stem, last=nn.Conv2d(16, 9, 1))) == []


def test_the_adapter_of_a_head_does_not_take_its_place_as_the_last_layer() -> None:
    head = model_of(base_layer=nn.Linear(16, 20), lora_A=nn.Linear(16, 8), lora_B=nn.Linear(8, 20))
    assert heads(model_of(body=block(), out=head)) == ["out.base_layer"]


def test_a_vocabulary_as_large_as_the_model_is_wide_makes_no_heads() -> None:
    model = nn.Sequential(
        nn.Embedding(32, 32), *(nn.Linear(32, 32, bias=False) for _ in range(4)), nn.LayerNorm(32)
    )
    reasons = {route.name: route.reason for route in route_parameters(model)}
    assert [reasons[f"{at}.weight"] for at in (1, 2, 3, 4)] == [
        "hidden matrix",
        "hidden matrix",
        "hidden matrix",
        "output head",  # the last linear layer
    ]


def test_names_that_end_in_head_are_heads_wherever_they_are_registered() -> None:
    model = nn.ModuleDict(
        {
            "policy_head": nn.Linear(16, 9),
            "value_head": nn.Linear(16, 8),
            "trunk": nn.Linear(16, 16),
            "multihead": nn.Linear(16, 16),
            "head": nn.Linear(16, 10),
        }
    )
    reasons = {route.name: route.reason for route in route_parameters(model)}
    assert {name: reasons[f"{name}.weight"] for name in model} == {
        "policy_head": "output head",
        "value_head": "output head",
        "trunk": "hidden matrix",
        "multihead": "hidden matrix",
        "head": "output head",
    }
