"""Evaluation: its numbers by hand, and that training does not notice it."""

from __future__ import annotations

import copy
import math
import multiprocessing

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from speedtronic.core.errors import DataError
from speedtronic.core.stopping import StopFlag, StopRequestedError
from speedtronic.trainer.evaluate import Evaluator
from speedtronic.trainer.state import EvaluationHistory
from tests.unit.trainer.builders import (
    FP32,
    Bigram,
    Recorder,
    Regression,
    assert_same_tensors,
    make_regression,
    make_trainer,
    parameters_of,
    regression_batches,
)
from tests.unit.trainer.test_loop import Checkpoints


def make_evaluator(model, batches, **arguments):
    defaults = {
        "device": torch.device("cpu"),
        "precision": FP32,
        "max_batches": None,
        "token_bytes": None,
        "sample_text": None,
        "stop": StopFlag(),
    }
    return Evaluator(model, batches=batches, **{**defaults, **arguments})


def language_batches() -> list[dict[str, torch.Tensor]]:
    """Two batches with 5 and 2 labels that count."""
    first = {
        "input_ids": torch.tensor([[0, 1, 2], [3, 4, 0]]),
        "labels": torch.tensor([[1, 2, 3], [4, 0, -100]]),
    }
    second = {"input_ids": torch.tensor([[2, 2, 2]]), "labels": torch.tensor([[0, -100, 1]])}
    return [first, second]


def expected_measures(model: Bigram) -> tuple[float, float]:
    """Return mean cross-entropy and accuracy over all labels of ``language_batches``."""
    batches = language_batches()
    ids = torch.cat([batch["input_ids"].flatten() for batch in batches])
    labels = torch.cat([batch["labels"].flatten() for batch in batches])
    kept = labels != -100
    logits = model.table(ids[kept])
    loss = F.cross_entropy(logits, labels[kept]).item()
    return loss, (logits.argmax(-1) == labels[kept]).float().mean().item()


def test_language_model_measures_are_means_over_labels() -> None:
    torch.manual_seed(3)
    model = Bigram()
    loss, accuracy = expected_measures(model)
    token_bytes = np.array(
        [1, 2, 3, 1, 4]
    )  # the labels 1 2 3 4 0 0 1 stand for 2+3+1+4+1+1+2 bytes
    report = make_evaluator(model, language_batches(), token_bytes=token_bytes).run()
    assert report.loss == pytest.approx(loss, rel=1e-6)
    assert report.perplexity == pytest.approx(math.exp(loss), rel=1e-6)
    assert report.bits_per_byte == pytest.approx(7 * loss / math.log(2) / 14, rel=1e-6)
    assert report.accuracy == pytest.approx(accuracy)
    assert report.seconds > 0


def test_without_token_bytes_there_are_no_bits_per_byte() -> None:
    assert make_evaluator(Bigram(), language_batches()).run().bits_per_byte is None


def test_a_model_that_returns_its_loss_and_logits_keeps_its_loss() -> None:
    class Smoothed(Bigram):
        def forward(self, input_ids, labels):
            logits = super().forward(input_ids)["logits"]
            return {"logits": logits, "loss": torch.tensor(2.5)}

    torch.manual_seed(3)
    model = Smoothed()
    report = make_evaluator(model, language_batches()).run()
    assert report.loss == 2.5
    assert report.perplexity == pytest.approx(math.exp(expected_measures(model)[0]), rel=1e-6)


def test_a_model_that_returns_only_a_loss_gives_the_mean_over_samples() -> None:
    model = make_regression()
    batches = [regression_batches(1, size=1)[0], regression_batches(1, size=4, seed=8)[0]]
    losses = [model(*batch).item() for batch in batches]
    report = make_evaluator(model, batches).run()
    assert report.loss == pytest.approx((losses[0] + 4 * losses[1]) / 5, rel=1e-6)
    assert (report.perplexity, report.bits_per_byte, report.accuracy) == (None, None, None)


def test_a_batch_without_labels_that_count_weighs_nothing() -> None:
    torch.manual_seed(3)
    model = Bigram()
    ignored = {"input_ids": torch.zeros(2, 3).long(), "labels": torch.full((2, 3), -100)}
    report = make_evaluator(model, [*language_batches(), ignored]).run()
    assert report.loss == pytest.approx(expected_measures(model)[0], rel=1e-6)


class LossesWithLogitsAt(nn.Module):
    """Losses 1, 2, 3 of its three batches; logits come with those of the given numbers only."""

    def __init__(self, *with_logits) -> None:
        super().__init__()
        self.with_logits = with_logits
        self.number = 0

    def forward(self, input_ids, labels):
        self.number += 1
        output = {"loss": torch.tensor(float(self.number))}
        if self.number in self.with_logits:
            output["logits"] = torch.zeros(*labels.shape, 5)
        return output


@pytest.mark.parametrize(
    ("with_logits", "expected"),
    [
        ((1, 2, 3), (1 * 5 + 2 * 2 + 3 * 2) / 9),  # by labels
        ((), (1 * 2 + 2 * 1 + 3 * 1) / 4),  # by samples
        ((1,), (1 * 2 + 2 * 1 + 3 * 1) / 4),
        ((2, 3), (1 * 2 + 2 * 1 + 3 * 1) / 4),
    ],
)
def test_one_mean_never_mixes_the_weights_of_samples_and_labels(with_logits, expected) -> None:
    first, second = language_batches()
    model = LossesWithLogitsAt(*with_logits)
    assert make_evaluator(model, [first, second, second]).run().loss == pytest.approx(expected)


def test_a_huge_loss_has_infinite_perplexity() -> None:
    model = Bigram()
    nn.init.zeros_(model.table.weight)
    model.table.weight.data[2, 3] = 1e5
    batch = {"input_ids": torch.tensor([[2]]), "labels": torch.tensor([[0]])}
    assert make_evaluator(model, [batch]).run().perplexity == math.inf


def test_at_most_max_batches_are_measured() -> None:
    torch.manual_seed(3)
    model = Bigram()
    one = make_evaluator(model, language_batches()[:1]).run()
    limited = make_evaluator(model, language_batches(), max_batches=1).run()
    assert limited.loss == one.loss


def test_an_evaluation_cut_short_by_max_batches_gives_its_workers_back() -> None:
    before = set(multiprocessing.active_children())
    loader = DataLoader(TensorDataset(*torch.ones(2, 40)), batch_size=2, num_workers=1)

    class Mean(nn.Module):
        def forward(self, inputs, _labels):
            return inputs.mean()

    assert make_evaluator(Mean(), loader, max_batches=2).run().loss == 1.0
    assert set(multiprocessing.active_children()) == before


def test_no_batch_is_an_error() -> None:
    with pytest.raises(DataError, match=r"gave no batch.*not a generator"):
        make_evaluator(Bigram(), []).run()


def test_the_model_is_in_evaluation_mode_and_every_module_returns_to_its_own() -> None:
    class Watching(Regression):
        def forward(self, inputs, targets):
            assert not any(module.training for module in self.modules())
            assert not torch.is_grad_enabled()
            return super().forward(inputs, targets)

    model = Watching(0.5).train()
    model.head.eval()  # kept frozen by its owner
    make_evaluator(model, regression_batches(2)).run()
    assert model.training
    assert model.dropout.training
    assert not model.head.training


def test_the_mode_returns_when_the_model_fails() -> None:
    model = Bigram()
    with pytest.raises(TypeError):
        make_evaluator(model, [{"wrong": torch.zeros(1)}]).run()
    assert model.training


def test_a_stop_leaves_the_evaluation() -> None:
    stop = StopFlag()
    stop.request("received SIGTERM")
    with pytest.raises(StopRequestedError):
        make_evaluator(Bigram(), language_batches(), stop=stop).run()


def test_a_shuffling_loader_gives_the_same_batches_each_time() -> None:
    class Watching(Regression):
        seen: list[float] = []  # noqa: RUF012 - one list for one test

        def forward(self, inputs, targets):
            self.seen.append(inputs.flatten()[0].item())
            return super().forward(inputs, targets)

    data = TensorDataset(*regression_batches(1, size=20)[0])
    loader = DataLoader(data, batch_size=2, shuffle=True)
    model = Watching()
    evaluator = make_evaluator(model, loader, max_batches=3)
    evaluator.run()
    torch.rand(5)
    evaluator.run()
    assert len(model.seen) == 6
    assert model.seen[:3] == model.seen[3:]


def test_training_with_evaluation_is_the_same_run_bit_for_bit() -> None:
    runs = []
    for every in (None, 1):
        loader = DataLoader(
            TensorDataset(*regression_batches(1, size=8)[0]), batch_size=2, shuffle=True
        )
        trainer = make_trainer(
            make_regression(0.5),
            options={"evaluation": {"every_steps": every}},
            eval_dataloader=loader,
            sample_text=lambda: f"{torch.rand(1).item():.3f}",
        )
        torch.manual_seed(5)
        result = trainer.fit(5)
        runs.append(
            ([r["loss"] for r in result.metrics], parameters_of(trainer.model), torch.rand(3))
        )
    assert_same_tensors(runs[0], runs[1])


# ---------------------------------------------------------------- in the loop


class Scripted(nn.Module):
    """Its held-out losses are given; in training it returns a plain loss."""

    def __init__(self, losses) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.losses = iter(losses)

    def forward(self, inputs, targets):
        if self.training:
            return (self.weight * inputs.mean()) ** 2
        return self.weight.sum() * 0 + next(self.losses)


def scripted_trainer(losses, *, every=1, patience=None, **arguments):
    return make_trainer(
        Scripted(losses),
        options={"evaluation": {"every_steps": every, "patience": patience}},
        eval_dataloader=regression_batches(1),
        **arguments,
    )


def test_evaluation_runs_on_its_cadence_and_at_the_last_step() -> None:
    recorder = Recorder()
    scripted_trainer([4.0, 3.0, 2.0], every=2, recorder=recorder).fit(5)
    assert [(record["step"], record["loss"]) for record in recorder.of("eval")] == [
        (2, 4.0),
        (4, 3.0),
        (5, 2.0),
    ]
    assert set(recorder.of("eval")[0]) == {
        "step",
        "loss",
        "perplexity",
        "bits_per_byte",
        "accuracy",
        "seconds",
    }


def test_no_evaluation_without_cadence_or_data() -> None:
    recorder = Recorder()
    scripted_trainer([], every=None, recorder=recorder).fit(2)
    make_trainer(options={"evaluation": {"every_steps": 1}}, recorder=recorder).fit(2)
    make_trainer(recorder=recorder, eval_dataloader=regression_batches(1)).fit(2)
    assert recorder.of("eval") == []


def test_the_sample_is_part_of_the_event() -> None:
    recorder = Recorder()
    scripted_trainer([1.0], recorder=recorder, sample_text=lambda: "def f(x):").fit(1)
    assert recorder.of("eval")[0]["sample"] == "def f(x):"


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_no_text_is_sampled_from_a_model_whose_loss_is_not_finite(loss) -> None:
    recorder = Recorder()

    def sample_text() -> str:
        return str(torch.multinomial(torch.full((3,), loss), 1))  # raises, as sampling does

    scripted_trainer([loss], recorder=recorder, sample_text=sample_text).fit(1)
    assert "sample" not in recorder.of("eval")[0]


def test_best_and_last_values_are_in_the_outcome() -> None:
    trainer = scripted_trainer([3.0, 1.0, float("nan"), 2.0])
    trainer.fit(4)
    outcome = trainer.outcome
    assert (outcome.best_eval_loss, outcome.best_eval_step, outcome.final_eval_loss) == (
        1.0,
        2,
        2.0,
    )


@pytest.mark.parametrize(("keep_best", "saved"), [(0, [4]), (1, [1, 2, 4])])
def test_a_new_best_saves_at_its_step_with_its_loss(keep_best, saved) -> None:
    manager = Checkpoints([], every=100, keep_best=keep_best)
    scripted_trainer([3.0, 1.0, 2.0, 2.5], checkpoint_manager=manager).fit(4)
    assert list(manager.saved) == saved
    assert manager.metrics[4] == 2.5
    if keep_best:
        assert (manager.metrics[1], manager.metrics[2]) == (3.0, 1.0)
        assert manager.saved[2]["best"]["best_step"] == 2


def test_a_checkpoint_without_evaluation_at_its_step_has_no_metric() -> None:
    manager = Checkpoints([], every=1)
    scripted_trainer([3.0, 1.0], every=2, checkpoint_manager=manager).fit(3)
    assert manager.metrics == {1: None, 2: 3.0, 3: 1.0}


def test_patience_ends_the_run_completed() -> None:
    trainer = scripted_trainer([3.0, 2.0, 2.0, 2.5, 1.0], patience=2)
    result = trainer.fit(50)
    assert result.steps == 4
    assert trainer.outcome.status == "completed"
    assert trainer.outcome.reason == "no new best in 2 evaluations (evaluation.patience)"


def test_patience_and_best_survive_a_resume() -> None:
    first = scripted_trainer([3.0, 2.0, 2.5], patience=2)
    first.fit(3)
    second = scripted_trainer([2.2, 1.0], patience=2)
    second.resume(first.state_dict())
    result = second.fit(50)
    assert result.steps == 4
    assert (second.outcome.best_eval_loss, second.outcome.best_eval_step) == (2.0, 2)
    assert second.outcome.final_eval_loss == pytest.approx(2.2)


def test_an_evaluation_cut_short_is_made_up_for_after_the_resume() -> None:
    stop = StopFlag()

    def requesting():
        stop.request("received SIGTERM", signal_number=15)
        yield regression_batches(1)[0]

    class Requesting:
        def __iter__(self):
            return requesting()

    manager = Checkpoints([], every=100)
    recorder = Recorder()
    options = {"evaluation": {"every_steps": 2}}
    trainer = make_trainer(
        options=options,
        eval_dataloader=Requesting(),
        stop=stop,
        checkpoint_manager=manager,
        recorder=recorder,
    )
    trainer.fit(4)
    assert recorder.of("eval") == []
    assert list(manager.saved) == [2]
    assert trainer.outcome.status == "interrupted"

    resumed = make_trainer(
        options=options,
        eval_dataloader=regression_batches(1),
        recorder=recorder,
        checkpoint_manager=Checkpoints([], every=100),
    )
    resumed.resume(copy.deepcopy(manager.saved[2]))
    resumed.fit(4)
    assert [record["step"] for record in recorder.of("eval")] == [2, 4]
    assert list(resumed.checkpoint_manager.saved) == [2, 4]


def test_a_history_remembers_the_first_of_equal_losses() -> None:
    history = EvaluationHistory()
    assert history.add(2.0, step=1)
    assert not history.add(2.0, step=2)
    assert not history.add(math.nan, step=3)
    assert history.add(1.5, step=4)
    assert (history.best_loss, history.best_step, history.num_without_improvement) == (1.5, 4, 0)
    assert history.loss_at(4) == 1.5
    assert history.loss_at(3) is None
    assert EvaluationHistory.from_dict(history.to_dict()) == history
    assert EvaluationHistory.from_dict(None) == EvaluationHistory()
