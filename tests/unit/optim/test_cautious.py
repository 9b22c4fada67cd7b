"""Caution: the mask, the decay under it, and what it does to any optimizer."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam, AdamW

from speedtronic import build_optimizer
from speedtronic.config import load_config
from speedtronic.optim.cautious import cautious_decay_, cautious_mask, make_cautious
from tests.unit.trainer.builders import assert_same_tensors

# The mask -----------------------------------------------------------------------------------------


def test_the_mask_is_one_over_the_part_that_agrees_and_zero_elsewhere() -> None:
    direction = torch.tensor([1.0, -2.0, 3.0, -4.0, 0.0, 5.0])
    gradient = torch.tensor([2.0, -1.0, -1.0, -9.0, 7.0, 0.0])
    # Three of six agree; a zero on either side does not.
    assert cautious_mask(direction, gradient).tolist() == [2.0, 2.0, 0.0, 2.0, 0.0, 0.0]


def test_the_part_that_agrees_counts_as_a_thousandth_at_least() -> None:
    direction = torch.full((4000,), -1.0)
    direction[0] = 1.0
    mask = cautious_mask(direction, torch.ones(4000))
    assert mask[0].item() == pytest.approx(1000.0, rel=1e-6)  # not 4000
    assert mask[1:].tolist() == [0.0] * 3999
    assert cautious_mask(-torch.ones(5), torch.ones(5)).tolist() == [0.0] * 5


def test_the_mask_has_the_dtype_and_shape_of_the_direction() -> None:
    direction = torch.ones(2, 3, dtype=torch.float64)
    mask = cautious_mask(direction, torch.ones(2, 3))
    assert (mask.dtype, mask.shape) == (torch.float64, (2, 3))


# optimizers.md (27): the rescale keeps the size of the whole update
def test_entries_of_one_size_keep_the_sum_of_the_update_exactly() -> None:
    generator = torch.Generator().manual_seed(0)
    direction = torch.randn(1024, generator=generator).sign()
    gradient = torch.randn(1024, generator=generator)
    kept = direction * cautious_mask(direction, gradient)
    assert kept.abs().sum().item() == pytest.approx(1024.0, rel=1e-5)
    assert 400 < int(kept.count_nonzero()) < 624


# optimizers.md (27): white noise
@pytest.mark.parametrize(("num_steps", "stated"), [(2, 0.776), (30, 0.63)])
def test_for_white_noise_the_average_agrees_as_often_as_two_correlated_normals(
    num_steps: int, stated: float
) -> None:
    num_entries, beta1 = 200_000, 0.9
    generator = torch.Generator().manual_seed(3)
    moment = torch.zeros(num_entries)
    for _ in range(num_steps):
        gradient = torch.randn(num_entries, generator=generator)
        moment.lerp_(gradient, 1 - beta1)
    # The average of t gradients is sum (1-b) b^k g_k: its correlation with the newest, g_0, is
    # 1 / sqrt(sum b^2k), and two normals of correlation rho agree in sign with 1 - acos(rho) / pi.
    correlation = 1 / math.sqrt(sum(beta1 ** (2 * age) for age in range(num_steps)))
    agreement = 1 - math.acos(correlation) / math.pi
    mask = cautious_mask(moment, gradient)
    found = (mask > 0).double().mean().item()
    sampling_error = math.sqrt(agreement * (1 - agreement) / num_entries)
    assert found == pytest.approx(agreement, abs=4 * sampling_error)
    assert found == pytest.approx(stated, abs=0.015)  # measured once on a small sample
    assert mask.max().item() == pytest.approx(1 / found, rel=1e-4)
    # Large entries agree more often, so a little more than the sum is kept: (1 + rho) / 2 of
    # |m| lies where the signs agree, and is divided by the part that agrees.
    kept = (moment * mask).abs().sum() / moment.abs().sum()
    assert kept.item() == pytest.approx((1 + correlation) / 2 / agreement, rel=0.01)


# Cautious weight decay ----------------------------------------------------------------------------


# optimizers.md (27): W -= lr * decay * 1[u W >= 0] W
def test_only_what_the_update_shrinks_decays() -> None:
    weight = torch.tensor([1.0, 1.0, -2.0, -2.0, 3.0, 0.0])
    direction = torch.tensor([0.5, -0.5, -0.1, 0.1, 0.0, 1.0])
    cautious_decay_([weight], [direction], shrinkage=0.1)
    expected = [0.9, 1.0, -1.8, -2.0, 2.7, 0.0]
    assert weight.tolist() == pytest.approx(expected, abs=1e-7)


# Any optimizer ------------------------------------------------------------------------------------

GRADIENTS = [
    torch.tensor([1.0, -1.0, 2.0, 0.5]),
    torch.tensor([-0.2, -1.0, 1.0, -3.0]),
    torch.tensor([0.3, 0.4, -5.0, 1.0]),
]


def masked_by_hand(change: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """Return the part of a change that descends, over the part of entries that do."""
    does_descend = [c * g < 0 for c, g in zip(change.tolist(), gradient.tolist(), strict=True)]
    share = max(sum(does_descend) / len(does_descend), 1e-3)
    kept = [c / share if d else 0.0 for c, d in zip(change.tolist(), does_descend, strict=True)]
    return torch.tensor(kept)


def sgd_by_hand(gradients: list[torch.Tensor], lr: float, momentum: float) -> list[torch.Tensor]:
    buffer = torch.zeros(4)
    changes = []
    for gradient in gradients:
        buffer = momentum * buffer + gradient
        changes.append(-lr * buffer)
    return changes


def adam_by_hand(gradients: list[torch.Tensor], lr: float) -> list[torch.Tensor]:
    first, second = torch.zeros(4), torch.zeros(4)
    changes = []
    for count, gradient in enumerate(gradients, start=1):
        first = 0.9 * first + 0.1 * gradient
        second = 0.999 * second + 0.001 * gradient**2
        root = (second / (1 - 0.999**count)).sqrt() + 1e-8
        changes.append(-lr * first / (1 - 0.9**count) / root)
    return changes


@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_any_optimizer_undoes_what_goes_against_the_gradient(kind: str) -> None:
    weight = nn.Parameter(torch.tensor([1.0, 2.0, 3.0, 4.0]))
    optimizer: Any
    if kind == "sgd":
        optimizer = SGD([weight], lr=0.1, momentum=0.9)
        changes = sgd_by_hand(GRADIENTS, 0.1, 0.9)
    else:
        optimizer = Adam([weight], lr=0.1)
        changes = adam_by_hand(GRADIENTS, 0.1)
    make_cautious(optimizer)
    expected = weight.detach().clone()
    num_masked = 0
    for gradient, change in zip(GRADIENTS, changes, strict=True):
        weight.grad = gradient.clone()
        optimizer.step()
        kept = masked_by_hand(change, gradient)
        num_masked += int((kept == 0).sum())
        expected += kept
        torch.testing.assert_close(weight.detach(), expected, rtol=1e-5, atol=1e-6)
        assert torch.equal(weight.grad, gradient)
    assert num_masked >= 3  # the case says something


def test_its_state_is_that_of_the_optimizer_without_caution() -> None:
    states = []
    for is_cautious in (False, True):
        weight = nn.Parameter(torch.ones(4))
        optimizer = SGD([weight], lr=0.1, momentum=0.9)
        if is_cautious:
            make_cautious(optimizer)
        for gradient in GRADIENTS:
            weight.grad = gradient.clone()
            optimizer.step()
        states.append(optimizer.state_dict())
    assert_same_tensors(states[0], states[1])


def test_what_has_no_gradient_stays_as_it_is() -> None:
    moved, left = nn.Parameter(torch.ones(4)), nn.Parameter(torch.ones(4))
    optimizer = SGD([moved, left], lr=0.1, weight_decay=0.5)
    make_cautious(optimizer)
    moved.grad = torch.ones(4)
    optimizer.step()
    assert left.tolist() == [1.0] * 4
    assert moved.tolist() == pytest.approx([0.85] * 4)


def test_a_copy_is_not_cautious() -> None:
    weight = nn.Parameter(torch.ones(4))
    optimizer = SGD([weight], lr=1.0, momentum=0.9)
    make_cautious(optimizer)
    twin, twin_weight = copy.deepcopy((optimizer, weight))
    for gradient in (torch.ones(4), torch.tensor([-0.1, 1.0, 1.0, 1.0])):
        weight.grad, twin_weight.grad = gradient.clone(), gradient.clone()
        optimizer.step()
        twin.step()
    assert weight[0].item() == 0.0  # the momentum would have gone on to -0.8
    assert twin_weight[0].item() == pytest.approx(-0.8)


# From the configuration ---------------------------------------------------------------------------


def test_a_foreign_optimizer_is_cautious_where_the_configuration_says_so() -> None:
    moved = {}
    for cautious in (False, True):
        model = nn.Linear(4, 1, bias=False)
        nn.init.ones_(model.weight)
        section = {"_target_": "torch.optim.SGD", "lr": 1.0, "momentum": 0.9, "cautious": cautious}
        optimizer = build_optimizer(model, {"optimizer": section}, "cpu")
        assert type(optimizer) is SGD
        for gradient in ([1.0, 1.0, 1.0, 1.0], [-0.1, 1.0, 1.0, 1.0]):
            model.weight.grad = torch.tensor([gradient])
            optimizer.step()
        moved[cautious] = model.weight.tolist()[0]
    # 1 - 1 - (0.9 - 0.1) without; with, the first stays and the others move 4 / 3 as far.
    assert moved[False] == pytest.approx([-0.8, -1.9, -1.9, -1.9])
    assert moved[True] == pytest.approx([0.0, *[-1.9 * 4 / 3] * 3])


def test_caution_beside_a_foreign_target_is_true_or_false_and_is_written_back() -> None:
    section = {"_target_": "torch.optim.SGD", "lr": 1.0, "cautious": True}
    config = load_config({"optimizer": section})
    assert config.to_dict()["optimizer"]["cautious"] is True
    assert load_config(config.to_dict()) == config
    with pytest.raises(ValueError, match=r"optimizer\.cautious: must be true or false, got 'wd'"):
        load_config({"optimizer": {**section, "cautious": "wd"}})


def test_a_cautious_adamw_of_torch_and_ours_differ_in_the_decay_alone() -> None:
    results = []
    for section in (
        {"_target_": "torch.optim.AdamW", "betas": [0.9, 0.95], "cautious": True},
        {"name": "cautious_adamw"},
    ):
        torch.manual_seed(0)
        model = nn.Linear(4, 3)
        values = {**section, "lr": 0.1, "weight_decay": 0.0}
        optimizer = build_optimizer(model, {"optimizer": values}, "cpu")
        assert isinstance(optimizer, AdamW) is ("_target_" in section)
        generator = torch.Generator().manual_seed(1)
        for _ in range(5):
            for parameter in model.parameters():
                parameter.grad = torch.randn(parameter.shape, generator=generator)
            optimizer.step()
        results.append([parameter.detach().clone() for parameter in model.parameters()])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
