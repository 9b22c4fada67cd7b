"""Muon over plain matrices: momentum, scales, decay, and the variants that even out or mask."""

from __future__ import annotations

import copy
import io
import math
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from speedtronic.optim.matrices import Layout
from speedtronic.optim.muon import Muon
from speedtronic.optim.muon_groups import SCALES
from speedtronic.optim.polar import orthogonalize
from tests.unit.optim.builders import (
    FP32,
    force_bf16,
    random_tensor,
    random_weight,
    take_steps,
    train_alone,
)

MODES: list[dict[str, Any]] = [
    {},
    {"nesterov": False, "weight_decay": 0.0, "scale": "match_rms_adamw"},
    {"scale": "spectral_unclamped", "orthogonalization": "polar_express"},
    {"muon_plus": "row"},
    {"muon_plus": "col_row"},
    {"normuon_beta2": 0.95},
    {"muon_plus": "row_col", "normuon_beta2": 0.9},
    {"cautious": "wd"},
]


@pytest.fixture(autouse=True)
def _fp32_products(monkeypatch: pytest.MonkeyPatch) -> None:
    force_bf16(monkeypatch, is_fast=False)


# Momentum -----------------------------------------------------------------------------------------


# optimizers.md (7): the buffer is the lerp of the gradients, exactly; pytorch PR #194664
@pytest.mark.parametrize("dtype", [FP32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.parametrize("is_fast", [True, False])
@pytest.mark.parametrize("shapes", [[(8, 12)], [(12, 8)], [(8, 12), (8, 12)]])
def test_the_momentum_is_the_average_of_the_gradients_exactly(
    dtype: torch.dtype,
    nesterov: bool,
    is_fast: bool,
    shapes: list[tuple[int, int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    force_bf16(monkeypatch, is_fast=is_fast)
    weights = [random_weight(*shape, dtype=dtype) for shape in shapes]
    optimizer = Muon(weights, nesterov=nesterov, momentum=0.9)
    precise = torch.float64 if dtype is torch.float64 else FP32
    expected = [torch.zeros(shape, dtype=precise) for shape in shapes]
    for seed in range(3):
        gradients = [random_tensor(*shape, seed=seed, dtype=dtype) for shape in shapes]
        take_steps(optimizer, [gradients])
        for weight, gradient, average in zip(weights, gradients, expected, strict=True):
            average.lerp_(gradient.to(precise), 1 - 0.9)
            found = optimizer.state[weight]["momentum_buffer"]
            assert found.dtype is precise
            assert torch.equal(found, average)
            assert torch.equal(weight.grad, gradient)


# KellerJordan/Muon PR #4: without Nesterov the momentum was ignored
def test_without_nesterov_the_update_is_the_orthogonalized_momentum() -> None:
    first, second = random_tensor(8, 12, seed=1), random_tensor(8, 12, seed=2)
    weight = random_weight(8, 12)
    optimizer = Muon([weight], lr=0.5, momentum=0.9, nesterov=False, weight_decay=0.0)
    take_steps(optimizer, [[first]])
    before = weight.detach().clone()
    take_steps(optimizer, [[second]])
    momentum = 0.9 * (0.1 * first) + 0.1 * second
    expected = before - 0.5 * orthogonalize(momentum, dtype=FP32)
    assert (weight - expected).abs().max() < 1e-5
    without_momentum = before - 0.5 * orthogonalize(second, dtype=FP32)
    assert (weight - without_momentum).abs().max() > 0.05


def test_with_nesterov_the_update_looks_one_step_ahead() -> None:
    first, second = random_tensor(8, 12, seed=1), random_tensor(8, 12, seed=2)
    weight = random_weight(8, 12)
    optimizer = Muon([weight], lr=0.5, momentum=0.9, nesterov=True, weight_decay=0.0)
    take_steps(optimizer, [[first]])
    before = weight.detach().clone()
    take_steps(optimizer, [[second]])
    momentum = 0.9 * (0.1 * first) + 0.1 * second
    expected = before - 0.5 * orthogonalize(0.1 * second + 0.9 * momentum, dtype=FP32)
    assert (weight - expected).abs().max() < 1e-5


@pytest.mark.parametrize("is_fast", [True, False])
def test_fp64_parameters_are_fp64_all_along(is_fast: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    force_bf16(monkeypatch, is_fast=is_fast)
    weight = random_weight(8, 12, dtype=torch.float64)
    before = weight.detach().clone()
    gradient = random_tensor(8, 12, seed=1, dtype=torch.float64)
    optimizer = Muon([weight], lr=0.5, weight_decay=0.0, normuon_beta2=0.0)
    take_steps(optimizer, [[gradient]])
    state = optimizer.state[weight]
    assert {value.dtype for value in state.values()} == {torch.float64}
    orthogonal = orthogonalize(gradient)
    evened = orthogonal / orthogonal.square().mean(dim=1, keepdim=True).sqrt()
    evened *= orthogonal.norm() / evened.norm()
    # The 1e-10 beside NorMuon's roots is the largest term left.
    assert (before - 0.5 * evened - weight).abs().max() < 1e-9


def store_by_state_dict(optimizer: Muon, weight: nn.Parameter) -> tuple[Muon, nn.Parameter]:
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    other = nn.Parameter(weight.detach().clone())
    loaded = Muon([("w", other)], normuon_beta2=0.9)
    loaded.load_state_dict(torch.load(file, weights_only=True))
    return loaded, other


def store_by_deepcopy(optimizer: Muon, weight: nn.Parameter) -> tuple[Muon, nn.Parameter]:
    other = copy.deepcopy(optimizer)
    return other, other.param_groups[0]["params"][0]


def store_by_pickle(optimizer: Muon, weight: nn.Parameter) -> tuple[Muon, nn.Parameter]:
    other = pickle.loads(pickle.dumps(optimizer))
    return other, other.param_groups[0]["params"][0]


# optimizers.md (7): the average of bf16 gradients is kept in fp32
@pytest.mark.parametrize("store", [store_by_state_dict, store_by_deepcopy, store_by_pickle])
@pytest.mark.parametrize("dtype", [torch.bfloat16, FP32, torch.float64])
def test_a_stored_optimizer_keeps_its_precise_state_and_continues_bit_for_bit(
    store: Callable[[Muon, nn.Parameter], tuple[Muon, nn.Parameter]], dtype: torch.dtype
) -> None:
    weight = random_weight(8, 12, dtype=dtype)
    optimizer = Muon([("w", weight)], normuon_beta2=0.9)
    gradients = [[random_tensor(8, 12, seed=seed, dtype=dtype)] for seed in range(4)]
    take_steps(optimizer, gradients[:2])
    other, stored_weight = store(optimizer, weight)
    precise = torch.float64 if dtype is torch.float64 else FP32
    for key in ("momentum_buffer", "row_second_moment"):
        assert other.state[stored_weight][key].dtype is precise
        assert torch.equal(other.state[stored_weight][key], optimizer.state[weight][key])
    take_steps(optimizer, gradients[2:])
    take_steps(other, gradients[2:])
    assert torch.equal(stored_weight, weight)
    if dtype is torch.bfloat16:
        momentum = optimizer.state[weight]["momentum_buffer"]
        assert not torch.equal(momentum, momentum.to(dtype).to(FP32))


# KellerJordan/Muon #9: flags of the groups lived in the state
def test_clearing_the_state_starts_again_with_the_same_groups() -> None:
    weight = random_weight(3, 8, 12)
    group = {"params": [("w", weight)], "layouts": {"w": "stack"}, "row_splits": {"w": [6, 2]}}
    optimizer = Muon([group], normuon_beta2=0.9)
    gradients = [[random_tensor(3, 8, 12, seed=seed)] for seed in range(3)]
    take_steps(optimizer, gradients[:2])
    fresh_weight = nn.Parameter(weight.detach().clone())
    optimizer.state.clear()
    take_steps(optimizer, gradients[2:])
    fresh = Muon([{**group, "params": [("w", fresh_weight)]}], normuon_beta2=0.9)
    take_steps(fresh, gradients[2:])
    assert torch.equal(weight, fresh_weight)


# Scales and decay ---------------------------------------------------------------------------------

SCALE_NUMBERS = [
    ("original", (16, 64), 1.0),
    ("original", (64, 16), 2.0),
    ("match_rms_adamw", (16, 64), 1.6),
    ("match_rms_adamw", (64, 16), 1.6),
    ("spectral_unclamped", (16, 64), 0.5),
    ("spectral_unclamped", (64, 16), 2.0),
]


# pytorch_optimizer #371: a switch gave the other scale than it said
@pytest.mark.parametrize(("scale", "shape", "number"), SCALE_NUMBERS)
def test_every_scale_multiplies_the_update_by_its_number(
    scale: str, shape: tuple[int, int], number: float
) -> None:
    gradient = random_tensor(*shape, seed=1)
    weight = nn.Parameter(torch.zeros(shape))
    take_steps(Muon([weight], lr=0.5, scale=scale), [[gradient]])
    expected = -0.5 * number * orthogonalize(gradient, dtype=FP32)
    assert (weight - expected).abs().max() < 1e-6


def test_there_are_no_other_scales() -> None:
    assert list(SCALES) == ["original", "match_rms_adamw", "spectral_unclamped"]


# optimizers.md (13): updates as large as AdamW's
@pytest.mark.parametrize("shape", [(48, 96), (96, 48), (64, 64), (128, 512)])
@pytest.mark.parametrize("is_fast", [True, False])
def test_match_rms_adamw_gives_updates_of_the_size_of_adamws(
    shape: tuple[int, int], is_fast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    force_bf16(monkeypatch, is_fast=is_fast)
    weight = nn.Parameter(torch.zeros(shape))
    optimizer = Muon([weight], lr=1.0, scale="match_rms_adamw", weight_decay=0.0)
    take_steps(optimizer, [[random_tensor(*shape, seed=1)]])
    assert 0.14 <= weight.detach().square().mean().sqrt() <= 0.21


# optimizers.md (14): the scale of a convolution; KellerJordan/Muon PR #60, ultralytics PR #25846
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_the_scale_of_a_convolution_is_that_of_its_flattened_matrix(
    memory_format: torch.memory_format,
) -> None:
    gradient = random_tensor(64, 1, 3, 3, seed=1).to(memory_format=memory_format)
    weight = nn.Parameter(torch.zeros(64, 1, 3, 3))
    take_steps(Muon([weight], lr=1.0, weight_decay=0.0), [[gradient]])
    orthogonal = orthogonalize(gradient.reshape(64, 9), dtype=FP32).view(64, 1, 3, 3)
    assert SCALES["original"](64, 9) == pytest.approx(2.667, abs=1e-3)
    assert (weight + 8 / 3 * orthogonal).abs().max() < 1e-5  # and not 1.0, from the kernel's 3 / 3


# optimizers.md (12): the learning rate of the decay is without the factor of the shape
@pytest.mark.parametrize("scale", list(SCALES))
@pytest.mark.parametrize("shape", [(16, 64), (64, 16)])
@pytest.mark.parametrize("options", [{}, {"muon_plus": "row"}, {"normuon_beta2": 0.9}])
def test_with_a_gradient_of_zero_the_weights_shrink_by_lr_times_decay_exactly(
    scale: str, shape: tuple[int, int], options: dict[str, Any]
) -> None:
    weight = random_weight(*shape)
    expected = weight.detach() * (1 - 0.03 * 0.2)
    optimizer = Muon([weight], lr=0.03, weight_decay=0.2, scale=scale, **options)
    take_steps(optimizer, [[torch.zeros(shape)]])
    assert torch.equal(weight, expected)


# optimizers.md (6): projections that start at zero give zero gradients to what is before them
@pytest.mark.parametrize("options", [*MODES, {"cautious": "update"}])
@pytest.mark.parametrize("is_fast", [True, False])
def test_zero_gradients_leave_zero_weights_zero_in_every_mode(
    options: dict[str, Any], is_fast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    force_bf16(monkeypatch, is_fast=is_fast)
    weights = [nn.Parameter(torch.zeros(8, 12)) for _ in range(2)]
    trained = random_weight(8, 12)
    optimizer = Muon([*weights, trained], **options)
    for seed in (1, 2):
        take_steps(optimizer, [[torch.zeros(8, 12)] * 2 + [random_tensor(8, 12, seed=seed)]])
    assert torch.equal(weights[0], torch.zeros(8, 12))
    assert torch.equal(weights[1], torch.zeros(8, 12))
    assert trained.isfinite().all()
    gradients = [random_tensor(8, 12, seed=seed) for seed in (1, 2)]
    assert torch.equal(trained, train_alone(random_tensor(8, 12), gradients, **options))


# optimizers.md (15): no gradient, no change; KellerJordan/Muon #54, NorMuon #3
@pytest.mark.parametrize("options", [*MODES, {"cautious": "update"}])
def test_a_parameter_without_gradient_keeps_its_value_its_state_and_its_size(
    options: dict[str, Any],
) -> None:
    resting, moving = random_weight(8, 12), random_weight(8, 12, seed=1)
    optimizer = Muon([resting, moving], **{"weight_decay": 0.5, **options})
    first, second = random_tensor(8, 12, seed=2), random_tensor(8, 12, seed=3)
    take_steps(optimizer, [[first]], [moving])
    assert torch.equal(resting, random_tensor(8, 12))
    assert resting not in optimizer.state
    take_steps(optimizer, [[first, first]])
    before = copy.deepcopy((resting.detach(), optimizer.state[resting]))
    resting.grad = None
    take_steps(optimizer, [[second]], [moving])
    assert torch.equal(resting, before[0])
    assert optimizer.state[resting].keys() == before[1].keys()
    for key, value in before[1].items():
        assert torch.equal(optimizer.state[resting][key], value)
    alone = train_alone(
        random_tensor(8, 12, seed=1), [first, first, second], **{"weight_decay": 0.5, **options}
    )
    assert torch.equal(moving, alone)


def test_a_step_without_any_gradient_does_nothing() -> None:
    weight = random_weight(8, 12)
    optimizer = Muon([weight])
    optimizer.step()
    assert torch.equal(weight, random_tensor(8, 12))
    assert dict(optimizer.state) == {}


# Muon+, NorMuon, caution --------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["row", "col", "row_col", "col_row"])
@pytest.mark.parametrize("shape", [(8, 12), (12, 8)])
def test_muon_plus_evens_out_the_update_and_keeps_its_norm(
    mode: str, shape: tuple[int, int]
) -> None:
    gradient = random_tensor(*shape, seed=1)
    weight = nn.Parameter(torch.zeros(shape))
    take_steps(Muon([weight], lr=1.0, scale="spectral_unclamped", muon_plus=mode), [[gradient]])
    expected = orthogonalize(gradient, dtype=FP32).double()
    for axis in mode.split("_"):
        lines = list(expected if axis == "row" else expected.T)
        evened = torch.stack([line / math.sqrt(float(line @ line) + 1e-7) for line in lines])
        expected = evened if axis == "row" else evened.T
    expected *= math.sqrt(8) / expected.norm()
    assert (weight + math.sqrt(shape[0] / shape[1]) * expected).abs().max() < 1e-6


@pytest.mark.parametrize("is_fast", [True, False])
def test_normuon_is_its_formula_over_three_steps(
    is_fast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    force_bf16(monkeypatch, is_fast=is_fast)
    weight = nn.Parameter(torch.zeros(8, 12))
    options: dict[str, Any] = {"lr": 0.5, "momentum": 0.9, "weight_decay": 0.2}
    optimizer = Muon([weight], normuon_beta2=0.8, **options)
    momentum, averages = torch.zeros(8, 12), [0.0] * 8
    expected = torch.zeros(8, 12, dtype=torch.float64)
    for seed in (1, 2, 3):
        gradient = random_tensor(8, 12, seed=seed)
        take_steps(optimizer, [[gradient]])
        momentum = momentum.lerp(gradient, 1 - 0.9)
        orthogonal = orthogonalize(gradient.lerp(momentum, 0.9)).double()
        rows = []
        for number, row in enumerate(orthogonal):
            averages[number] = 0.8 * averages[number] + 0.2 * float(row @ row) / 12
            rows.append(row / (math.sqrt(averages[number]) + 1e-10))
        evened = torch.stack(rows)
        evened *= orthogonal.norm() / evened.norm()
        expected = expected * (1 - 0.5 * 0.2) - 0.5 * evened
        # fp32 state and weights.
        assert (weight - expected).abs().max() < 2e-6
        found = optimizer.state[weight]["row_second_moment"].flatten().tolist()
        assert found == pytest.approx(averages, rel=1e-5)


@pytest.mark.parametrize(
    ("layout", "shape", "expected"),
    [
        ("matrix", (12, 8), (12, 1)),
        ("transposed", (8, 12), (12, 1)),
        ("flatten", (12, 2, 2, 3), (12, 1)),
        ("stack", (3, 12, 8), (3, 12, 1)),
    ],
)
@pytest.mark.parametrize("splits", [[], [6, 4, 2]])
@pytest.mark.parametrize("dtype", [FP32, torch.bfloat16])
def test_normuon_keeps_one_number_for_each_row_of_each_matrix(
    layout: Layout,
    shape: tuple[int, ...],
    expected: tuple[int, ...],
    splits: list[int],
    dtype: torch.dtype,
) -> None:
    weight = random_weight(*shape, dtype=dtype)
    group = {"params": [("w", weight)], "layouts": {"w": layout}, "row_splits": {"w": splits}}
    optimizer = Muon([group], normuon_beta2=0.0)
    take_steps(optimizer, [[random_tensor(*shape, seed=1, dtype=dtype)]])
    moment = optimizer.state[weight]["row_second_moment"]
    assert moment.shape == expected
    assert moment.dtype is FP32
    assert (moment > 0).all()
    assert optimizer.state[weight]["momentum_buffer"].shape == weight.shape


@pytest.mark.parametrize("scale", list(SCALES))
@pytest.mark.parametrize("is_fast", [True, False])
def test_cautious_decay_shrinks_only_what_the_update_shrinks(
    scale: str, is_fast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    force_bf16(monkeypatch, is_fast=is_fast)
    lr, decay = 0.1, 0.5
    weight, gradient = random_weight(12, 8), random_tensor(12, 8, seed=1)
    before = weight.detach().clone()
    optimizer = Muon([weight], lr=lr, weight_decay=decay, scale=scale, cautious="wd")
    take_steps(optimizer, [[gradient]])
    factor = {"original": 1.5**0.5, "match_rms_adamw": 0.2 * 12**0.5}.get(scale, 1.5**0.5)
    update = factor * orthogonalize(0.0975 * gradient).float()  # Nesterov: 0.05 + 0.95 * 0.05
    shrunk = torch.tensor(
        [
            [u * w >= 0 for u, w in zip(update_row, row, strict=True)]
            for update_row, row in zip(update.tolist(), before.tolist(), strict=True)
        ]
    )
    assert 0.2 < shrunk.double().mean() < 0.8
    # CWD: W -= lr * (u + decay * 1[u W >= 0] W), the decay without the factor of the shape.
    expected = before - lr * (update + decay * shrunk * before)
    tolerance = 2 * 2**-8 * lr * factor if is_fast else 1e-6  # bf16 of another scale of gradient
    assert (weight - expected).abs().max() < tolerance


def test_where_the_update_is_zero_cautious_decay_is_decay() -> None:
    weight = random_weight(8, 12)
    optimizer = Muon([weight], lr=0.1, weight_decay=0.5, cautious="wd")
    take_steps(optimizer, [[torch.zeros(8, 12)]])
    assert (weight - random_tensor(8, 12) * (1 - 0.1 * 0.5)).abs().max() < 1e-6


@pytest.mark.parametrize("is_fast", [True, False])
@pytest.mark.parametrize("nesterov", [True, False])
def test_a_cautious_update_moves_only_entries_that_agree_with_the_gradient(
    is_fast: bool, nesterov: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    force_bf16(monkeypatch, is_fast=is_fast)
    lr, decay = 0.1, 0.5
    weight = random_weight(12, 8)
    options: dict[str, Any] = {"lr": lr, "weight_decay": decay, "nesterov": nesterov}
    optimizer = Muon([weight], momentum=0.9, cautious="update", **options)
    momentum = torch.zeros(12, 8)
    for seed in (1, 2, 3):
        before, gradient = weight.detach().clone(), random_tensor(12, 8, seed=seed)
        take_steps(optimizer, [[gradient]])
        momentum = momentum.lerp(gradient, 1 - 0.9)
        direction = gradient.lerp(momentum, 0.9) if nesterov else momentum
        orthogonal = orthogonalize(direction).float()
        # The mask is after the orthogonalisation and asks the gradient itself, not the average.
        agrees = (orthogonal * gradient > 0).float()
        assert 0.3 < agrees.mean() < 0.99
        update = math.sqrt(1.5) * orthogonal * agrees / agrees.mean()
        expected = before * (1 - lr * decay) - lr * update  # the decay is not masked
        tolerance = 2 * 2**-8 * lr * 3 if is_fast else 1e-6  # the masked update is in bf16 too
        assert (weight - expected).abs().max() < tolerance
        unmoved = agrees == 0
        assert torch.equal(weight[unmoved], (before * (1 - lr * decay))[unmoved])


def test_a_masked_update_is_masked_block_by_block() -> None:
    start = random_tensor(12, 8)
    weight = nn.Parameter(start.clone())
    gradients = [random_tensor(12, 8, seed=seed) for seed in (1, 2, 3)]
    group = {"params": [("w", weight)], "row_splits": {"w": [6, 6]}}
    take_steps(Muon([group], cautious="update"), [[gradient] for gradient in gradients])
    for rows in (slice(0, 6), slice(6, 12)):
        alone = train_alone(start[rows], [g[rows] for g in gradients], cautious="update")
        assert torch.equal(weight[rows], alone)
