"""The trainer with the real checkpoint manager: cadence, events, bad weights."""

from __future__ import annotations

import json

import pytest
import torch

from speedtronic.checkpoint.manager import CheckpointManager
from speedtronic.core.errors import NonFiniteError
from speedtronic.metrics.logger import MetricLogger
from tests.unit.trainer.builders import (
    Recorder,
    Regression,
    assert_same_tensors,
    make_regression,
    make_trainer,
    parameters_of,
    regression_batches,
)


def steps_in(folder) -> list[int]:
    return [int(path.name.removeprefix("step_")) for path in sorted(folder.glob("step_*"))]


def test_saves_on_the_cadence_and_at_the_end_and_says_so_before_the_end(tmp_path) -> None:
    recorder = Recorder()
    manager = CheckpointManager(tmp_path, every_steps=3)
    trainer = make_trainer(recorder=recorder, checkpoint_manager=manager)
    trainer.fit(7)
    manager.close()
    assert steps_in(tmp_path) == [3, 6, 7]
    assert [record["step"] for record in recorder.of("checkpoint")] == [3, 6, 7]
    assert recorder.names()[-2:] == ["checkpoint", "train_end"]


def test_a_target_that_is_on_the_cadence_is_saved_once(tmp_path) -> None:
    recorder = Recorder()
    manager = CheckpointManager(tmp_path, every_steps=2)
    make_trainer(recorder=recorder, checkpoint_manager=manager).fit(4)
    manager.close()
    assert [record["step"] for record in recorder.of("checkpoint")] == [2, 4]


def test_a_reached_target_rewrites_no_checkpoint(tmp_path) -> None:
    manager = CheckpointManager(tmp_path, every_steps=100)
    trainer = make_trainer(checkpoint_manager=manager)
    trainer.fit(2)
    (folder,) = tmp_path.glob("step_*")
    written = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    trainer.fit(2)
    manager.close()
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == written


def test_a_saved_state_is_loaded_by_another_trainer(tmp_path) -> None:
    manager = CheckpointManager(tmp_path, every_steps=100)
    first = make_trainer(checkpoint_manager=manager, with_schedule=True)
    first.fit(3)
    second = make_trainer(make_regression(seed=9), with_schedule=True)
    second.resume(manager.load_latest())
    manager.close()
    assert second.step == 3
    assert_same_tensors(parameters_of(first.model), parameters_of(second.model))


def test_the_best_evaluation_has_a_checkpoint_that_is_kept(tmp_path) -> None:
    manager = CheckpointManager(tmp_path, every_steps=100, keep_last=1, keep_best=1)
    inputs, _ = regression_batches(1)[0]
    # Training pulls the output to 5, the held-out data want what comes out near 1.
    trainer = make_trainer(
        make_regression(),
        [(inputs, torch.full((3, 1), 5.0))],
        lr=0.02,
        options={"evaluation": {"every_steps": 1}},
        eval_dataloader=[(inputs, torch.full((3, 1), 1.0))],
        checkpoint_manager=manager,
    )
    trainer.fit(20)
    manager.close()
    best = trainer.outcome.best_eval_step
    assert 1 < best < 20
    assert steps_in(tmp_path) == [best, 20]
    assert steps_in(tmp_path)[0] == int(manager.best_path().name.removeprefix("step_"))


class BreaksItself(Regression):
    """From a given forward on its loss is finite, and its gradient is not a number."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.at = at
        self.num_forwards = 0

    def forward(self, inputs, targets):
        self.num_forwards += 1
        loss = super().forward(inputs, targets)
        if self.num_forwards == self.at:
            return loss + (self.head.bias * 0).sqrt().sum() * 0
        return loss


def test_weights_that_hold_nan_are_never_saved_and_end_the_run(tmp_path) -> None:
    recorder = Recorder()
    manager = CheckpointManager(tmp_path, every_steps=1, keep_last=2)
    torch.manual_seed(0)
    trainer = make_trainer(
        BreaksItself(4),
        options={"optimizer": {"grad_clip": None}, "trainer": {"max_skipped_steps": 3}},
        checkpoint_manager=manager,
        recorder=recorder,
    )
    with pytest.raises(NonFiniteError, match=r"that update broke the weights.*grad_clip"):
        trainer.fit(50)
    manager.close()
    assert steps_in(tmp_path) == [2, 3]
    assert "step 4 was refused" in recorder.of("warning")[0]["message"]


def test_the_records_of_a_run_are_strict_json_with_an_event_and_a_step_each(tmp_path) -> None:
    logger = MetricLogger(level="CRITICAL", json_file=tmp_path / "metrics.jsonl", every_steps=2)
    manager = CheckpointManager(tmp_path / "checkpoints", every_steps=2)
    trainer = make_trainer(
        options={"evaluation": {"every_steps": 2}},
        eval_dataloader=regression_batches(1),
        logger=logger,
        checkpoint_manager=manager,
    )
    result = trainer.fit(3)
    logger.close()
    manager.close()
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    assert all("event" in record and "step" in record for record in records)
    steps = [record for record in records if record["event"] == "train_step"]
    assert steps == [{"event": "train_step", **result.metrics[index]} for index in (1, 2)]
    assert [r["step"] for r in records if r["event"] == "eval"] == [2, 3]
    assert records[0]["event"] == "train_start"
    assert records[-1]["event"] == "train_end"
