"""The trainer against loops written by hand: the same numbers, bit for bit."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from speedtronic.precision import PrecisionPlan
from speedtronic.trainer import Trainer
from tests.unit.trainer.builders import (
    FP32,
    Regression,
    assert_same_tensors,
    make_logger,
    make_regression,
    make_trainer,
    regression_batches,
)

BF16 = PrecisionPlan(
    mode="bf16", dtype=torch.bfloat16, use_scaler=False, autocast_enabled=True, device_type="cpu"
)


def train_by_hand(model, batches, *, steps, k, clip, plan):
    """Train as a person would write it, and return losses and learning rates of every step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    losses, lrs = [], []
    position = 0
    model.train()
    for _ in range(steps):
        total = 0.0
        for _ in range(k):
            inputs, targets = batches[position % len(batches)]
            position += 1
            with plan.autocast():
                loss = model(inputs, targets)
            (loss / k).backward()
            total = total + loss.detach()
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        schedule.step()
        losses.append((total / k).item())
        lrs.append(optimizer.param_groups[0]["lr"])
    return losses, lrs, optimizer


@pytest.mark.parametrize("plan", [FP32, BF16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("clip", [None, 0.05])
@pytest.mark.parametrize("k", [1, 3])
def test_the_trainer_equals_a_loop_written_by_hand_bit_for_bit(k, clip, plan) -> None:
    batches = regression_batches(5)
    model = make_regression(0.3)
    twin = copy.deepcopy(model)
    torch.manual_seed(11)
    losses, lrs, optimizer = train_by_hand(twin, batches, steps=8, k=k, clip=clip, plan=plan)

    trainer = make_trainer(
        model,
        batches,
        options={
            "data": {"micro_batch_size": 3, "target_batch_size": 3 * k},
            "optimizer": {"grad_clip": clip},
        },
        with_schedule=True,
        precision=plan,
        log_every=3,
    )
    torch.manual_seed(11)
    result = trainer.fit(8)
    assert [record["loss"] for record in result.metrics] == losses
    assert [record["lr"] for record in result.metrics] == lrs
    assert_same_tensors(dict(model.state_dict()), dict(twin.state_dict()))
    ours, theirs = trainer.optimizer.state_dict(), optimizer.state_dict()
    assert_same_tensors(ours["state"], theirs["state"])


def test_k_microbatches_equal_one_batch_of_k_times_the_size() -> None:
    inputs, targets = regression_batches(1, size=12)[0]
    whole = make_trainer(make_regression(), [(inputs, targets)])
    parts = make_trainer(
        make_regression(),
        list(zip(inputs.split(3), targets.split(3), strict=True)),
        options={
            "data": {"micro_batch_size": 3, "target_batch_size": 12},
            "optimizer": {"grad_clip": None},
        },
    )
    one, other = whole.fit(5), parts.fit(5)
    # fp32 sums in another order: 1e-6 relative a step, AdamW's division keeps it there.
    assert other.final_loss == pytest.approx(one.final_loss, rel=1e-5)
    for a, b in zip(whole.model.parameters(), parts.model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_the_first_update_uses_the_first_position_of_the_schedule() -> None:
    class Slope(nn.Module):
        """Its gradient is 1 everywhere."""

        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1))

        def forward(self, inputs):
            return (self.weight * inputs).mean()

    model = Slope()
    factors = [0.5, 0.25, 0.125, 0.0]
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: factors[step])
    trainer = Trainer(
        model,
        optimizer,
        [torch.ones(1, 1)],
        device="cpu",
        scheduler=schedule,
        precision=FP32,
        logger=make_logger(),
    )
    result = trainer.fit(3)
    assert model.weight.item() == 1 - 0.5 - 0.25 - 0.125
    assert [record["lr"] for record in result.metrics] == [0.25, 0.125, 0.0]


def test_training_lowers_the_loss_to_the_known_minimum() -> None:
    class Mean(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.value = nn.Parameter(torch.zeros(1))

        def forward(self, inputs, targets):
            return F.mse_loss(self.value.expand_as(targets), targets)

    model = Mean()
    targets = torch.tensor([[1.0], [2.0], [6.0]])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)  # the error shrinks by 0.8 a step
    trainer = Trainer(model, optimizer, [(targets, targets)], device="cpu", logger=make_logger())
    final_loss = trainer.fit(100).final_loss
    assert model.value.item() == pytest.approx(3.0, abs=1e-6)
    assert final_loss == pytest.approx((4 + 1 + 9) / 3, rel=1e-6)


def test_the_same_seed_gives_the_same_bits_twice() -> None:
    runs = []
    for _ in range(2):
        torch.manual_seed(3)
        trainer = make_trainer(Regression(0.5))
        runs.append((trainer.fit(6).final_loss, dict(trainer.model.state_dict())))
    assert_same_tensors(runs[0], runs[1])
