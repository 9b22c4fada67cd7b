"""For any tree of modules the routes are a partition of its parameters, and Muon gets matrices."""

from __future__ import annotations

from collections.abc import Callable

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from speedtronic.optim.routing import Route, RoutingRule, route_parameters

ROLE = "_speedtronic_optimizer_role"

MIN_SIDE = 8


class Raw(nn.Module):
    """Parameters that no known module owns."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(shape))
        self.bias = nn.Parameter(torch.zeros(()))


class Experts(Raw):
    """A stack of matrices, where it has three dimensions."""


class Conv1D(nn.Module):
    """Stores (in, out)."""

    def __init__(self, num_in: int, num_out: int) -> None:
        super().__init__()
        self.nf = num_out
        self.weight = nn.Parameter(torch.zeros(num_in, num_out))


sides = st.sampled_from([1, 4, 7, 8, 12, 16])
leaves: st.SearchStrategy[nn.Module] = st.one_of(
    st.builds(nn.Linear, sides, sides, bias=st.booleans()),
    st.builds(nn.Embedding, sides, sides),
    st.builds(nn.EmbeddingBag, sides, sides),
    st.builds(
        lambda groups, a, b, size: nn.Conv1d(groups * a, groups * b, size, groups=groups),
        *(st.integers(1, 4), sides, sides, st.integers(1, 3)),
    ),
    st.builds(nn.Conv2d, sides, sides, st.integers(1, 3)),
    st.builds(nn.ConvTranspose2d, sides, sides, st.just(3)),
    st.builds(nn.Bilinear, sides, sides, sides),
    st.builds(lambda side: nn.LayerNorm([side, side]), sides),
    st.builds(nn.BatchNorm1d, sides),
    st.builds(
        lambda side, k, bias: nn.MultiheadAttention(side, 1, kdim=k, add_bias_kv=bias),
        *(sides, st.none() | sides, st.booleans()),
    ),
    st.builds(Conv1D, sides, sides),
    st.builds(Raw, sides, sides),
    st.builds(Experts, sides, sides, sides),
    st.builds(nn.ReLU),
)
names = st.sampled_from(
    ["head", "gate", "c_attn", "experts", "lora_A", "wpe", "layers", "fc", "decoder", "0x"]
)


def with_flags(module: nn.Module, flag: str) -> nn.Module:
    """Freeze a module or give it a role, sometimes."""
    if flag == "frozen":
        return module.requires_grad_(False)
    if flag in {"muon", "adamw"}:
        setattr(module, ROLE, flag)
    return module


flags = st.sampled_from(["", "", "", "", "frozen", "muon", "adamw"])


def containers(inner: st.SearchStrategy[nn.Module]) -> st.SearchStrategy[nn.Module]:
    """Hold modules in a container; now and then one of them twice, so that it is shared."""
    several = st.lists(inner, max_size=3).flatmap(
        lambda found: st.just(found) | st.just(found + found[:1])
    )
    kinds: st.SearchStrategy[Callable[..., nn.Module]] = st.sampled_from(
        [lambda found: nn.Sequential(*found), nn.ModuleList]
    )
    held = st.builds(lambda kind, found: kind(found), kinds, several)
    named = st.dictionaries(names, inner, max_size=3).map(nn.ModuleDict)
    return st.builds(with_flags, held | named, flags)


trees = st.recursive(st.builds(with_flags, leaves, flags), containers, max_leaves=8)


@st.composite
def models(draw: st.DrawFn) -> nn.Module:
    """Draw a tree in which two weights of equal shape may be tied."""
    model = draw(trees)
    weights = [m for m in model.modules() if isinstance(getattr(m, "weight", None), nn.Parameter)]
    for module in weights[1:]:
        if module.weight.shape == weights[0].weight.shape and draw(st.booleans()):
            module.weight = weights[0].weight
    return model


def blocks(route: Route, parameter: Tensor) -> list[Tensor]:
    """Take a parameter apart as its route says, without the code under test."""
    matrices = {
        "matrix": lambda: [parameter],
        "transposed": lambda: [parameter.T],
        "flatten": lambda: [parameter.reshape(parameter.shape[0], -1)],
        "stack": lambda: list(parameter),
    }[route.layout]()
    rows = list(route.row_splits)
    return [block for matrix in matrices for block in (matrix.split(rows) if rows else [matrix])]


@given(models(), st.sampled_from(["matrices", "all"]))
def test_every_parameter_has_one_route_and_only_frozen_ones_are_in_no_optimizer(
    model: nn.Module, decay: str
) -> None:
    parameters = dict(model.named_parameters())

    routes = route_parameters(model, decay=decay)

    assert [route.name for route in routes] == list(parameters)
    assert len({id(parameters[route.name]) for route in routes}) == len(list(model.parameters()))
    for route in routes:
        parameter = parameters[route.name]
        assert route.shape == tuple(parameter.shape)
        assert (route.algorithm == "frozen") == (not parameter.requires_grad)
        if parameter.requires_grad and decay == "all":
            assert route.decays
        if route.algorithm == "muon":
            assert route.decays
        else:
            assert (route.layout, route.row_splits) == ("matrix", ())


@given(models())
def test_muon_gets_blocks_that_are_matrices_and_together_the_whole_parameter(
    model: nn.Module,
) -> None:
    parameters = dict(model.named_parameters())
    for route in route_parameters(model):
        if route.algorithm != "muon":
            continue
        found = blocks(route, parameters[route.name].detach())
        assert all(block.ndim == 2 for block in found)
        assert sum(block.numel() for block in found) == parameters[route.name].numel()
        if route.reason != "role":
            assert min(min(block.shape) for block in found) >= MIN_SIDE
            assert route.reason == "hidden matrix"


@given(models())
def test_routing_changes_nothing_and_gives_the_same_again(model: nn.Module) -> None:
    before = {name: (id(p), p.requires_grad, p.tolist()) for name, p in model.named_parameters()}
    first = route_parameters(model)
    assert route_parameters(model) == first
    assert before == {
        name: (id(p), p.requires_grad, p.tolist()) for name, p in model.named_parameters()
    }
    trained = [route.name for route in first if route.algorithm != "frozen"]
    if trained:
        rule = RoutingRule(match="", algorithm="adamw")
        decided = route_parameters(model, rules=[rule])
        assert [route.name for route in decided if route.rule == 0] == trained
