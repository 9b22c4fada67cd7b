"""What the contract promises about a fit, each in one small run."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from speedtronic.checkpoint.manager import THREAD_NAME, CheckpointManager
from speedtronic.trainer import Trainer
from tests.unit.trainer.builders import (
    FP32,
    Recorder,
    assert_same_tensors,
    make_logger,
    make_regression,
    make_trainer,
    parameters_of,
    regression_batches,
)


class Coordinator:
    """A coordinator that notes what it is told after each update."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def start(self) -> None:
        pass

    def after_optimizer_step(self, *arguments: Any) -> None:
        self.calls.append(arguments)

    def stop(self) -> None:
        pass

    def state_dict(self) -> None:
        return None

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


def test_the_learning_rate_of_a_record_is_the_first_groups() -> None:
    model = make_regression()
    groups = [
        {"params": list(model.hidden.parameters()), "lr": 0.5},
        {"params": list(model.head.parameters()), "lr": 0.25},
    ]
    optimizer = torch.optim.SGD(groups)
    recorder = Recorder()
    trainer = Trainer(
        model,
        optimizer,
        regression_batches(),
        device="cpu",
        precision=FP32,
        logger=make_logger(recorder),
        scheduler=torch.optim.lr_scheduler.LambdaLR(
            optimizer, [lambda position: 1 / (1 + position), lambda _position: 1.0]
        ),
    )
    result = trainer.fit(3)

    # 0.5 at positions 1, 2 and 3: one ahead of the update that was made.
    expected = [0.25, 0.5 / 3, 0.125]
    assert [record["lr"] for record in result.metrics] == pytest.approx(expected, rel=1e-12)
    logged = [record["lr"] for record in recorder.of("train_step")]
    assert logged == pytest.approx(expected, rel=1e-12)


def test_the_coordinator_gets_the_model_and_the_new_step() -> None:
    coordinator = Coordinator()
    trainer = make_trainer(coordinator=coordinator)
    trainer.fit(2)

    assert [step for _, step in coordinator.calls] == [1, 2]
    assert all(model is trainer.model for model, _ in coordinator.calls)


def test_gradients_left_from_before_do_not_reach_the_first_update() -> None:
    fresh, stale = make_trainer(make_regression()), make_trainer(make_regression())
    for parameter in stale.model.parameters():
        parameter.grad = torch.full_like(parameter, 100.0)

    assert fresh.fit(1).final_loss == stale.fit(1).final_loss
    assert_same_tensors(parameters_of(fresh.model), parameters_of(stale.model))


def test_a_fit_moves_the_model_to_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = make_trainer()
    moved: list[tuple[Any, ...]] = []
    move: Callable[..., nn.Module] = trainer.model.to

    def watch(*arguments: Any) -> nn.Module:
        moved.append(arguments)
        return move(*arguments)

    monkeypatch.setattr(trainer.model, "to", watch)
    trainer.fit(1)
    assert moved == [(torch.device("cpu"),)]


class WriterJoined(Recorder):
    """A recorder that waits for the checkpoint's writer at one step."""

    def __init__(self, step: int) -> None:
        super().__init__()
        self._step = step

    def __call__(self, event, payload) -> None:
        super().__call__(event, payload)
        if event == "train_step" and payload["step"] == self._step:
            for thread in threading.enumerate():
                if thread.name == THREAD_NAME:
                    thread.join()


def test_a_checkpoint_is_announced_when_it_is_written_not_at_the_next_save(tmp_path) -> None:
    recorder = WriterJoined(step=4)
    manager = CheckpointManager(tmp_path, every_steps=3)
    make_trainer(recorder=recorder, checkpoint_manager=manager).fit(6)

    told = [
        (event, payload["step"])
        for event, payload in recorder.events
        if event in ("train_step", "checkpoint")
    ]
    # Saved at step 3 and written by step 4 at the latest; the next save is at step 6.
    assert told.index(("checkpoint", 3)) < told.index(("train_step", 5))
