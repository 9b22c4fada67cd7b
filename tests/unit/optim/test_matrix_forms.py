"""Row splits that modules declare for their fused projections."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from speedtronic.core.errors import ConfigError
from speedtronic.models.gpt import GPT
from speedtronic.optim.routing import route_parameters


class Fused(nn.Module):
    def __init__(self, **declared: object) -> None:
        super().__init__()
        self.qkv = nn.Linear(16, 48)
        self.after = nn.Linear(48, 4)
        self.muon_row_splits = declared.get("splits", {"qkv.weight": (16, 16, 16)})


def splits(model: nn.Module) -> dict[str, tuple[int, ...]]:
    return {route.name: route.row_splits for route in route_parameters(model) if route.row_splits}


def message(model: nn.Module) -> str:
    with pytest.raises(ConfigError) as caught:
        route_parameters(model)
    return str(caught.value)


def test_a_declaration_splits_the_rows_wherever_the_module_stands() -> None:
    assert splits(Fused()) == {"qkv.weight": (16, 16, 16)}
    assert splits(nn.ModuleDict({"a": Fused()})) == {"a.qkv.weight": (16, 16, 16)}


def test_the_declaration_of_the_nearest_module_decides() -> None:
    outer = nn.ModuleDict({"a": Fused(), "b": nn.Linear(48, 48), "c": nn.Linear(48, 4)})
    outer.muon_row_splits = {"a.qkv.weight": (24, 24), "b.weight": (40, 8)}
    assert splits(outer) == {"a.qkv.weight": (16, 16, 16), "b.weight": (40, 8)}


def test_a_declaration_of_one_block_is_no_split() -> None:
    assert splits(Fused(splits={"qkv.weight": (48,)})) == {}


def test_the_bundled_model_splits_by_its_heads_and_its_gate() -> None:
    model = GPT(vocab_size=64, max_seq_len=8, n_layer=1, n_head=4, n_kv_head=2, d_model=64, d_ff=24)
    assert splits(model) == {
        "blocks.0.attention.qkv.weight": (64, 32, 32),
        "blocks.0.feed_forward.gate_and_value.weight": (24, 24),
    }


def test_the_rows_of_a_transposed_weight_are_its_outputs() -> None:
    class Conv1D(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.nf = 64
            self.weight = nn.Parameter(torch.zeros(16, 64))
            self.muon_row_splits = {"weight": (16, 16, 16, 16)}

    (route,) = route_parameters(Conv1D())
    assert (route.layout, route.row_splits) == ("transposed", (16, 16, 16, 16))


def test_a_declaration_that_forgets_the_gate_of_gated_attention_is_refused() -> None:
    model = nn.ModuleDict({"attention": Fused()})
    model.attention.qkv = nn.Linear(16, 64)
    assert message(model) == (
        "attention.muon_row_splits['qkv.weight'] must be positive whole numbers that sum to the 64 "
        "rows of attention.qkv.weight (64, 16), got (16, 16, 16), which sum to 48; count the rows "
        "of every block"
    )


@pytest.mark.parametrize("rows", [(48, 0), (64, -16), (24.0, 24.0), 48, (True, 47), "ab"])
def test_a_declaration_of_other_than_positive_whole_numbers_is_refused(rows: object) -> None:
    assert message(Fused(splits={"qkv.weight": rows})) == (
        "Fused.muon_row_splits['qkv.weight'] must be positive whole numbers that sum to the 48 "
        f"rows of qkv.weight (48, 16), got {rows!r}; count the rows of every block"
    )


def test_a_declaration_for_a_vector_is_refused() -> None:
    assert "sum to the 0 rows of qkv.bias (48,), got (24, 24), which sum to 48" in message(
        Fused(splits={"qkv.bias": (24, 24)})
    )


def test_a_declaration_that_names_no_parameter_is_refused() -> None:
    assert message(Fused(splits={"qvk.weight": (24, 24)})) == (
        "Fused.muon_row_splits must name parameters of Fused, got 'qvk.weight'; did you mean "
        "'qkv.weight'?"
    )
    assert message(Fused(splits={"!": (24, 24)})).endswith("got '!'; check the name")


def test_a_declaration_that_is_no_mapping_is_refused() -> None:
    assert message(Fused(splits=(16, 16, 16))) == (
        "Fused.muon_row_splits must map parameter names to rows, got (16, 16, 16); "
        "try {'qkv.weight': (64, 64, 64)}"
    )


class LowRank(nn.Module):
    """A frozen layer with a trainable adapter, as put around layers of a finished model."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.lora_A = nn.Linear(base.in_features, 8, bias=False)
        self.lora_B = nn.Linear(8, base.out_features, bias=False)


def small_gpt() -> GPT:
    return GPT(vocab_size=64, max_seq_len=8, n_layer=2, n_head=2, d_model=32)


def test_a_declaration_is_left_out_where_the_layer_was_wrapped() -> None:
    model = small_gpt()
    for block in model.blocks:
        block.attention.qkv = LowRank(block.attention.qkv)
    routes = {route.name: route for route in route_parameters(model)}
    assert routes["blocks.0.attention.qkv.base.weight"].algorithm == "frozen"
    assert routes["blocks.0.attention.qkv.lora_A.weight"].reason == "low-rank adapter"
    assert routes["blocks.0.feed_forward.gate_and_value.weight"].row_splits == (128, 128)


def test_a_declaration_is_left_out_where_the_weight_is_parametrized() -> None:
    model = small_gpt()
    nn.utils.parametrizations.weight_norm(model.blocks[0].attention.qkv)
    routes = {route.name: route for route in route_parameters(model)}
    original = routes["blocks.0.attention.qkv.parametrizations.weight.original1"]
    assert (original.algorithm, original.reason) == ("adamw", "unknown module")
    assert routes["blocks.1.attention.qkv.weight"].row_splits == (32, 32, 32)


def test_a_declaration_of_a_layer_that_is_not_there_is_refused() -> None:
    model = small_gpt()
    model.blocks[0].attention.muon_row_splits = {"kqv.weight": (32, 32, 32)}
    with pytest.raises(ConfigError, match=r"did you mean 'qkv\.weight'"):
        route_parameters(model)
