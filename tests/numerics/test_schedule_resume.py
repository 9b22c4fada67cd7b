"""Schedules under the trainer: one position an update, and the same run however often resumed."""

from __future__ import annotations

import pytest
from torch.optim import SGD

from speedtronic.checkpoint.manager import CheckpointManager
from speedtronic.schedule.build import build_schedule, reimpose_schedule
from speedtronic.schedule.curves import MomentumPlan
from speedtronic.trainer import Trainer
from tests.unit.trainer.builders import (
    FP32,
    assert_same_tensors,
    make_logger,
    make_regression,
    regression_batches,
)

NUM_STEPS = 12
MOVED = ("lr", "momentum", "weight_decay")


def build(*, k: int = 1, horizon: int = NUM_STEPS, **arguments) -> Trainer:
    model = make_regression()
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.05)
    schedule = build_schedule(
        optimizer,
        kind="wsd",
        warmup_steps=3,
        horizon=horizon,
        min_ratio=0.0,
        momentum=MomentumPlan(start=0.5, warmup_steps=4, end=0.6, cooldown_steps=4),
        weight_decay_shape="cosine",
    )
    return Trainer(
        model,
        optimizer,
        regression_batches(),
        device="cpu",
        config={"data": {"micro_batch_size": 3, "target_batch_size": 3 * k}},
        scheduler=schedule,
        precision=FP32,
        logger=make_logger(),
        **arguments,
    )


def watch(trainer: Trainer) -> list[tuple[float, ...]]:
    """Return a list that every update adds the values to that it used."""
    used: list[tuple[float, ...]] = []

    def note(optimizer, _args, _kwargs) -> None:
        used.append(tuple(optimizer.param_groups[0][key] for key in MOVED))

    trainer.optimizer.register_step_pre_hook(note)
    return used


# optimizers.md (31); seen elsewhere: a schedule that advances once a microbatch
@pytest.mark.parametrize("k", [1, 4])
def test_a_schedule_advances_once_an_update_whatever_the_accumulation(k) -> None:
    trainer = build(k=k)
    used = watch(trainer)
    result = trainer.fit(NUM_STEPS)

    # Warm-up 3 of 12, then 1 until round(0.6 * 12) = 7 are left: 7/8 ... 1/8.
    rates = [1 / 3, 2 / 3, 1.0, 1.0, 1.0, *[left / 8 for left in range(7, 0, -1)]]
    assert [lr for lr, _, _ in used] == pytest.approx([0.1 * rate for rate in rates], abs=1e-15)
    momenta = [0.5, 0.6, 0.7, 0.8, 0.9, 0.9, 0.9, 0.9, 0.825, 0.75, 0.675, 0.6]
    assert [momentum for _, momentum, _ in used] == pytest.approx(momenta, abs=1e-15)
    assert used[6][2] == pytest.approx(0.025, abs=1e-15)  # half of the way down the cosine
    assert trainer.scheduler.last_epoch == NUM_STEPS
    assert result.metrics[-1]["lr"] == 0.0
    assert result.samples == NUM_STEPS * 3 * k


# optimizers.md (29): a function of the step alone
@pytest.mark.parametrize("split", range(1, NUM_STEPS))
def test_a_run_resumed_at_any_step_equals_the_straight_one_bit_for_bit(split) -> None:
    straight = build()
    expected = watch(straight)
    straight.fit(NUM_STEPS)

    first = build()
    used = watch(first)
    first.fit(split)
    second = build()
    used_after = watch(second)
    second.resume(first.state_dict())
    reimpose_schedule(second.scheduler)
    second.fit(NUM_STEPS)

    assert used + used_after == expected
    assert_same_tensors(straight.model.state_dict(), second.model.state_dict())
    for part in ("optimizer", "scheduler"):
        assert_same_tensors(straight.state_dict()[part], second.state_dict()[part], part)


def test_a_run_resumed_twice_from_files_equals_the_straight_one_bit_for_bit(tmp_path) -> None:
    straight = build()
    expected = watch(straight)
    straight.fit(NUM_STEPS)

    used: list[tuple[float, ...]] = []
    for target in (5, 9, NUM_STEPS):
        trainer = build(checkpoint_manager=CheckpointManager(tmp_path, every_steps=100))
        state = trainer.checkpoint_manager.load_latest()
        if state is not None:
            trainer.resume(state)  # without reimposing: everything saved is already in force
        part = watch(trainer)
        trainer.fit(target)
        used += part

    assert used == expected
    assert_same_tensors(straight.model.state_dict(), trainer.model.state_dict())


def test_a_longer_horizon_on_resume_uses_the_new_curve_of_all_three() -> None:
    first = build(horizon=6)
    first.fit(6)
    second = build(horizon=NUM_STEPS)
    second.resume(first.state_dict())
    reimpose_schedule(second.scheduler)
    used = watch(second)
    second.fit(7)

    expected = build(horizon=NUM_STEPS)
    straight = watch(expected)
    expected.fit(7)
    assert used == [straight[6]]
