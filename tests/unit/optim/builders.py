"""Matrices, gradients and steps for the tests of Muon."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from speedtronic.optim.muon import Muon

FP32 = torch.float32


def force_bf16(monkeypatch: pytest.MonkeyPatch, *, is_fast: bool = True) -> None:
    monkeypatch.setattr("speedtronic.optim.polar.has_fast_bf16", lambda device: is_fast)


def random_tensor(*shape: int, seed: int = 0, dtype: torch.dtype = FP32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def random_weight(*shape: int, seed: int = 0, dtype: torch.dtype = FP32) -> nn.Parameter:
    return nn.Parameter(random_tensor(*shape, seed=seed, dtype=dtype))


def take_steps(
    optimizer: torch.optim.Optimizer,
    gradients: list[list[Tensor]],
    weights: list[nn.Parameter] | None = None,
) -> None:
    """Step once per list, which has one gradient for each weight."""
    given = weights or [weight for group in optimizer.param_groups for weight in group["params"]]
    for step in gradients:
        for weight, gradient in zip(given, step, strict=True):
            weight.grad = gradient.clone()
        optimizer.step()


def train_alone(weight: Tensor, gradients: list[Tensor], **options: Any) -> Tensor:
    """Return a matrix trained by an optimizer of its own."""
    parameter = nn.Parameter(weight.clone(memory_format=torch.contiguous_format))
    take_steps(Muon([parameter], **options), [[gradient] for gradient in gradients])
    return parameter.detach()
