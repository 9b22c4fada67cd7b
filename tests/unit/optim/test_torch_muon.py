"""torch's Muon as an algorithm: its step, what it refuses, and the routes it can follow.

The bits of ``torch.optim.Muon`` are compared in ``numerics/test_muon_reference.py``.
"""

from __future__ import annotations

import copy
import math
import re
from typing import Any

import pytest
import torch
from torch import nn

from speedtronic.core.errors import ConfigError
from speedtronic.optim.hybrid import HybridOptimizer
from speedtronic.optim.routing import Route
from speedtronic.optim.torch_muon import (
    TORCH_MUON,
    check_torch_muon_group,
    routes_for_torch,
)


def make_optimizer(weight: nn.Parameter, **options: Any) -> HybridOptimizer:
    return HybridOptimizer([{"params": [("w", weight)], "algorithm": "muon_torch", **options}])


def random_weight(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> nn.Parameter:
    generator = torch.Generator().manual_seed(seed)
    return nn.Parameter(torch.randn(shape, generator=generator).to(dtype))


def muon_route(name: str, shape: tuple[int, ...], **changes: Any) -> Route:
    values: dict[str, Any] = {"algorithm": "muon", "reason": "hidden matrix", "decays": True}
    return Route(name=name, shape=shape, **{**values, **changes})


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_buffer_is_the_average_of_the_gradients_in_their_number_format(
    dtype: torch.dtype,
) -> None:
    weight = random_weight(6, 4, dtype=dtype)
    optimizer = make_optimizer(weight, momentum=0.75)
    expected = torch.zeros(6, 4, dtype=dtype)
    for seed in (1, 2, 3):
        gradient = random_weight(6, 4, seed=seed, dtype=dtype).detach()
        weight.grad = gradient.clone()
        optimizer.step()
        expected.lerp_(gradient, 0.25)
        assert torch.equal(optimizer.state[weight]["momentum_buffer"], expected)
        assert torch.equal(weight.grad, gradient)


def test_every_hyperparameter_of_the_group_reaches_the_step() -> None:
    gradient = random_weight(6, 4, seed=1).detach()
    results = []
    for options in (
        {},
        {"lr": 0.5},
        {"weight_decay": 0.5},
        {"momentum": 0.5},
        {"nesterov": False},
        {"scale": "match_rms_adamw"},
        {"ns_steps": 3},
        {"eps": 100.0},
    ):
        weight = random_weight(6, 4)
        optimizer = make_optimizer(weight, **options)
        for sign in (1, -2):
            weight.grad = gradient.sign() * sign + gradient
            optimizer.step()
        results.append(weight.detach())
    for number, result in enumerate(results):
        assert not any(torch.equal(result, other) for other in results[:number])


def test_a_gradient_of_zero_leaves_only_the_decay() -> None:
    weight = random_weight(6, 4)
    optimizer = make_optimizer(weight, lr=0.03, weight_decay=0.2)
    weight.grad = torch.zeros(6, 4)
    optimizer.step()
    assert torch.equal(weight, random_weight(6, 4) * (1 - 0.03 * 0.2))


def test_a_cleared_state_starts_again() -> None:
    weight = random_weight(6, 4)
    optimizer = make_optimizer(weight)
    weight.grad = random_weight(6, 4, seed=1).detach()
    optimizer.step()
    other = nn.Parameter(weight.detach().clone())
    optimizer.state.clear()
    fresh = make_optimizer(other)
    other.grad = weight.grad.clone()
    optimizer.step()
    fresh.step()
    assert torch.equal(weight, other)


def test_a_copied_optimizer_continues_bit_for_bit() -> None:
    weight = random_weight(6, 4, dtype=torch.bfloat16)
    optimizer = make_optimizer(weight)
    weight.grad = random_weight(6, 4, seed=1, dtype=torch.bfloat16).detach()
    optimizer.step()
    other_weight = nn.Parameter(weight.detach().clone())
    other = make_optimizer(other_weight)
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert other.state[other_weight]["momentum_buffer"].dtype is torch.bfloat16
    other_weight.grad = weight.grad.clone()
    optimizer.step()
    other.step()
    assert torch.equal(weight, other_weight)


# optimizers.md (18): checked in the constructor and in add_param_group
@pytest.mark.parametrize("shape", [(), (4,), (2, 3, 4), (4, 1, 2, 2)])
def test_only_matrices_of_two_dimensions_are_taken_now_and_later(shape: tuple[int, ...]) -> None:
    message = f"parameter w of shape {shape} is not 2-D, as torch's Muon wants it"
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        make_optimizer(random_weight(*shape))
    optimizer = HybridOptimizer(
        [{"params": [("a", random_weight(2, 2))], "algorithm": "muon_torch"}]
    )
    group = {"params": [("w", random_weight(*shape))], "algorithm": "muon_torch"}
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        optimizer.add_param_group(group)
    assert len(optimizer.param_groups) == 1


# pytorch PR #194664: in bf16 without Nesterov, torch's Muon normalises its buffer in place
def test_bf16_without_nesterov_is_refused_and_fp32_is_right() -> None:
    message = (
        "nesterov must be True with torch's Muon and bf16: parameter w of shape (2, 2) is"
        " bfloat16; use algorithm muon"
    )
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        make_optimizer(random_weight(2, 2, dtype=torch.bfloat16), nesterov=False)
    weight = random_weight(2, 2)
    optimizer = make_optimizer(weight, nesterov=False, momentum=0.75)
    weight.grad = torch.eye(2)
    optimizer.step()
    assert torch.equal(optimizer.state[weight]["momentum_buffer"], torch.eye(2) / 4)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"lr": -1.0}, "lr must be at least 0 and below inf, got -1.0"),
        ({"lr": math.nan}, "lr must be at least 0 and below inf, got nan"),
        ({"momentum": 1.0}, "momentum must be at least 0 and below 1, got 1.0"),
        ({"momentum": -0.1}, "momentum must be at least 0 and below 1, got -0.1"),
        ({"weight_decay": -0.1}, "weight_decay must be at least 0 and below inf, got -0.1"),
        (
            {"scale": "spectral_unclamped"},
            "scale must be one of original, match_rms_adamw, got 'spectral_unclamped'",
        ),
        ({"scale": None}, "scale must be one of original, match_rms_adamw, got None"),
    ],
)
def test_a_value_out_of_its_range_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        make_optimizer(random_weight(2, 2), **values)
    group = {**TORCH_MUON.defaults, "params": [random_weight(2, 2)], **values}
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        check_torch_muon_group(group)


def test_the_defaults_are_those_written_down() -> None:
    assert TORCH_MUON.defaults == {
        "lr": 0.03,
        "momentum": 0.95,
        "nesterov": True,
        "weight_decay": 0.1,
        "scale": "original",
        "ns_steps": 5,
        "eps": 1e-7,
    }


def test_matrices_of_two_dimensions_stay_with_muon_in_one_piece() -> None:
    routes = [
        muon_route("qkv", (12, 4), row_splits=(4, 4, 4), lr=0.5, rule=1),
        muon_route("conv1d", (4, 12), layout="transposed", row_splits=(4, 4, 4)),
        muon_route("mlp", (16, 4)),
    ]
    assert routes_for_torch(routes) == [
        muon_route("qkv", (12, 4), lr=0.5, rule=1),
        muon_route("conv1d", (4, 12), layout="transposed"),
        muon_route("mlp", (16, 4)),
    ]


def test_convolutions_and_experts_go_to_adamw_and_still_decay() -> None:
    routes = [
        muon_route("convolution", (8, 4, 3, 3), layout="flatten"),
        muon_route("experts", (2, 8, 4), layout="stack", row_splits=(4, 4)),
    ]
    changes = {"algorithm": "adamw", "reason": "not 2-D, as torch's Muon wants it"}
    assert routes_for_torch(routes) == [
        muon_route("convolution", (8, 4, 3, 3), **changes),
        muon_route("experts", (2, 8, 4), **changes),
    ]


def test_routes_of_adamw_and_frozen_ones_stay_as_they_are() -> None:
    routes = [
        Route(name="e", shape=(9, 4), algorithm="adamw", reason="embedding", decays=False),
        Route(name="f", shape=(4, 4), algorithm="frozen", reason="frozen", decays=False),
    ]
    assert routes_for_torch(routes) == routes


def test_a_rule_that_sends_a_convolution_to_torch_is_refused() -> None:
    route = muon_route("conv.weight", (8, 8, 3, 3), layout="flatten", rule=2, lr=0.02)
    with pytest.raises(ConfigError) as caught:
        routes_for_torch([route])
    assert str(caught.value) == (
        "optimizer.routing[2].algorithm must be adamw with torch's Muon for conv.weight of shape"
        " (8, 8, 3, 3), which is not 2-D; use optimizer=muon"
    )


def test_a_sharded_matrix_is_refused() -> None:
    weight = random_weight(8, 8)
    weight.device_mesh = "of a DTensor"  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match="is sharded; Muon needs the whole matrix"):
        make_optimizer(weight)
