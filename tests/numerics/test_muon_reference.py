"""Muon against ``torch.optim.Muon`` bit for bit, and against loops in fp64 over singular values."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from speedtronic.optim.hybrid import HybridOptimizer
from speedtronic.optim.muon import Muon
from speedtronic.optim.polar import METHODS, Method, orthogonalize

SHAPES = [(48, 96), (96, 48), (64, 64)]
SMALL_SHAPES = [(6, 10), (10, 6), (7, 7)]
NUM_STEPS = 5
# Written out again, see docs/optimizers.md.
COEFFICIENTS: dict[str, list[tuple[float, float, float]]] = {
    "kj5": [(3.4445, -4.7750, 2.0315)] * 5,
    "quintic5": [
        (4.0848, -6.8946, 2.9270),
        (3.9505, -6.3029, 2.6377),
        (3.7418, -5.5913, 2.3037),
        (2.8769, -3.1427, 1.2046),
        (2.8366, -3.0525, 1.2012),
    ],
    "polar_express": [
        (8.156554524902461, -22.48329292557795, 15.878769915207462),
        (4.042929935166739, -2.808917465908714, 0.5000178451051316),
        (3.8916678022926607, -2.772484153217685, 0.5060648178503393),
        (3.285753657755655, -2.3681294933425376, 0.46449024233003106),
        (2.3465413258596377, -1.7097828382687081, 0.42323551169305323),
    ],
    "exact12": [(2.0, -1.5, 0.5)] * 12,
}
SCALES: dict[str, Callable[[int, int], float]] = {
    "original": lambda rows, columns: math.sqrt(max(1, rows / columns)),
    "match_rms_adamw": lambda rows, columns: 0.2 * math.sqrt(max(rows, columns)),
    "spectral_unclamped": lambda rows, columns: math.sqrt(rows / columns),
}


def weights_of(shapes: list[tuple[int, int]], dtype: torch.dtype) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(1)
    return [nn.Parameter(torch.randn(*shape, generator=generator).to(dtype)) for shape in shapes]


def gradients_of(
    shapes: list[tuple[int, int]], dtype: torch.dtype, *, scale: float = 1.0
) -> list[list[Tensor]]:
    """Return one gradient a shape for each of the steps."""
    generator = torch.Generator().manual_seed(2)
    return [
        [torch.randn(*shape, generator=generator).to(dtype) * scale for shape in shapes]
        for _ in range(NUM_STEPS)
    ]


def train(
    optimizer: torch.optim.Optimizer, weights: list[nn.Parameter], steps: list[list[Tensor]]
) -> None:
    for gradients in steps:
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.grad = gradient.clone()
        optimizer.step()


def reference_polar(matrix: Tensor, method: str) -> Tensor:
    """Return the result of a method from the singular values: each is mapped by the polynomials."""
    left, values, right = torch.linalg.svd(matrix, full_matrices=False)
    margin = 1.02 if method == "polar_express" else 1.0
    norm = max(margin * math.sqrt(sum(value**2 for value in values.tolist())), 1e-7)
    mapped = []
    for value in values.tolist():
        x = value / norm
        for a, b, c in COEFFICIENTS[method]:
            x = a * x + b * x**3 + c * x**5
        mapped.append(x)
    return left @ torch.diag(torch.tensor(mapped, dtype=matrix.dtype)) @ right


def reference_muon(
    weight: Tensor,
    gradients: list[Tensor],
    *,
    lr: float,
    momentum: float,
    nesterov: bool,
    weight_decay: float,
    scale: str = "original",
    method: str = "kj5",
) -> tuple[Tensor, Tensor]:
    """Train one matrix with momentum kept as a sum, as torch's docstring writes it.

    Returns:
        Weight and sum.
    """
    weight, total = weight.clone(), torch.zeros_like(weight)
    for gradient in gradients:
        total = momentum * total + gradient
        update = gradient + momentum * total if nesterov else total
        direction = reference_polar(update, method) * SCALES[scale](*weight.shape)
        weight = weight * (1 - lr * weight_decay) - lr * direction
    return weight, total


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("shape", SMALL_SHAPES)
def test_orthogonalizing_maps_every_singular_value_by_the_polynomials(
    method: Method, shape: tuple[int, int]
) -> None:
    matrix = gradients_of([shape], torch.float64)[0][0]
    result = orthogonalize(matrix, method=method)
    assert (result - reference_polar(matrix, method)).abs().max() < 1e-10


# optimizers.md (10): torch's Muon bit for bit
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"nesterov": False},
        {"momentum": 0.8, "weight_decay": 0.0},
        {"scale": "match_rms_adamw"},
        {"eps": 100.0},
        {"ns_steps": 3},
    ],
)
@pytest.mark.parametrize("gradient_scale", [1.0, 1e-20])
def test_in_bf16_muon_has_the_bits_of_torchs_muon(
    options: dict[str, Any], gradient_scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("speedtronic.optim.polar.has_fast_bf16", lambda device: True)
    shapes = [*SHAPES, *SHAPES]  # two of each shape: some are orthogonalised as one stack
    ours, theirs = weights_of(shapes, torch.float32), weights_of(shapes, torch.float32)
    steps = gradients_of(shapes, torch.float32, scale=gradient_scale)
    optimizer = Muon(ours, **{"lr": 0.02, "weight_decay": 0.1, **options})
    train(optimizer, ours, steps)
    renamed = {"adjust_lr_fn" if key == "scale" else key: options[key] for key in options}
    reference = torch.optim.Muon(theirs, **{"lr": 0.02, "weight_decay": 0.1, **renamed})
    train(reference, theirs, steps)
    for mine, other in zip(ours, theirs, strict=True):
        assert torch.equal(mine, other)
        expected = reference.state[other]["momentum_buffer"]
        assert torch.equal(optimizer.state[mine]["momentum_buffer"], expected)


# optimizers.md (10): torch's Muon bit for bit
@pytest.mark.parametrize("shape", SHAPES)
def test_in_bf16_a_matrix_alone_has_the_bits_of_torchs_muon(
    shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("speedtronic.optim.polar.has_fast_bf16", lambda device: True)
    ours, theirs = weights_of([shape], torch.float32), weights_of([shape], torch.float32)
    steps = gradients_of([shape], torch.float32)
    train(Muon(ours, lr=0.02), ours, steps)
    train(torch.optim.Muon(theirs, lr=0.02), theirs, steps)
    assert torch.equal(ours[0], theirs[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("scale", ["original", "match_rms_adamw"])
def test_the_algorithm_muon_torch_has_the_bits_of_torchs_muon(
    dtype: torch.dtype, scale: str
) -> None:
    ours, theirs = weights_of(SHAPES, dtype), weights_of(SHAPES, dtype)
    steps = gradients_of(SHAPES, dtype)
    group = {"params": ours, "algorithm": "muon_torch", "lr": 0.02, "scale": scale}
    optimizer = HybridOptimizer([group])
    train(optimizer, ours, steps)
    reference = torch.optim.Muon(theirs, lr=0.02, adjust_lr_fn=scale)
    train(reference, theirs, steps)
    for mine, other in zip(ours, theirs, strict=True):
        assert torch.equal(mine, other)
        expected = reference.state[other]["momentum_buffer"]
        assert torch.equal(optimizer.state[mine]["momentum_buffer"], expected)


# optimizers.md (11): momentum as average or sum; pytorch_optimizer #371: modes by their numbers
@pytest.mark.parametrize("scale", list(SCALES))
@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.parametrize("is_fast", [True, False])
def test_in_fp64_muon_equals_the_loop_whose_momentum_is_a_sum(
    scale: str, nesterov: bool, is_fast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("speedtronic.optim.polar.has_fast_bf16", lambda device: is_fast)
    weights = weights_of(SMALL_SHAPES, torch.float64)
    starts = [weight.detach().clone() for weight in weights]
    steps = gradients_of(SMALL_SHAPES, torch.float64)
    options: dict[str, Any] = {"lr": 0.03, "momentum": 0.95, "weight_decay": 0.1}
    options |= {"scale": scale, "nesterov": nesterov}
    optimizer = Muon(weights, **options)
    train(optimizer, weights, steps)
    for index, (weight, start) in enumerate(zip(weights, starts, strict=True)):
        gradients = [step[index] for step in steps]
        expected, total = reference_muon(start, gradients, **options)
        assert (weight - expected).abs().max() < 1e-12
        # State dicts are not interchangeable: the average is the sum times 1 - momentum.
        average = optimizer.state[weight]["momentum_buffer"]
        assert (average - total / 20).abs().max() < 1e-12


@pytest.mark.parametrize("method", METHODS)
def test_every_method_reaches_the_weights(method: Method) -> None:
    weights = weights_of(SMALL_SHAPES, torch.float64)
    starts = [weight.detach().clone() for weight in weights]
    steps = gradients_of(SMALL_SHAPES, torch.float64)
    options: dict[str, Any] = {"lr": 0.03, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1}
    train(Muon(weights, orthogonalization=method, **options), weights, steps)
    for index, (weight, start) in enumerate(zip(weights, starts, strict=True)):
        gradients = [step[index] for step in steps]
        expected, _ = reference_muon(start, gradients, method=method, **options)
        assert (weight - expected).abs().max() < 1e-10
