"""Records in columns, and the result that builds its list when it is read."""

from __future__ import annotations

import copy
import dataclasses
import pickle

import pytest
import torch

from speedtronic.trainer.records import StepRecords, describe_update
from speedtronic.trainer.state import FitOutcome, TrainResult


def make_records(num: int) -> StepRecords:
    records = StepRecords(first_step=100, samples=1000, tokens=10_000, micro_batches=2)
    for index in range(num):
        records.append(
            torch.tensor(float(index)),
            lr=0.5 / (index + 1),
            samples=1008 + 8 * index,
            tokens=10_064,
        )
    return records


def test_losses_are_read_in_one_go(monkeypatch) -> None:
    records = make_records(5)
    stacked = []
    stack = torch.stack
    monkeypatch.setattr(
        torch, "stack", lambda tensors: stacked.append(len(tensors)) or stack(tensors)
    )
    assert records.last()["loss"] == 4.0
    assert records.final_loss == 4.0
    assert len(records.to_dicts()) == 5
    assert stacked == [5]


def test_waiting_losses_are_bounded(monkeypatch) -> None:
    stacked = []
    stack = torch.stack
    monkeypatch.setattr(
        torch, "stack", lambda tensors: stacked.append(len(tensors)) or stack(tensors)
    )
    make_records(2500)
    assert stacked == [1024, 1024]


def test_no_update_has_no_final_loss() -> None:
    assert make_records(0).final_loss is None
    assert make_records(0).to_dicts() == []


def test_steps_count_on_from_where_the_fit_began() -> None:
    rows = make_records(3).to_dicts()
    assert [row["step"] for row in rows] == [101, 102, 103]
    assert [row["samples"] for row in rows] == [1008, 1016, 1024]
    assert [row["lr"] for row in rows] == [0.5, 0.25, 0.5 / 3]
    assert rows[2]["samples_per_sec"] == pytest.approx(8 * rows[2]["steps_per_sec"])


def test_a_row_costs_40_bytes() -> None:
    records = make_records(1000)
    records.read_losses()
    columns = [value for value in vars(records).values() if hasattr(value, "itemsize")]
    assert sum(column.itemsize for column in columns) == 40
    assert {len(column) for column in columns} == {1000}


class Counting:
    def __init__(self) -> None:
        self.built = 0

    def to_dicts(self):
        self.built += 1
        return [{"step": 1}]


def test_the_list_of_metrics_is_built_when_it_is_first_read_and_kept() -> None:
    source = Counting()
    result = TrainResult(1, 2, 3, 0.5, 1.0, source)
    assert source.built == 0
    assert result.metrics == [{"step": 1}]
    assert result.metrics is result.metrics
    assert source.built == 1


def test_a_result_is_an_ordinary_dataclass() -> None:
    result = TrainResult(1, 2, 3, 0.5, 1.0, Counting())
    names = ["steps", "samples", "tokens", "final_loss", "elapsed_s", "metrics"]
    assert [field.name for field in dataclasses.fields(TrainResult)] == names
    assert dataclasses.asdict(result)["metrics"] == [{"step": 1}]
    assert result == TrainResult(1, 2, 3, 0.5, 1.0, [{"step": 1}])
    assert copy.deepcopy(result) == result
    assert pickle.loads(pickle.dumps(result)) == result
    assert repr(result).startswith("TrainResult(steps=1, samples=2, tokens=3, final_loss=0.5,")
    with pytest.raises(TypeError, match="metrics"):
        TrainResult(1, 2, 3, 0.5, 1.0)


def test_an_outcome_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        FitOutcome(status="completed").status = "failed"


def test_learning_rates_are_named_by_their_group() -> None:
    weights = [torch.nn.Parameter(torch.zeros(1)) for _ in range(2)]
    optimizer = torch.optim.SGD(
        [
            {"params": [weights[0]], "name": "decayed", "lr": 0.5},
            {"params": [weights[1]], "lr": 0.25},
        ]
    )
    stats = describe_update(optimizer, grad_norm=torch.tensor(3.0), device=torch.device("cpu"))
    assert stats["lr/decayed"] == 0.5
    assert stats["lr/1"] == 0.25
    assert stats["grad_norm"] == 3.0
