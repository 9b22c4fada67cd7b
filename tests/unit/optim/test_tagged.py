"""Optimizers whose groups name their algorithm: groups, checks, steps and loading by name."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from speedtronic.core.errors import ConfigError, IncompatibleCheckpointError
from speedtronic.optim.grouping import ParameterGroup
from speedtronic.optim.hybrid import HybridOptimizer
from speedtronic.optim.muon import Muon
from speedtronic.optim.tagged import (
    Algorithm,
    State,
    TaggedOptimizer,
    check_numbers,
    check_tensors,
    described,
    gradient_of,
)

GROUP_MODES: list[dict[str, Any]] = [
    {"algorithm": "muon"},
    {"algorithm": "muon", "nesterov": False},
    {"algorithm": "muon", "nesterov": False, "momentum": 0.0},
    {"algorithm": "muon", "muon_plus": "col_row"},
    {"algorithm": "muon", "normuon_beta2": 0.95},
    {"algorithm": "muon", "cautious": "wd"},
    {"algorithm": "muon", "cautious": "update"},
    {"algorithm": "muon", "cautious": "update", "nesterov": False},
    {"algorithm": "muon", "row_splits": {"w": [2, 4]}},
    {"algorithm": "muon", "layouts": {"w": "transposed"}},
    {"algorithm": "muon", "layouts": {"w": "flatten"}},
    {"algorithm": "adamw", "fused": False},
    {"algorithm": "adamw", "fused": True},
    {"algorithm": "adamw", "cautious": "update"},
    {"algorithm": "adamw", "cautious": "wd"},
    {"algorithm": "muon_torch"},
]


def check_shift(group: ParameterGroup) -> None:
    check_tensors(group)
    check_numbers(group, {"shift": (0, 10)})


def update_shift(group: ParameterGroup, state: State) -> None:
    for parameter in group["params"]:
        if parameter.grad is not None:
            parameter.sub_(group["shift"] * gradient_of(parameter, group))
            state[parameter]["num_steps"] = state[parameter].get("num_steps", 0) + 1


def update_nothing(group: ParameterGroup, state: State) -> None:
    """Leave the parameters as they are."""


class ShiftOptimizer(TaggedOptimizer):
    """Two small algorithms."""

    algorithms: ClassVar[Mapping[str, Algorithm]] = {
        "shift": Algorithm({"shift": 1.0, "lr": 0.1}, check_shift, update_shift),
        "rest": Algorithm({"lr": 0.1}, check_tensors, update_nothing),
    }


def random_weight(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> nn.Parameter:
    generator = torch.Generator().manual_seed(seed)
    return nn.Parameter(torch.randn(*shape, generator=generator).to(dtype))


# Groups -------------------------------------------------------------------------------------------


def test_a_group_gets_the_defaults_of_its_algorithm_below_its_own_values() -> None:
    optimizer = ShiftOptimizer(
        [
            {"params": [random_weight(2)]},
            {"params": [random_weight(2)], "shift": 3.0},
            {"params": [random_weight(2)], "algorithm": "rest"},
        ],
        {"lr": 0.5},
    )
    found = [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
    assert found == [
        {"algorithm": "shift", "shift": 1.0, "lr": 0.5},
        {"algorithm": "shift", "shift": 3.0, "lr": 0.5},
        {"algorithm": "rest", "lr": 0.5},
    ]


def test_every_group_is_updated_by_its_algorithm() -> None:
    moving, resting = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    optimizer = ShiftOptimizer(
        [{"params": [moving], "shift": 2.0}, {"params": [resting], "algorithm": "rest"}], {}
    )
    moving.grad = resting.grad = torch.tensor([1.0, 3.0])
    optimizer.step()
    assert moving.tolist() == [-1.0, -5.0]
    assert resting.tolist() == [1.0, 1.0]
    assert dict(optimizer.state) == {moving: {"num_steps": 1}}


def test_an_unknown_algorithm_is_refused_now_and_later() -> None:
    message = "algorithm must be one of shift, rest, got 'sgd'; correct the parameter group"
    group = {"params": [random_weight(2)], "algorithm": "sgd"}
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        ShiftOptimizer([group], {})
    optimizer = ShiftOptimizer([random_weight(2)], {})
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        optimizer.add_param_group(group)
    assert len(optimizer.param_groups) == 1


# torch accepts in add_param_group what its constructor refuses
def test_a_group_added_later_is_checked_and_a_refused_one_leaves_no_trace() -> None:
    first = random_weight(2)
    optimizer = ShiftOptimizer([first], {})
    with pytest.raises(ConfigError, match=r"^shift must be at least 0 and below 10, got 10\.5$"):
        optimizer.add_param_group({"params": [random_weight(2)], "shift": 10.5})
    assert [group["params"] for group in optimizer.param_groups] == [[first]]
    second = random_weight(3)
    optimizer.add_param_group({"params": [second]})
    assert [group["params"] for group in optimizer.param_groups] == [[first], [second]]


# pytorch #40967: a parameter that appears twice in a group was updated twice
def test_a_parameter_appears_once() -> None:
    weight = random_weight(4, 6)
    message = "params: a parameter appears twice in one group; give each once"
    with (
        pytest.warns(UserWarning, match="duplicate parameters"),  # torch only warns
        pytest.raises(ConfigError, match=f"^{re.escape(message)}$"),
    ):
        Muon([weight, random_weight(4, 6), weight])
    optimizer = Muon([random_weight(4, 6)])
    with (
        pytest.warns(UserWarning, match="duplicate parameters"),
        pytest.raises(ConfigError, match=f"^{re.escape(message)}$"),
    ):
        optimizer.add_param_group({"params": [weight, weight]})
    assert len(optimizer.param_groups) == 1
    with pytest.raises(ValueError, match="some parameters appear in more than one parameter group"):
        Muon([{"params": [weight]}, {"params": [weight]}])


# Checks -------------------------------------------------------------------------------------------


def test_a_parameter_is_described_by_its_name_or_number_and_its_shape() -> None:
    weights = [random_weight(2), random_weight(3, 4)]
    assert described({"params": weights}, 1) == "parameter number 1 of shape (3, 4)"
    named = {"params": weights, "param_names": ["bias", "layers.0.weight"]}
    assert described(named, 1) == "parameter layers.0.weight of shape (3, 4)"


@pytest.mark.parametrize("value", [None, "0.5"])
def test_what_is_no_number_is_refused(value: Any) -> None:
    message = f"^momentum must be at least 0 and below 1, got {value!r}$"
    with pytest.raises(ConfigError, match=message):
        check_numbers({"momentum": value}, {"momentum": (0, 1)})


@pytest.mark.parametrize("value", [0, 0.0, 0.5, 0.999])
def test_a_range_includes_its_low_end(value: float) -> None:
    check_numbers({"momentum": value}, {"momentum": (0, 1)})


@pytest.mark.parametrize(
    ("value", "high", "message"),
    [
        (1, 1, "momentum must be at least 0 and below 1, got 1"),
        (-0.5, 1, "momentum must be at least 0 and below 1, got -0.5"),
        (math.nan, 1, "momentum must be at least 0 and below 1, got nan"),
        (math.inf, math.inf, "momentum must be at least 0 and below inf, got inf"),
    ],
)
def test_a_range_leaves_out_its_high_end_and_what_is_no_number(
    value: float, high: float, message: str
) -> None:
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        check_numbers({"momentum": value}, {"momentum": (0, high)})


# optimizers.md (18): sparse and complex parameters, whatever the algorithm
@pytest.mark.parametrize("algorithm", ["muon", "adamw", "muon_torch"])
@pytest.mark.parametrize(
    ("make_tensor", "message"),
    [
        (
            lambda: torch.eye(3).to_sparse(),
            "parameter w of shape (3, 3) is sparse; train it with SparseAdam",
        ),
        (
            lambda: torch.eye(3).to_sparse_csr(),
            "parameter w of shape (3, 3) is sparse; train it with SparseAdam",
        ),
        (
            lambda: torch.ones(2, 2, dtype=torch.complex128),
            "parameter w of shape (2, 2) is complex128, not real floating point;"
            " freeze it or train it with another optimizer",
        ),
        (
            lambda: torch.ones(2, 2, dtype=torch.int64),
            "parameter w of shape (2, 2) is int64, not real floating point;"
            " freeze it or train it with another optimizer",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
def test_parameters_that_are_sparse_or_not_real_are_refused_now_and_later(
    algorithm: str, make_tensor: Callable[[], Tensor], message: str
) -> None:
    tensor = make_tensor()
    if algorithm == "adamw" and tensor.is_complex():
        pytest.skip("AdamW trains complex numbers")
    weight = nn.Parameter(tensor, requires_grad=tensor.is_floating_point())
    group = {"params": [("w", weight)], "algorithm": algorithm}
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        HybridOptimizer([group])
    optimizer = HybridOptimizer([{"params": [("a", random_weight(2, 2))]}])
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        optimizer.add_param_group(group)
    assert len(optimizer.param_groups) == 1


# optimizers.md (18): sparse gradients, whatever the algorithm
@pytest.mark.parametrize("algorithm", ["muon", "adamw", "muon_torch"])
def test_sparse_gradients_are_refused_by_the_name_of_the_algorithm(algorithm: str) -> None:
    embedding = nn.Embedding(5, 3, sparse=True)
    optimizer = HybridOptimizer([{"params": [embedding.weight], "algorithm": algorithm}])
    before = embedding.weight.detach().clone()
    embedding(torch.tensor([1, 2])).sum().backward()
    message = (
        f"{algorithm} takes no sparse gradients, got one for a parameter of shape (5, 3);"
        " build its embedding with sparse=False"
    )
    with pytest.raises(RuntimeError, match=f"^{re.escape(message)}$"):
        optimizer.step()
    assert torch.equal(embedding.weight, before)


# Steps --------------------------------------------------------------------------------------------


def test_the_closure_is_called_once_with_gradients_on() -> None:
    weight = nn.Parameter(torch.ones(2))
    optimizer = ShiftOptimizer([weight], {})
    calls = []

    def closure() -> float:
        calls.append(torch.is_grad_enabled())
        weight.grad = torch.tensor([1.0, 2.0])
        return 7.5

    assert optimizer.step(closure) == 7.5
    assert calls == [True]
    assert weight.tolist() == [0.0, -1.0]
    assert optimizer.step() is None


def test_hooks_before_and_after_a_step_are_called() -> None:
    weight = nn.Parameter(torch.ones(2))
    optimizer = ShiftOptimizer([weight], {})
    weight.grad = torch.ones(2)
    seen: list[tuple[str, float]] = []
    optimizer.register_step_pre_hook(lambda *_: seen.append(("before", weight[0].item())))
    optimizer.register_step_post_hook(lambda *_: seen.append(("after", weight[0].item())))
    optimizer.step()
    assert seen == [("before", 1.0), ("after", 0.0)]


# optimizers.md (16): gradients are never modified; KellerJordan/Muon's lerp_ does
@pytest.mark.parametrize("mode", GROUP_MODES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("is_fast", [True, False])
def test_no_mode_of_any_algorithm_modifies_a_gradient(
    mode: dict[str, Any], dtype: torch.dtype, is_fast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("speedtronic.optim.polar.has_fast_bf16", lambda device: is_fast)
    shape = (4, 6) if mode.get("layouts") == {"w": "transposed"} else (6, 4)
    weights = [random_weight(*shape, dtype=dtype), random_weight(*shape, seed=1, dtype=dtype)]
    named = list(zip(("w", "v"), weights, strict=True))
    optimizer = HybridOptimizer([{**mode, "params": named}])
    for seed in (2, 3):
        for number, weight in enumerate(weights):
            weight.grad = random_weight(*shape, seed=seed + number, dtype=dtype).detach()
        given = [weight.grad for weight in weights]
        before = [(gradient.clone(), gradient.data_ptr()) for gradient in given]
        starts = [weight.detach().clone() for weight in weights]
        optimizer.step()
        for weight, gradient, (value, address) in zip(weights, given, before, strict=True):
            assert weight.grad is gradient
            assert gradient.data_ptr() == address
            assert torch.equal(gradient, value)
        assert not any(map(torch.equal, weights, starts))
    buffers = [value for weight in weights for value in optimizer.state[weight].values()]
    addresses = {weight.grad.untyped_storage().data_ptr() for weight in weights}
    assert addresses.isdisjoint(buffer.untyped_storage().data_ptr() for buffer in buffers)


# optimizers.md (15): no gradient, no change, whatever the algorithm
@pytest.mark.parametrize(
    "mode", [mode for mode in GROUP_MODES if not {"layouts", "row_splits"} & mode.keys()]
)
def test_a_parameter_without_gradient_is_left_alone_by_every_algorithm(
    mode: dict[str, Any],
) -> None:
    resting, moving = random_weight(6, 4), random_weight(6, 4, seed=1)
    optimizer = HybridOptimizer([{**mode, "params": [resting, moving], "weight_decay": 0.5}])
    moving.grad = torch.ones(6, 4)
    optimizer.step()
    assert torch.equal(resting, random_weight(6, 4))
    assert resting not in optimizer.state
    assert not torch.equal(moving, random_weight(6, 4, seed=1))


# Loading ------------------------------------------------------------------------------------------


def trained(names: list[str], dtype: torch.dtype) -> tuple[dict[str, nn.Parameter], Muon]:
    """Return parameters by name, in the order of ``names``, and an optimizer that has stepped."""
    weights = {name: random_weight(6, 4, seed=ord(name), dtype=dtype) for name in names}
    optimizer = Muon(list(weights.items()), lr=0.07, normuon_beta2=0.9)
    for name, weight in weights.items():
        weight.grad = random_weight(6, 4, seed=ord(name) + 1, dtype=dtype).detach()
    optimizer.step()
    return weights, optimizer


# pytorch #1489, PR #134107: state was matched by position
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_state_is_loaded_by_name_whatever_the_order(dtype: torch.dtype) -> None:
    saved_weights, saved = trained(["a", "b", "c"], dtype)
    weights = {name: random_weight(6, 4, seed=9, dtype=dtype) for name in ("c", "a", "b")}
    loaded = Muon(list(weights.items()), normuon_beta2=0.9)
    loaded.load_state_dict(copy.deepcopy(saved.state_dict()))
    assert loaded.param_groups[0]["param_names"] == ["c", "a", "b"]
    assert loaded.param_groups[0]["lr"] == 0.07
    for name, weight in weights.items():
        for key, expected in saved.state[saved_weights[name]].items():
            found = loaded.state[weight][key]
            assert found.dtype is expected.dtype is torch.float32
            assert torch.equal(found, expected)


def test_loaded_averages_of_bf16_weights_are_copies() -> None:
    _, saved = trained(["a"], torch.bfloat16)
    state = saved.state_dict()
    before = state["state"][0]["momentum_buffer"].clone()
    weights, loaded = trained(["a"], torch.bfloat16)
    loaded.load_state_dict(state)
    weights["a"].grad = torch.ones(6, 4, dtype=torch.bfloat16)
    loaded.step()
    assert torch.equal(state["state"][0]["momentum_buffer"], before)


def test_without_names_state_is_loaded_by_position_in_its_own_number_format() -> None:
    first, second = (random_weight(6, 4, dtype=torch.bfloat16) for _ in range(2))
    saved, loaded = Muon([first]), Muon([second])
    first.grad = random_weight(6, 4, seed=1, dtype=torch.bfloat16).detach()
    saved.step()
    loaded.load_state_dict(saved.state_dict())
    found = loaded.state[second]["momentum_buffer"]
    assert found.dtype is torch.float32
    assert torch.equal(found, saved.state[first]["momentum_buffer"])


def test_a_state_of_other_names_is_refused_and_changes_nothing() -> None:
    _, saved = trained(["a", "b"], torch.float32)
    weights, optimizer = trained(["a", "c"], torch.float32)
    before = copy.deepcopy(optimizer.state_dict())
    message = (
        "the optimizer of the checkpoint belongs to another model: it lacks c; it has unknown b"
    )
    with pytest.raises(IncompatibleCheckpointError, match=f"^{re.escape(message)}$"):
        optimizer.load_state_dict(saved.state_dict())
    after = optimizer.state_dict()
    assert after["param_groups"] == before["param_groups"]
    for number in range(len(weights)):
        for key, value in before["state"][number].items():
            assert torch.equal(after["state"][number][key], value)


def test_a_parameter_of_another_algorithm_is_refused() -> None:
    weight = random_weight(6, 4)
    saved = HybridOptimizer([{"params": [("w", weight)], "algorithm": "adamw"}]).state_dict()
    present = HybridOptimizer([{"params": [("w", weight)], "algorithm": "muon"}])
    message = (
        "optimizer.routing: the checkpoint trained w (adamw -> muon);"
        " resume with the optimizer and the routing it had"
    )
    with pytest.raises(IncompatibleCheckpointError, match=f"^{re.escape(message)}$"):
        present.load_state_dict(saved)


def test_groups_share_no_default_that_may_change() -> None:
    first, second = Muon([random_weight(8, 8)]), Muon([random_weight(8, 8)])
    first.param_groups[0]["row_splits"]["x"] = [1, 2]
    assert second.param_groups[0]["row_splits"] == {}
    assert Muon.algorithms["muon"].defaults["row_splits"] == {}


def test_a_lazy_parameter_is_refused() -> None:
    layer = nn.LazyLinear(8)
    with pytest.raises(ConfigError, match="a parameter of a lazy module has no shape yet"):
        Muon([layer.weight])


def test_a_sparse_gradient_stops_a_group_before_any_of_it_moves() -> None:
    parameters = [random_weight(8, 8), random_weight(8, 8)]
    before = [parameter.detach().clone() for parameter in parameters]
    optimizer = Muon(parameters)
    parameters[0].grad = torch.ones_like(parameters[0])
    parameters[1].grad = torch.ones_like(parameters[1]).to_sparse()
    with pytest.raises(RuntimeError, match="muon takes no sparse gradients"):
        optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(parameters, before, strict=True))


@pytest.mark.parametrize("values", [{"ns_steps": 2.5}, {"orthogonalization": ["kj5"]}])
def test_a_group_with_a_value_of_a_wrong_type_leaves_no_trace(values: dict[str, Any]) -> None:
    optimizer = Muon([random_weight(4, 4)])
    with pytest.raises(ConfigError, match=r"^orthogonalization, ns_steps: "):
        optimizer.add_param_group({"params": [random_weight(4, 4)], **values})
    assert len(optimizer.param_groups) == 1


@pytest.mark.parametrize(
    ("key", "line"),
    [
        ("momentun", "momentun: unknown key of a group of muon, got 1; did you mean 'momentum'?"),
        ("betas", "betas: unknown key of a group of muon, got 1; did you mean "),
    ],
)
def test_an_unknown_key_of_a_group_is_refused(key: str, line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        HybridOptimizer([{"params": [random_weight(4, 4)], "algorithm": "muon", key: 1}])
    assert str(caught.value).startswith(line.partition("; did you mean ")[0])


def test_a_group_may_carry_the_bases_of_a_schedule() -> None:
    weight = random_weight(4, 4)
    optimizer = Muon([{"params": [weight], "initial_lr": 0.5, "initial_momentum": 0.9}])
    assert optimizer.param_groups[0]["initial_lr"] == 0.5


@pytest.mark.parametrize("shape", [(5, 0), (0, 5), (0, 0)])
def test_an_empty_matrix_is_refused(shape: tuple[int, int]) -> None:
    with pytest.raises(ConfigError, match=r"^parameter number 0 .* is empty; leave it out"):
        Muon([nn.Parameter(torch.empty(shape))])


def test_the_adamw_half_trains_complex_numbers_as_torch_does() -> None:
    start = torch.complex(torch.eye(3), torch.ones(3, 3))
    ours, theirs = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    optimizers = [
        HybridOptimizer([{"params": [ours], "algorithm": "adamw", "lr": 0.1}]),
        torch.optim.AdamW([theirs], lr=0.1, betas=(0.9, 0.95), weight_decay=0.1),
    ]
    for _ in range(3):
        for parameter in (ours, theirs):
            parameter.grad = torch.complex(torch.full((3, 3), 0.5), -torch.eye(3))
        for optimizer in optimizers:
            optimizer.step()
    assert torch.equal(ours, theirs)
    assert not torch.equal(ours.detach(), start)
