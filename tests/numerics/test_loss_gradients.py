"""The causal loss against PyTorch's mean and the closed form of its gradient."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from speedtronic.core.loss import causal_loss


def test_loss_and_gradient_equal_those_of_cross_entropy() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 5, 7, generator=generator, requires_grad=True)
    labels = torch.randint(0, 7, (3, 5), generator=generator)
    labels[0, 2:] = -100
    reference = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
    (expected,) = torch.autograd.grad(reference, logits)
    loss = causal_loss(logits, labels)
    (found,) = torch.autograd.grad(loss, logits)
    assert torch.allclose(loss, reference, rtol=1e-6)
    assert torch.allclose(found, expected, rtol=0, atol=1e-7)


def test_the_gradient_is_the_odds_minus_the_label_over_the_count() -> None:
    logits = torch.zeros(1, 2, 4, requires_grad=True)
    causal_loss(logits, torch.tensor([[1, -100]])).backward()
    assert logits.grad is not None
    assert logits.grad[0].tolist() == [[0.25, -0.75, 0.25, 0.25], [0.0, 0.0, 0.0, 0.0]]
