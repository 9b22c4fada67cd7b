"""Muon over layouts, row splits and stacks: the same bits as matrices trained one by one."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from speedtronic.optim.matrices import Layout
from speedtronic.optim.muon import Muon
from speedtronic.optim.muon_groups import layout_of
from tests.unit.optim.builders import (
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
    {"cautious": "update"},
]


@pytest.fixture(autouse=True)
def _fp32_products(monkeypatch: pytest.MonkeyPatch) -> None:
    force_bf16(monkeypatch, is_fast=False)


@dataclass(frozen=True)
class LayoutCase:
    """A parameter as it is stored, and how to read the independent matrices out of it."""

    layout: Layout
    shape: tuple[int, ...]
    read: Callable[[Tensor], list[Tensor]]
    memory_format: torch.memory_format = torch.contiguous_format
    gradient_format: torch.memory_format = torch.contiguous_format


def read_convolution(stored: Tensor) -> list[Tensor]:
    return [torch.stack([output.reshape(-1) for output in stored.contiguous()])]


LAYOUT_CASES = {
    "matrix": LayoutCase("matrix", (12, 8), lambda stored: [stored]),
    "transposed": LayoutCase("transposed", (8, 12), lambda stored: [stored.T.contiguous()]),
    "stack": LayoutCase("stack", (3, 12, 8), lambda stored: [stored[0], stored[1], stored[2]]),
    "flatten_1d": LayoutCase("flatten", (12, 4, 3), read_convolution),
    "flatten_2d": LayoutCase("flatten", (12, 2, 3, 3), read_convolution),
    "flatten_3d": LayoutCase("flatten", (12, 2, 2, 3, 3), read_convolution),
    "channels_last": LayoutCase(
        "flatten", (12, 2, 3, 3), read_convolution, torch.channels_last, torch.channels_last
    ),
    "channels_last_weight": LayoutCase(
        "flatten", (12, 2, 3, 3), read_convolution, memory_format=torch.channels_last
    ),
    "channels_last_gradient": LayoutCase(
        "flatten", (12, 2, 3, 3), read_convolution, gradient_format=torch.channels_last
    ),
    "channels_last_3d": LayoutCase(
        "flatten", (12, 2, 2, 3, 3), read_convolution, torch.channels_last_3d
    ),
}


def blocks_of(matrix: Tensor, splits: list[int]) -> list[Tensor]:
    starts = [sum(splits[:index]) for index in range(len(splits))]
    return [
        matrix[start : start + height] for start, height in zip(starts, splits, strict=True)
    ] or [matrix]


# optimizers.md (14): gradients in channels_last memory; (17): splits equal separate parameters
@pytest.mark.parametrize("options", MODES)
@pytest.mark.parametrize("splits", [[], [6, 3, 3], [4, 4, 2, 2], [12]])
@pytest.mark.parametrize("name", LAYOUT_CASES)
@pytest.mark.parametrize("is_fast", [True, False])
def test_every_layout_trains_its_blocks_as_matrices_of_their_own_bit_for_bit(
    options: dict[str, Any],
    splits: list[int],
    name: str,
    is_fast: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    force_bf16(monkeypatch, is_fast=is_fast)
    case = LAYOUT_CASES[name]
    start = random_tensor(*case.shape)
    weight = nn.Parameter(start.clone(memory_format=case.memory_format))
    address, strides = weight.data_ptr(), weight.stride()
    gradients = [
        random_tensor(*case.shape, seed=seed).contiguous(memory_format=case.gradient_format)
        for seed in (1, 2, 3)
    ]
    group = {"params": [("w", weight)], "layouts": {"w": case.layout}, "row_splits": {"w": splits}}
    take_steps(Muon([group], **options), [[gradient] for gradient in gradients])
    # The parameter itself has changed, where it lay before; an entry may come back by chance.
    assert (weight.data_ptr(), weight.stride()) == (address, strides)
    assert (weight != start).double().mean() > 0.99
    per_step = [case.read(gradient) for gradient in gradients]
    for number, (before, after) in enumerate(
        zip(case.read(start), case.read(weight.detach()), strict=True)
    ):
        blocks = [blocks_of(step[number], splits) for step in per_step]
        for place, (block, result) in enumerate(
            zip(blocks_of(before, splits), blocks_of(after, splits), strict=True)
        ):
            alone = train_alone(block, [step[place] for step in blocks], **options)
            if case.layout == "transposed" and not is_fast:
                # The bits of an fp32 product depend on the order in memory.
                assert (result - alone).abs().max() < 1e-6
            else:
                assert torch.equal(result, alone)


# optimizers.md (17): a split q, k, v equals three parameters; xtuner PR #2030: a fused one does not
@pytest.mark.parametrize("is_fast", [True, False])
def test_a_split_projection_keeps_its_blocks_from_starving_each_other(
    is_fast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    force_bf16(monkeypatch, is_fast=is_fast)

    def update_norms(q_scale: float, splits: list[int]) -> list[float]:
        gradient = random_tensor(192, 64, seed=1)
        gradient[:64] *= q_scale
        weight = nn.Parameter(torch.zeros(192, 64))
        group = {"params": [("qkv", weight)], "row_splits": {"qkv": splits}}
        take_steps(Muon([group], lr=1.0, scale="match_rms_adamw"), [[gradient]])
        # match_rms_adamw has a factor of the shape: 0.2 * sqrt(64), or sqrt(192) for one matrix.
        factor = 0.2 * math.sqrt(64 if splits else 192)
        return [block.norm().item() / factor for block in weight.detach().split(64)]

    split, split_large_q = (update_norms(scale, [64, 64, 64]) for scale in (1.0, 100.0))
    assert split_large_q[1:] == split[1:]
    # Measured 6.98, 6.96, 6.99 of at most sqrt(64) = 8 split, 6.94, 0.95, 0.83 fused.
    assert split_large_q == pytest.approx([6.98] * 3, rel=0.03)
    fused_large_q = update_norms(100.0, [])
    assert fused_large_q[0] == pytest.approx(6.94, rel=0.03)
    assert max(fused_large_q[1:]) < 1.1


# Megatron #4731: gated attention has four blocks
def test_four_blocks_of_different_heights_are_four_parameters() -> None:
    splits, start = [8, 8, 4, 2], random_tensor(22, 16)
    weight = nn.Parameter(start.clone())
    gradients = [random_tensor(22, 16, seed=seed) for seed in (1, 2, 3)]
    optimizer = Muon([{"params": [("qgkv", weight)], "row_splits": {"qgkv": splits}}])
    take_steps(optimizer, [[gradient] for gradient in gradients])
    separate = [nn.Parameter(block.clone()) for block in blocks_of(start, splits)]
    take_steps(Muon(separate), [blocks_of(gradient, splits) for gradient in gradients])
    assert torch.equal(weight, torch.cat([block.detach() for block in separate]))


@pytest.mark.parametrize("is_fast", [True, False])
@pytest.mark.parametrize("options", [{}, {"muon_plus": "col_row", "normuon_beta2": 0.95}])
def test_matrices_on_both_sides_of_256_train_together_as_alone(
    is_fast: bool, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    force_bf16(monkeypatch, is_fast=is_fast)
    shapes = [(256, 258), (257, 258), (258, 256), (257, 258), (256, 258), (16, 300)]
    weights = [random_weight(*shape, seed=index) for index, shape in enumerate(shapes)]
    starts = [weight.detach().clone() for weight in weights]
    gradients = [
        [random_tensor(*shape, seed=10 * step + index) for index, shape in enumerate(shapes)]
        for step in (1, 2)
    ]
    take_steps(Muon(weights, **options), gradients)
    for index, (weight, start) in enumerate(zip(weights, starts, strict=True)):
        alone = train_alone(start, [step[index] for step in gradients], **options)
        assert torch.equal(weight, alone)
        assert (weight != start).double().mean() > 0.99


@pytest.mark.parametrize("options", [{}, {"normuon_beta2": 0.95}])
def test_more_matrices_than_one_stack_holds_train_as_alone(options: dict[str, Any]) -> None:
    # A stack on the CPU holds 2^18 numbers, four of these matrices, or a part of one parameter.
    named = [(f"w{index}", random_weight(256, 256, seed=index)) for index in range(6)]
    named += [
        ("experts", random_weight(9, 128, 256, seed=6)),
        ("v", random_weight(128, 256, seed=7)),
    ]
    starts = [weight.detach().clone() for _, weight in named]
    gradients = [
        [
            random_tensor(*weight.shape, seed=10 * step + index)
            for index, (_, weight) in enumerate(named)
        ]
        for step in (1, 2)
    ]
    group = {"params": named, "layouts": {"experts": "stack"}, "row_splits": {"w0": [128, 128]}}
    take_steps(Muon([group], **options), gradients)
    for index, ((name, weight), start) in enumerate(zip(named, starts, strict=True)):
        blocks = {"w0": (weight[:128], weight[128:]), "experts": weight}.get(name, (weight,))
        numbers = {"w0": (slice(0, 128), slice(128, 256)), "experts": range(9)}.get(name, (...,))
        for block, number in zip(blocks, numbers, strict=True):
            alone = train_alone(
                start[number], [step[index][number] for step in gradients], **options
            )
            assert torch.equal(block, alone)
        assert (weight != start).double().mean() > 0.99


@pytest.mark.parametrize("is_fast", [True, False])
def test_a_group_may_mix_number_formats_layouts_and_shapes(
    is_fast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    force_bf16(monkeypatch, is_fast=is_fast)
    named = [
        ("fp32", random_weight(8, 12)),
        ("bf16", random_weight(8, 12, dtype=torch.bfloat16)),
        ("fp64", random_weight(8, 12, dtype=torch.float64)),
        ("experts", random_weight(2, 8, 12)),
        ("convolution", random_weight(8, 3, 2, 2)),
    ]
    layouts: dict[str, Layout] = {"experts": "stack"}
    starts = {name: weight.detach().clone() for name, weight in named}
    gradients = [
        [random_tensor(*weight.shape, seed=seed, dtype=weight.dtype) for _, weight in named]
        for seed in (1, 2)
    ]
    take_steps(Muon([{"params": named, "layouts": layouts}]), gradients)
    for index, (name, weight) in enumerate(named):
        alone = nn.Parameter(starts[name])
        group = {
            "params": [(name, alone)],
            "layouts": {k: layouts[k] for k in layouts if k == name},
        }
        take_steps(Muon([group]), [[step[index]] for step in gradients])
        assert torch.equal(weight, alone)
        assert not torch.equal(weight, random_tensor(*weight.shape, dtype=weight.dtype))


def test_the_layout_of_a_parameter_is_what_the_group_says_or_its_shape() -> None:
    named = [
        ("a", random_weight(4, 6)),
        ("b", random_weight(4, 6)),
        ("c", random_weight(4, 1, 2, 2)),
    ]
    optimizer = Muon([{"params": named, "layouts": {"b": "transposed"}}])
    group = optimizer.param_groups[0]
    assert [layout_of(group, index) for index in range(3)] == ["matrix", "transposed", "flatten"]


def test_groups_in_another_order_train_alike_on_two_threads_too() -> None:
    # In fp32 a product on two threads depends in its last bit on the stack around it; 17 matrices
    # of this size do not fill their last stack.
    names = [f"layer.{index}.weight" for index in range(17)]
    starts = {name: random_tensor(128, 128, seed=at) for at, name in enumerate(names)}
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        results = []
        for order in (names, list(reversed(names))):
            weights = {name: nn.Parameter(starts[name].clone()) for name in order}
            for at, name in enumerate(names):
                weights[name].grad = random_tensor(128, 128, seed=100 + at)
            Muon(list(weights.items())).step()
            results.append({name: weights[name].detach() for name in names})
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(results[0][name], results[1][name]) for name in names)
