"""One AdamW step over a group: torch's numbers without caution, the formulas of the papers with."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import AdamW

from speedtronic import build_optimizer
from speedtronic.core.errors import ConfigError
from speedtronic.optim.adamw import build_adamw
from speedtronic.optim.adamw_step import CautiousAdamW
from tests.unit.trainer.builders import assert_same_tensors

CPU = torch.device("cpu")
SHAPES = ((24, 16), (16,), (5, 3, 2))


def parameters(seed: int = 0, dtype: torch.dtype = torch.float32) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(seed)
    return [nn.Parameter(torch.randn(s, generator=generator, dtype=dtype)) for s in SHAPES]


def take_steps(
    weights: list[nn.Parameter], optimizer: torch.optim.Optimizer, num_steps: int, seed: int = 1
) -> list[list[torch.Tensor]]:
    """Step on white noise and return the gradients."""
    generator = torch.Generator().manual_seed(seed)
    gradients = []
    for _ in range(num_steps):
        for weight in weights:
            weight.grad = torch.randn(weight.shape, generator=generator, dtype=weight.dtype)
        gradients.append([weight.grad.clone() for weight in weights])
        optimizer.step()
    return gradients


def values(weights: list[nn.Parameter]) -> list[torch.Tensor]:
    return [weight.detach().clone() for weight in weights]


# optimizers.md (27): after one step average and gradient agree everywhere, the mask's mean is 1
def test_the_first_step_of_cautious_adamw_is_that_of_adamw_exactly() -> None:
    weights, twins = parameters(), parameters()
    ours = CautiousAdamW(weights, lr=0.03, weight_decay=0.2)
    reference = AdamW(
        twins, lr=0.03, betas=(0.9, 0.95), weight_decay=0.2, foreach=False, fused=False
    )
    take_steps(weights, ours, 1)
    take_steps(twins, reference, 1)
    assert_same_tensors(values(weights), values(twins))
    take_steps(weights, ours, 1, seed=2)
    take_steps(twins, reference, 1, seed=2)
    assert not torch.equal(weights[0], twins[0])


def test_without_a_mask_that_hides_anything_the_steps_go_on_as_adamws() -> None:
    weights, twins = parameters(), parameters()
    ours = CautiousAdamW(weights, lr=0.03, weight_decay=0.2)
    reference = AdamW(
        twins, lr=0.03, betas=(0.9, 0.95), weight_decay=0.2, foreach=False, fused=False
    )
    for size in (1.0, 0.5, 2.0, 0.1):  # gradients of one sign: the average always agrees
        for weight, twin in zip(weights, twins, strict=True):
            weight.grad = torch.full_like(weight, size)
            twin.grad = torch.full_like(twin, size)
        ours.step()
        reference.step()
    for one, other in zip(weights, twins, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-6)


def masked_step_by_hand(
    weight: torch.Tensor, gradients: list[torch.Tensor], *, lr: float, decay: float, caution: str
) -> torch.Tensor:
    """Return a weight after cautious AdamW on some gradients, entry by entry."""
    beta1, beta2, eps = 0.9, 0.95, 1e-8
    w = weight.double()
    first, second = torch.zeros_like(w), torch.zeros_like(w)
    for count, gradient in enumerate((g.double() for g in gradients), start=1):
        first = beta1 * first + (1 - beta1) * gradient
        second = beta2 * second + (1 - beta2) * gradient**2
        update = (first / (1 - beta1**count)) / ((second / (1 - beta2**count)).sqrt() + eps)
        if caution == "update":
            agrees = torch.sign(update) * torch.sign(gradient) == 1
            share = max(agrees.double().mean().item(), 1e-3)
            w = w - lr * decay * w  # not masked
            w = torch.where(agrees, w - lr * update / share, w)
        else:
            shrinks = torch.sign(update) * torch.sign(w) >= 0
            w = w - lr * (update + decay * torch.where(shrinks, w, 0.0))
    return w


# optimizers.md (27): decay first and unmasked, then step * mask * m / denom; and CWD
@pytest.mark.parametrize("caution", ["update", "wd"])
def test_eight_steps_equal_the_formula(caution: Any) -> None:
    weights = parameters(dtype=torch.float64)
    start = values(weights)
    optimizer = CautiousAdamW(weights, lr=0.02, weight_decay=0.3, cautious=caution)
    gradients = take_steps(weights, optimizer, 8)
    for index, weight in enumerate(weights):
        expected = masked_step_by_hand(
            start[index],
            [step[index] for step in gradients],
            lr=0.02,
            decay=0.3,
            caution=caution,
        )
        torch.testing.assert_close(weight.detach(), expected, rtol=0, atol=1e-12)


# optimizers.md (27): weight decay is never inside the mask
def test_the_decay_stays_whole_where_every_entry_of_the_mask_is_zero() -> None:
    weight = nn.Parameter(torch.tensor([[2.0, -4.0], [8.0, 1.0]]))
    optimizer = CautiousAdamW([weight], lr=0.1, weight_decay=0.5)
    weight.grad = torch.ones(2, 2)
    optimizer.step()
    before = weight.detach().clone()
    weight.grad = torch.full((2, 2), -0.01)  # the average is still positive everywhere
    optimizer.step()
    torch.testing.assert_close(weight.detach(), before * (1 - 0.1 * 0.5), rtol=1e-6, atol=0)


# optimizers.md (27): W -= lr * (u + decay * 1[u W >= 0] W)
def test_cautious_decay_leaves_what_the_update_pushes_away_from_zero() -> None:
    weight = nn.Parameter(torch.tensor([2.0, -2.0, 2.0, -2.0]))
    optimizer = CautiousAdamW([weight], lr=0.1, weight_decay=0.5, cautious="wd")
    weight.grad = torch.tensor([3.0, -3.0, -3.0, 3.0])
    optimizer.step()
    # The first step moves by lr against the sign; the first two entries move towards zero.
    expected = [2 - 0.1 - 0.1, -2 + 0.1 + 0.1, 2 + 0.1, -2 - 0.1]
    assert weight.tolist() == pytest.approx(expected, abs=1e-6)


# optimizers.md (27): on white noise as in the mask's own test, here through whole steps
def test_white_noise_moves_three_quarters_of_the_entries_at_the_second_step() -> None:
    weight = nn.Parameter(torch.zeros(400, 500))
    optimizer = CautiousAdamW([weight], lr=0.1, weight_decay=0.0)
    take_steps([weight], optimizer, 1)
    before = weight.detach().clone()
    take_steps([weight], optimizer, 1, seed=2)
    moved = (weight.detach() != before).double().mean().item()
    # 1 - acos(1 / sqrt(1 + 0.81)) / pi; 0.004 is four sampling errors of 200,000 entries.
    assert moved == pytest.approx(0.7667, abs=0.004)


@pytest.mark.parametrize("caution", ["update", "wd"])
def test_gradients_are_left_as_they_are(caution: Any) -> None:
    weights = parameters()
    optimizer = CautiousAdamW(weights, cautious=caution)
    take_steps(weights, optimizer, 2)
    before = [weight.grad.clone() for weight in weights if weight.grad is not None]
    optimizer.step()
    assert_same_tensors([weight.grad for weight in weights], before)


def test_a_schedule_that_stands_at_zero_moves_nothing() -> None:
    weights = parameters()
    before = values(weights)
    take_steps(weights, CautiousAdamW(weights, lr=0.0), 3)
    assert_same_tensors(values(weights), before)


# What is built and refused ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "values", "caution"),
    [
        ("adamw", {}, None),
        ("cautious_adamw", {}, "update"),
        ("adamw", {"cautious": True}, "update"),
        ("adamw", {"cautious": "wd"}, "wd"),
        ("cautious_adamw", {"cautious": False}, None),
    ],
)
def test_the_configuration_chooses_what_is_cautious(
    option: str, values: dict[str, Any], caution: str | None
) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))
    optimizer = build_optimizer(model, {"optimizer": {"name": option, **values}}, CPU)
    assert isinstance(optimizer, CautiousAdamW) is (caution is not None)
    assert {group.get("cautious") for group in optimizer.param_groups} == {caution}
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.1, 0.0]
    assert [group["param_names"] for group in optimizer.param_groups] == [
        ["0.weight"],
        ["0.bias", "1.weight", "1.bias"],
    ]


def test_values_reach_the_cautious_groups() -> None:
    optimizer = build_adamw(
        nn.Linear(4, 4),
        lr=0.2,
        betas=(0, 0.5),
        eps=1e-3,
        weight_decay=0.4,
        cautious="wd",
        device=CPU,
    )
    first = optimizer.param_groups[0]
    assert {key: first[key] for key in ("lr", "betas", "eps", "weight_decay", "fused")} == {
        "lr": 0.2,
        "betas": (0.0, 0.5),
        "eps": 1e-3,
        "weight_decay": 0.4,
        "fused": False,
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"lr": -1.0}, "lr must be at least 0 and below inf, got -1.0"),
        ({"betas": (1.0, 0.9)}, "betas must be two numbers in [0, 1), got (1.0, 0.9)"),
        ({"cautious": "mask"}, "cautious must be None, wd or update, got 'mask'"),
    ],
)
def test_values_out_of_range_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        CautiousAdamW(parameters(), **arguments)


def test_low_precision_weights_keep_moments_of_their_own_dtype_as_adamw_does() -> None:
    weight = nn.Parameter(torch.ones(4, dtype=torch.bfloat16))
    optimizer = CautiousAdamW([weight], lr=0.5, weight_decay=0.0)
    weight.grad = torch.tensor([1.0, -1.0, 2.0, -2.0], dtype=torch.bfloat16)
    optimizer.step()
    assert weight.tolist() == [0.5, 1.5, 0.5, 1.5]
    assert optimizer.state[weight]["exp_avg"].dtype == torch.bfloat16
    assert optimizer.state[weight]["step"].dtype == torch.float32


@pytest.mark.parametrize("betas", [(0.9,), None, ("a", "b"), 0.9])
def test_betas_are_two_numbers(betas: Any) -> None:
    with pytest.raises(ConfigError, match=r"^betas must be two numbers in \[0, 1\), got "):
        CautiousAdamW([nn.Parameter(torch.ones(2))], betas=betas)


def test_a_rate_in_a_tensor_steps_like_a_number() -> None:
    weights = [nn.Parameter(torch.ones(3)) for _ in range(2)]
    for weight, lr in zip(weights, (torch.tensor(0.25), 0.25), strict=True):
        weight.grad = torch.tensor([1.0, -1.0, 2.0])
        CautiousAdamW([weight], lr=lr).step()
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0].detach(), torch.ones(3))
