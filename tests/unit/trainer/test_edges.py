"""Odd losses, masked microbatches, broken last updates, failed compilers and later starts."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from speedtronic.core.errors import NonFiniteError
from speedtronic.data.loader import TokenLoader
from speedtronic.trainer import Trainer
from tests.unit.trainer.builders import (
    Bigram,
    CountedLoader,
    Recorder,
    Regression,
    make_regression,
    make_trainer,
    regression_batches,
)


class OwnMean(Bigram):
    """A language model that averages over its labels itself: NaN where none counts."""

    def forward(self, input_ids, labels):
        logits = self.table(input_ids)
        return {"loss": F.cross_entropy(logits.flatten(0, 1), labels.flatten())}


def tokens_trainer(batches, micro: int, target: int) -> Trainer:
    torch.manual_seed(0)
    model = OwnMean()
    return Trainer(
        model,
        torch.optim.SGD(model.parameters(), lr=1.0),
        CountedLoader(lambda number: batches[number % len(batches)]),
        device="cpu",
        config={
            "data": {"name": "synthetic", "micro_batch_size": micro, "target_batch_size": target},
            "trainer": {"loss_normalization": "tokens"},
            "optimizer": {"grad_clip": None},
            "precision": "fp32",
            "run": {"max_steps": 1},
        },
    )


def test_a_fully_masked_microbatch_weighs_nothing_also_where_the_model_averages_itself() -> None:
    ids = torch.tensor([[0, 1, 2], [3, 4, 0]])
    labels = torch.tensor([[1, 2, -100], [-100, -100, -100]])
    large = [{"input_ids": ids, "labels": labels}]
    small = [{"input_ids": ids[i : i + 1], "labels": labels[i : i + 1]} for i in range(2)]

    one, two = tokens_trainer(large, 2, 2), tokens_trainer(small, 1, 2)
    first, second = one.fit(), two.fit()

    assert second.steps == 1
    assert second.final_loss == pytest.approx(first.final_loss, rel=1e-6)
    torch.testing.assert_close(one.model.table.weight, two.model.table.weight)
    assert second.tokens == 6


def test_a_bare_tensor_that_looks_like_logits_is_trained_and_said_once() -> None:
    class Classifier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, inputs):
            return self.layer(inputs)

    recorder = Recorder()
    trainer = make_trainer(Classifier(), recorder=recorder)
    trainer.fit(3)

    (fallback,) = trainer.outcome.fallbacks
    assert fallback["kind"] == "loss"
    assert "returned a bare tensor of shape (3, 3): its mean is trained" in fallback["reason"]
    assert len(recorder.of("fallback")) == 1


def test_one_loss_a_sample_is_no_odd_loss() -> None:
    class PerSample(Regression):
        def forward(self, inputs, targets):
            hidden = torch.tanh(self.hidden(inputs))
            return ((self.head(hidden) - targets) ** 2).flatten()

    trainer = make_trainer(PerSample())
    trainer.fit(2)
    assert trainer.outcome.fallbacks == ()


def test_a_last_update_that_breaks_the_weights_fails_the_fit() -> None:
    class Explosive(Regression):
        """The loss stays finite, its gradient is infinite."""

        def forward(self, inputs, targets):
            return (
                super().forward(inputs, targets) + torch.sqrt(self.head.bias - self.head.bias).sum()
            )

    recorder = Recorder()
    trainer = make_trainer(
        Explosive(), options={"optimizer": {"grad_clip": None}}, recorder=recorder
    )
    with pytest.raises(NonFiniteError, match="the weights are not finite after step 1"):
        trainer.fit(1)
    assert trainer.outcome.status == "failed"
    assert [record["step"] for record in recorder.of("train_step")] == [1]


def test_a_compiler_that_failed_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[int] = []

    def fail(model, **_options):
        tries.append(1)
        raise RuntimeError("no compiler")

    monkeypatch.setattr(torch, "compile", fail)
    trainer = make_trainer(options={"compile": True})
    trainer.fit(2)
    trainer.fit(4)
    assert len(tries) == 1
    assert [fallback["kind"] for fallback in trainer.outcome.fallbacks] == ["compile"]


def test_a_trainer_that_starts_later_draws_the_batches_of_its_steps() -> None:
    def trained(start_step: int, target: int) -> list[float]:
        loader = TokenLoader(
            torch.arange(200).remainder(5).numpy().astype("uint16"),
            block_size=4,
            micro_batch_size=2,
            seed=3,
            shuffle=True,
        )
        model = Bigram()
        with torch.no_grad():
            model.table.weight.copy_(torch.arange(25.0).reshape(5, 5) / 10)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        trainer = Trainer(model, optimizer, loader, device="cpu", start_step=start_step)
        return [record["loss"] for record in trainer.fit(target).metrics]

    assert trained(3, 6) == trained(0, 6)[3:]


def test_the_last_good_step_is_logged_when_a_run_fails() -> None:
    def batch(number: int):
        inputs, targets = regression_batches(1)[0]
        return (inputs * float("nan"), targets) if number >= 3 else (inputs, targets)

    recorder = Recorder()
    trainer = make_trainer(
        make_regression(),
        CountedLoader(batch),
        options={"trainer": {"max_skipped_steps": 2}},
        recorder=recorder,
        log_every=10,
    )
    with pytest.raises(NonFiniteError):
        trainer.fit(20)
    assert [record["step"] for record in recorder.of("train_step")] == [3]


def test_a_result_shows_its_numbers_and_not_its_records() -> None:
    shown = repr(make_trainer().fit(2))
    assert shown.startswith("TrainResult(steps=2, samples=6, tokens=")
    assert shown.endswith("metrics=...)")
