"""What trains which parameter: whole tables of known models, and every rule by itself."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from speedtronic.core.errors import ConfigError
from speedtronic.models.gpt import GPT
from speedtronic.optim.grouping import decay_groups
from speedtronic.optim.routing import Route, route_parameters

ROLE = "_speedtronic_optimizer_role"

HIDDEN = ("muon", "hidden matrix")
VECTOR = ("adamw", "vector or scalar")
WIDTH = 32


def decisions(model: nn.Module) -> dict[str, tuple[str, str]]:
    """Return algorithm and reason of every parameter."""
    return {route.name: (route.algorithm, route.reason) for route in route_parameters(model)}


def forms(model: nn.Module) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return layout and row splits of every Muon parameter."""
    return {
        route.name: (route.layout, route.row_splits)
        for route in route_parameters(model)
        if route.algorithm == "muon"
    }


def route_of(model: nn.Module, name: str) -> Route:
    (route,) = [route for route in route_parameters(model) if route.name == name]
    return route


# --- whole tables -------------------------------------------------------------------------------


def gpt(*, tie_weights: bool) -> GPT:
    return GPT(
        vocab_size=64,
        max_seq_len=16,
        n_layer=2,
        n_head=2,
        n_kv_head=1,
        d_model=WIDTH,
        d_ff=64,
        tie_weights=tie_weights,
    )


GPT_BLOCKS = [
    (f"blocks.{index}.{name}", shape, *decision, decays, splits)
    for index in range(2)
    for name, shape, decision, decays, splits in [
        ("attention_norm.weight", (32,), VECTOR, False, ()),
        ("attention.qkv.weight", (64, 32), HIDDEN, True, (32, 16, 16)),
        ("attention.output.weight", (32, 32), HIDDEN, True, ()),
        ("feed_forward_norm.weight", (32,), VECTOR, False, ()),
        ("feed_forward.gate_and_value.weight", (128, 32), HIDDEN, True, (64, 64)),
        ("feed_forward.output.weight", (32, 64), HIDDEN, True, ()),
    ]
]


@pytest.mark.parametrize("tie_weights", [True, False])
def test_the_bundled_model_has_exactly_this_table(tie_weights: bool) -> None:
    embedding = "embedding tied with head.weight" if tie_weights else "embedding"
    head = ("head.weight", (64, 32), "adamw", "output head", True, ())
    expected = [
        ("embedding.weight", (64, 32), "adamw", embedding, False, ()),
        *GPT_BLOCKS,
        ("norm.weight", (32,), *VECTOR, False, ()),
        *([] if tie_weights else [head]),
    ]

    routes = route_parameters(gpt(tie_weights=tie_weights))

    assert [
        (r.name, r.shape, r.algorithm, r.reason, r.decays, r.row_splits) for r in routes
    ] == expected
    assert {(r.layout, r.lr, r.weight_decay, r.rule) for r in routes} == {
        ("matrix", None, None, None)
    }


class EncoderLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(WIDTH, WIDTH)
        self.key = nn.Linear(WIDTH, WIDTH)
        self.value = nn.Linear(WIDTH, WIDTH)
        self.dense = nn.Linear(WIDTH, WIDTH)
        self.LayerNorm = nn.LayerNorm(WIDTH)
        self.intermediate = nn.Linear(WIDTH, 64)
        self.output = nn.Linear(64, WIDTH)


class Encoder(nn.Module):
    """Like BERT: three embeddings, blocks, a pooler; positions as many as the width."""

    def __init__(self, *, num_classes: int | None, num_layers: int = 2) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(100, WIDTH)
        self.position_embeddings = nn.Embedding(WIDTH, WIDTH)
        self.token_type_embeddings = nn.Embedding(2, WIDTH)
        self.LayerNorm = nn.LayerNorm(WIDTH)
        self.layer = nn.ModuleList(EncoderLayer() for _ in range(num_layers))
        if num_classes is not None:
            self.pooler = nn.Linear(WIDTH, WIDTH)
            self.classifier = nn.Linear(WIDTH, num_classes)


ENCODER_WEIGHTS = {
    "word_embeddings.weight": ("adamw", "embedding"),
    "position_embeddings.weight": ("adamw", "embedding"),
    "token_type_embeddings.weight": ("adamw", "embedding"),
    "LayerNorm.weight": VECTOR,
    "LayerNorm.bias": VECTOR,
    **{
        f"layer.{index}.{name}": decision
        for index in range(2)
        for name, decision in {
            "query.weight": HIDDEN,
            "query.bias": VECTOR,
            "key.weight": HIDDEN,
            "key.bias": VECTOR,
            "value.weight": HIDDEN,
            "value.bias": VECTOR,
            "dense.weight": HIDDEN,
            "dense.bias": VECTOR,
            "LayerNorm.weight": VECTOR,
            "LayerNorm.bias": VECTOR,
            "intermediate.weight": HIDDEN,
            "intermediate.bias": VECTOR,
            "output.weight": HIDDEN,
            "output.bias": VECTOR,
        }.items()
    },
}


def test_an_encoder_with_a_classifier_has_exactly_this_table() -> None:
    assert decisions(Encoder(num_classes=3)) == {
        **ENCODER_WEIGHTS,
        "pooler.weight": HIDDEN,
        "pooler.bias": VECTOR,
        "classifier.weight": ("adamw", "output head"),
        "classifier.bias": VECTOR,
    }


def test_an_encoder_without_head_has_no_output_head() -> None:
    assert decisions(Encoder(num_classes=None)) == ENCODER_WEIGHTS


class ResidualBlock(nn.Module):
    def __init__(self, num_in: int, num_out: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(num_in, num_out, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(num_out)
        self.conv2 = nn.Conv2d(num_out, num_out, 3, bias=False)
        self.downsample = None
        if num_in != num_out:
            self.downsample = nn.Sequential(
                nn.Conv2d(num_in, num_out, 1, bias=False), nn.BatchNorm2d(num_out)
            )


class ResidualNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 7, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1 = nn.Sequential(ResidualBlock(16, 16), ResidualBlock(16, 16))
        self.layer2 = nn.Sequential(ResidualBlock(16, 32), ResidualBlock(32, 32))
        self.fc = nn.Linear(32, 10)


def test_a_residual_convnet_has_exactly_this_table() -> None:
    blocks = ["layer1.0", "layer1.1", "layer2.0", "layer2.1"]
    in_blocks = {
        f"{block}.{name}": decision
        for block in blocks
        for name, decision in {
            "conv1.weight": HIDDEN,
            "bn1.weight": VECTOR,
            "bn1.bias": VECTOR,
            "conv2.weight": HIDDEN,
        }.items()
    }
    model = ResidualNet()

    assert decisions(model) == {
        "conv1.weight": ("adamw", "first convolution"),
        "bn1.weight": VECTOR,
        "bn1.bias": VECTOR,
        **in_blocks,
        "layer2.0.downsample.0.weight": HIDDEN,
        "layer2.0.downsample.1.weight": VECTOR,
        "layer2.0.downsample.1.bias": VECTOR,
        "fc.weight": ("adamw", "output head"),
        "fc.bias": VECTOR,
    }
    assert set(forms(model).values()) == {("flatten", ())}
    assert [r.name for r in route_parameters(model) if r.algorithm == "adamw" and r.decays] == [
        "conv1.weight",
        "fc.weight",
    ]


class AttentionNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv_proj = nn.Conv2d(3, WIDTH, 4)
        self.class_token = nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.pos_embedding = nn.Parameter(torch.zeros(1, 17, WIDTH))
        self.self_attention = nn.MultiheadAttention(WIDTH, 2)
        self.cross_attention = nn.MultiheadAttention(WIDTH, 2, kdim=16, vdim=24, bias=False)
        self.heads = nn.Sequential(nn.Linear(WIDTH, 10))


def test_a_model_of_attention_modules_has_exactly_this_table() -> None:
    model = AttentionNet()

    assert decisions(model) == {
        "class_token": ("adamw", "positional table"),
        "pos_embedding": ("adamw", "positional table"),
        "conv_proj.weight": ("adamw", "first convolution"),
        "conv_proj.bias": VECTOR,
        "self_attention.in_proj_weight": HIDDEN,
        "self_attention.in_proj_bias": VECTOR,
        "self_attention.out_proj.weight": HIDDEN,
        "self_attention.out_proj.bias": VECTOR,
        "cross_attention.q_proj_weight": HIDDEN,
        "cross_attention.k_proj_weight": HIDDEN,
        "cross_attention.v_proj_weight": HIDDEN,
        "cross_attention.out_proj.weight": HIDDEN,
        "heads.0.weight": ("adamw", "output head"),
        "heads.0.bias": VECTOR,
    }
    assert forms(model) == {
        "self_attention.in_proj_weight": ("matrix", (32, 32, 32)),
        "self_attention.out_proj.weight": ("matrix", ()),
        "cross_attention.q_proj_weight": ("matrix", ()),
        "cross_attention.k_proj_weight": ("matrix", ()),
        "cross_attention.v_proj_weight": ("matrix", ()),
        "cross_attention.out_proj.weight": ("matrix", ()),
    }


# --- one rule each ------------------------------------------------------------------------------


def test_frozen_parameters_stay_in_the_table_before_every_other_rule() -> None:
    model = nn.Sequential(nn.Embedding(10, 8).requires_grad_(False), nn.Linear(8, 10))
    setattr(model[0], ROLE, "muon")
    route = route_of(model, "0.weight")
    assert (route.algorithm, route.reason, route.decays) == ("frozen", "frozen", False)
    assert [r.decays for r in route_parameters(model, decay="all")] == [False, True, True]


def test_a_head_registered_before_its_tied_embedding_is_an_embedding() -> None:
    model = nn.Module()
    model.head = nn.Linear(16, 50, bias=False)
    model.embedding = nn.Embedding(50, 16)
    model.head.weight = model.embedding.weight
    (route,) = route_parameters(model)
    assert (route.name, route.reason) == ("head.weight", "embedding tied with embedding.weight")
    assert (route.algorithm, route.decays) == ("adamw", False)


def test_the_weight_of_an_embedding_bag_is_an_embedding() -> None:
    assert decisions(nn.EmbeddingBag(16, 16)) == {"weight": ("adamw", "embedding")}


def test_the_reparametrised_weight_of_a_layer_is_left_to_adamw() -> None:
    model = nn.Sequential(
        nn.utils.parametrizations.spectral_norm(nn.Linear(16, 16, bias=False)),
        nn.Linear(16, 16, bias=False),
    )
    assert decisions(model) == {
        "0.parametrizations.weight.original": ("adamw", "unknown module"),
        "1.weight": ("adamw", "output head"),
    }


class ScaleNorm2d(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(16, 16))


class NormedFeedForward(nn.Module):
    """Not a norm, although its name begins like one."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(16, 16))


def test_a_norm_is_one_by_the_name_of_its_type_and_never_decays() -> None:
    model = nn.Sequential(nn.LayerNorm([16, 16]), ScaleNorm2d(), NormedFeedForward())
    assert decisions(model) == {
        "0.weight": ("adamw", "norm"),
        "0.bias": ("adamw", "norm"),
        "1.gain": ("adamw", "norm"),
        "2.gain": ("adamw", "unknown module"),
    }
    assert [route.decays for route in route_parameters(model)] == [False, False, False, True]


def test_without_muon_parameters_the_same_ones_decay_as_under_adamw_alone() -> None:
    model = nn.Sequential(ScaleNorm2d(), NormedFeedForward(), nn.Embedding(20, 16), nn.Linear(9, 9))
    for decay in ("matrices", "all"):
        decayed = [
            name
            for group in decay_groups(model, weight_decay=0.1, decay=decay)
            for name, _ in group["params"]
            if group["weight_decay"]
        ]
        routes = route_parameters(model, decay=decay)
        assert [route.name for route in routes if route.decays] == decayed


@pytest.mark.parametrize(
    "name",
    [
        *("pos_emb", "pos_embed", "position_embedding", "position_embeddings", "wpe"),
        *("positional_embedding", "positional_encoding", "absolute_pos_embed", "cls_token"),
        *("class_token", "mask_token", "relative_position_bias_table", "rel_pos_h"),
    ],
)
def test_tables_of_positions_and_tokens_are_told_by_name_and_do_not_decay(name: str) -> None:
    model = nn.Module()
    model.register_parameter(name, nn.Parameter(torch.zeros(16, 16)))
    route = route_of(model, name)
    assert (route.algorithm, route.reason) == ("adamw", "positional table")
    assert not route.decays
    assert route_parameters(model, decay="all")[0].decays


@pytest.mark.parametrize("name", ["repos_embed", "wpe_proj", "tokens", "cls_token_scale"])
def test_names_that_only_contain_one_of_a_table_are_not_tables(name: str) -> None:
    model = nn.Module()
    model.register_parameter(name, nn.Parameter(torch.zeros(16, 16)))
    assert decisions(model) == {name: ("adamw", "unknown module")}


class Experts(nn.Module):
    """A router and stacked experts, as in a mixture of experts."""

    def __init__(self, gate: str, *, num_outputs: int) -> None:
        super().__init__()
        self.add_module(gate, nn.Linear(16, num_outputs, bias=False))
        self.up = nn.Parameter(torch.zeros(4, 24, 16))
        self.narrow = nn.Parameter(torch.zeros(4, 24, 7))


def experts(gate: str, *, num_outputs: int) -> nn.Module:
    return nn.ModuleList(Experts(gate, num_outputs=num_outputs) for _ in range(2))


@pytest.mark.parametrize(
    ("name", "num_outputs", "expected"),
    [
        ("router", 8, ("adamw", "router")),
        ("router", 24, ("adamw", "router")),
        ("gate", 8, ("adamw", "router")),
        ("gating", 8, ("adamw", "router")),
        ("wg", 8, ("adamw", "router")),
        ("gate", 16, HIDDEN),
        ("gate", 24, HIDDEN),
        ("gate_proj", 8, HIDDEN),
        ("aggregate", 8, HIDDEN),
    ],
)
def test_a_gate_is_a_router_only_with_fewer_outputs_than_inputs(
    name: str, num_outputs: int, expected: tuple[str, str]
) -> None:
    table = decisions(experts(name, num_outputs=num_outputs))
    assert table[f"0.{name}.weight"] == expected


def test_stacked_experts_are_independent_matrices() -> None:
    model = experts("router", num_outputs=4)
    assert decisions(model)["0.up"] == HIDDEN
    assert decisions(model)["0.narrow"] == ("adamw", "narrower than 8")
    assert forms(model) == {"0.up": ("stack", ()), "1.up": ("stack", ())}


def test_a_stack_is_told_by_the_path_of_its_module_too() -> None:
    model = nn.Module()
    model.experts = nn.ParameterDict({"up": nn.Parameter(torch.zeros(4, 16, 16))})
    model.other = nn.ParameterDict({"up": nn.Parameter(torch.zeros(4, 16, 16))})
    assert decisions(model) == {
        "experts.up": HIDDEN,
        "other.up": ("adamw", "unknown module"),
    }


@pytest.mark.parametrize(
    "name", ["lora_A", "lora_B", "lora_down", "lora_up", "lora_embedding_A", "lora_embedding_B"]
)
def test_low_rank_adapters_are_told_by_a_whole_component_of_the_path(name: str) -> None:
    inner = nn.ModuleDict({"default": nn.Linear(16, 16, bias=False)})
    model = nn.ModuleList(nn.ModuleDict({name: inner, f"{name}x": inner}) for _ in range(2))
    other = nn.ModuleList(nn.ModuleDict({f"{name}x": inner}) for _ in range(2))
    assert decisions(model) == {f"0.{name}.default.weight": ("adamw", "low-rank adapter")}
    assert route_parameters(model)[0].decays
    assert decisions(other) == {f"0.{name}x.default.weight": HIDDEN}


def test_only_the_convolution_registered_first_is_the_first() -> None:
    model = nn.Sequential(nn.Conv1d(8, 16, 3), nn.Conv2d(8, 16, 3), nn.Conv3d(8, 16, 3))
    weights = [decisions(model)[f"{index}.weight"] for index in range(3)]
    assert weights == [("adamw", "first convolution"), HIDDEN, HIDDEN]


def test_transposed_convolutions_are_left_to_adamw() -> None:
    model = nn.Sequential(nn.ConvTranspose1d(16, 16, 3), nn.ConvTranspose3d(16, 16, 3))
    table = decisions(model)
    assert {table["0.weight"], table["1.weight"]} == {("adamw", "transposed convolution")}


def test_grouped_convolutions_are_one_matrix_a_group_and_depthwise_ones_are_too_narrow() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, bias=False),
        nn.Conv2d(32, 32, 3, groups=4, bias=False),
        nn.Conv2d(32, 32, 3, groups=32, bias=False),
        nn.Conv2d(32, 16, 1, groups=4, bias=False),
    )
    assert decisions(model) == {
        "0.weight": ("adamw", "first convolution"),
        "1.weight": HIDDEN,
        "2.weight": ("adamw", "narrower than 8"),
        "3.weight": ("adamw", "narrower than 8"),
    }
    assert forms(model) == {"1.weight": ("flatten", (8, 8, 8, 8))}


def test_a_kernel_counts_with_its_inputs_as_the_columns_of_the_matrix() -> None:
    model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.Conv2d(1, 8, 3), nn.Conv2d(1, 8, (1, 7)))
    table = decisions(model)
    assert table["1.weight"] == HIDDEN  # 8 x 9
    assert table["2.weight"] == ("adamw", "narrower than 8")  # 8 x 7


@pytest.mark.parametrize(
    ("num_in", "num_out", "expected"),
    [(8, 8, HIDDEN), (7, 64, ("adamw", "narrower than 8")), (64, 7, ("adamw", "narrower than 8"))],
)
def test_a_matrix_with_a_side_below_8_is_left_to_adamw(
    num_in: int, num_out: int, expected: tuple[str, str]
) -> None:
    model = nn.Sequential(nn.Linear(num_in, num_out), nn.Linear(num_out, 2))
    assert decisions(model)["0.weight"] == expected


def test_a_block_of_a_fused_projection_counts_for_the_narrowest_side() -> None:
    model = nn.Sequential(nn.Linear(16, 24), nn.Linear(24, 24))
    model.muon_row_splits = {"0.weight": (17, 7)}
    assert decisions(model)["0.weight"] == ("adamw", "narrower than 8")
    assert route_of(model, "0.weight").row_splits == ()


class MaskedLinear(nn.Linear):
    """A user's layer with one matrix more."""

    def __init__(self) -> None:
        super().__init__(16, 16)
        self.scores = nn.Parameter(torch.zeros(16, 16))


def test_the_weight_of_a_subclass_of_linear_is_a_hidden_matrix_and_its_additions_are_not() -> None:
    model = nn.Sequential(MaskedLinear(), nn.Linear(16, 2))
    assert decisions(model)["0.weight"] == HIDDEN
    assert decisions(model)["0.scores"] == ("adamw", "unknown module")


def test_tied_hidden_matrices_are_one_route_under_the_first_name() -> None:
    model = nn.Sequential(nn.Linear(16, 16, bias=False), nn.Linear(16, 16, bias=False), nn.Tanh())
    model.append(nn.Linear(16, 4, bias=False))
    model[1].weight = model[0].weight
    assert decisions(model) == {"0.weight": HIDDEN, "3.weight": ("adamw", "output head")}


class Conv1D(nn.Module):
    """Hugging Face's linear layer, which stores (in, out)."""

    def __init__(self, nf: int, nx: int) -> None:
        super().__init__()
        self.nf = nf
        self.weight = nn.Parameter(torch.zeros(nx, nf))
        self.bias = nn.Parameter(torch.zeros(nf))


def test_hugging_face_conv1d_is_transposed_and_only_c_attn_is_fused() -> None:
    model = nn.ModuleDict(
        {
            "c_attn": Conv1D(48, 16),
            "c_proj": Conv1D(16, 16),
            "c_fc": Conv1D(48, 16),
            "cross": nn.ModuleDict({"c_attn": Conv1D(32, 16)}),
            "gated": nn.ModuleDict({"c_attn": Conv1D(64, 16)}),
            "odd": nn.ModuleDict({"c_attn": Conv1D(50, 16)}),
        }
    )
    assert forms(model) == {
        "c_attn.weight": ("transposed", (16, 16, 16)),
        "c_proj.weight": ("transposed", ()),
        "c_fc.weight": ("transposed", ()),
        "cross.c_attn.weight": ("transposed", (16, 16)),
        "gated.c_attn.weight": ("transposed", ()),
        "odd.c_attn.weight": ("transposed", ()),
    }
    assert decisions(model)["c_attn.weight"] == HIDDEN
    assert decisions(model)["c_attn.bias"] == VECTOR


def test_what_no_module_type_explains_is_left_to_adamw_and_decays() -> None:
    model = nn.Module()
    model.queries = nn.Parameter(torch.zeros(16, 16))
    model.narrow = nn.Parameter(torch.zeros(4, 16))
    model.kernel = nn.Parameter(torch.zeros(16, 2, 2))
    model.bilinear = nn.Bilinear(16, 16, 16, bias=False)
    assert decisions(model) == {
        "queries": ("adamw", "unknown module"),
        "narrow": ("adamw", "narrower than 8"),
        "kernel": ("adamw", "unknown module"),
        "bilinear.weight": ("adamw", "unknown module"),
    }
    assert all(route.decays for route in route_parameters(model))


def test_complex_matrices_are_left_to_adamw() -> None:
    model = nn.Sequential(nn.Linear(16, 16, dtype=torch.complex64), nn.Linear(16, 16))
    assert decisions(model)["0.weight"] == ("adamw", "complex")


def test_a_lazy_module_must_see_a_batch_first() -> None:
    model = nn.Sequential(nn.LazyLinear(16), nn.Linear(16, 4))
    with pytest.raises(
        ConfigError, match=r"got 0\.weight of a lazy module without one; run one batch through"
    ):
        route_parameters(model)
    model(torch.zeros(2, 8))
    assert decisions(model)["0.weight"] == HIDDEN


def test_a_model_without_parameters_has_no_routes() -> None:
    assert route_parameters(nn.ReLU()) == []
