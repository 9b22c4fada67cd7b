"""AdamW against the closed form of its first step, and fused against the plain loop."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from speedtronic.optim.adamw import build_adamw

CPU = torch.device("cpu")


def test_the_first_step_is_the_sign_of_the_gradient_after_the_decay() -> None:
    model = nn.Linear(2, 1)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0, -2.0]]))
        model.bias.fill_(0.5)
    optimizer = build_adamw(model, lr=0.1, eps=1e-8, weight_decay=0.2, device=CPU)
    model.weight.grad = torch.tensor([[3.0, -0.01]])
    model.bias.grad = torch.tensor([2.0])
    optimizer.step()
    # Both moments are corrected for their start: w *= 1 - lr * decay, then w -= lr * g / |g|.
    assert model.weight.tolist()[0] == pytest.approx(
        [1.0 * 0.98 - 0.1, -2.0 * 0.98 + 0.1], abs=1e-6
    )
    assert model.bias.item() == pytest.approx(0.5 - 0.1, abs=1e-6)  # no decay


def test_fused_equals_the_loop() -> None:
    results = []
    for fused in (True, False):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4))
        optimizer = build_adamw(model, lr=1e-2, fused=fused, device=CPU)
        inputs = torch.randn(20, 8, 16)
        for batch in inputs:
            model(batch).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        results.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    # fp32 rounding over 20 steps; measured 1.5e-8 a step.
    assert torch.allclose(results[0], results[1], rtol=0, atol=1e-6)
