"""Train n steps = train k, save, resume in a new trainer, train n - k; bit for bit, whatever k."""

from __future__ import annotations

import copy
import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from speedtronic.checkpoint.manager import CheckpointManager
from speedtronic.core.seeding import rng_state
from speedtronic.trainer import Trainer
from tests.unit.trainer.builders import (
    FP32,
    CountedLoader,
    Recorder,
    assert_same_tensors,
    make_logger,
)

NUM_STEPS = 14
NUM_BLOCKS = 11  # 5 microbatches of 2 an epoch: with K = 2 an epoch ends inside an update
BLOCK = 8
TOKENS = np.random.default_rng(0).integers(0, 17, NUM_BLOCKS * BLOCK + 1).astype(np.uint16)


class Net(nn.Module):
    """A small language model that draws from every random stream there is."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(17, 12)
        self.norm = nn.BatchNorm1d(BLOCK)  # has buffers that move
        self.hidden = nn.Linear(12, 12)

    def forward(self, input_ids, labels):
        hidden = self.norm(self.embedding(input_ids)) * (1 + 0.01 * random.random())
        hidden = hidden + 0.01 * float(np.random.rand())  # noqa: NPY002 - the global stream
        hidden = F.dropout(torch.tanh(self.hidden(hidden)), 0.3, self.training)
        logits = hidden @ self.embedding.weight.T  # tied
        return {"loss": F.cross_entropy(logits.flatten(0, 1), labels.flatten()), "logits": logits}


class RandomCrops(Dataset):
    """A user's data set that draws from the process's random state for each sample."""

    def __len__(self) -> int:
        return NUM_BLOCKS

    def __getitem__(self, index):
        shift = int(torch.randint(0, 3, ()))
        start = min(index * BLOCK + shift, len(TOKENS) - BLOCK - 1)
        tokens = block(start)
        return {"input_ids": tokens[:-1], "labels": tokens[1:]}


def block(start: int) -> torch.Tensor:
    return torch.as_tensor(TOKENS[start : start + BLOCK + 1].astype(np.int64))


def own_loader() -> CountedLoader:
    """Return a loader with a position: another order each epoch, 5 microbatches an epoch."""

    def batch_of(number):
        epoch, first = divmod(number, NUM_BLOCKS // 2)
        order = np.random.default_rng([3, epoch]).permutation(NUM_BLOCKS)
        rows = torch.stack([block(BLOCK * i) for i in order[2 * first : 2 * first + 2]])
        return {"input_ids": rows[:, :-1], "labels": rows[:, 1:]}

    return CountedLoader(batch_of)


def foreign_loader():
    return DataLoader(RandomCrops(), batch_size=2, shuffle=True)


def build(
    loader, *, k: int, seed: int = 0, recorder: Recorder | None = None, **arguments
) -> Trainer:
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - the global stream
    torch.manual_seed(seed)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + 0.1 * step))
    return Trainer(
        model,
        optimizer,
        loader,
        device="cpu",
        config={
            "data": {"micro_batch_size": 2, "target_batch_size": 2 * k},
            "evaluation": {"every_steps": 4, "max_batches": 2},
        },
        scheduler=schedule,
        precision=FP32,
        logger=make_logger(recorder),
        eval_dataloader=[own_loader().batch_of(number) for number in (0, 3)],
        **arguments,
    )


def curve(result) -> list[tuple[int, float, float, int, int]]:
    keys = ("step", "loss", "lr", "samples", "tokens")
    return [tuple(record[key] for key in keys) for record in result.metrics]


def facts(trainer: Trainer) -> dict:
    """Return all of a state that an undisturbed run must share.

    The random state in it is the process's: take it before another trainer is built.
    """
    state = trainer.state_dict()
    return {key: value for key, value in state.items() if key not in ("config", "environment")}


LOADERS = pytest.mark.parametrize("loader", [own_loader, foreign_loader], ids=["own", "foreign"])


@LOADERS
@pytest.mark.parametrize("k", [1, 2])
def test_a_resume_at_any_step_is_bit_exact(loader, k) -> None:
    straight = build(loader(), k=k)
    expected = curve(straight.fit(NUM_STEPS))
    for step in range(1, NUM_STEPS):
        first = build(loader(), k=k)
        head = curve(first.fit(step))
        state = first.state_dict()
        second = build(loader(), k=k, seed=99)
        second.resume(state)
        tail = curve(second.fit(NUM_STEPS))
        assert head + tail == expected, step
        # Evaluations on the way there differ: the first part evaluated at its own last step too.
        left, right = facts(second), facts(straight)
        for state in (left, right):
            del state["best"]
        assert_same_tensors(left, right, f"resumed at {step}")


@LOADERS
def test_several_resumes_in_a_row_are_bit_exact(loader) -> None:
    straight = build(loader(), k=2)
    expected = curve(straight.fit(NUM_STEPS))
    trainer, found = build(loader(), k=2), []
    for number, step in enumerate((4, 5, 10, NUM_STEPS)):
        found += curve(trainer.fit(step))
        state = trainer.state_dict()
        trainer = build(loader(), k=2, seed=50 + number)
        trainer.resume(state)
    assert found == expected
    left, right = facts(trainer), facts(straight)
    for state in (left, right):
        del state["best"]
    assert_same_tensors(left, right)


@LOADERS
def test_a_resume_through_files_is_bit_exact(loader, tmp_path) -> None:
    straight = build(loader(), k=2)
    expected = curve(straight.fit(NUM_STEPS))
    found = []
    for number, step in enumerate((3, 9, NUM_STEPS)):
        manager = CheckpointManager(tmp_path, every_steps=4)
        trainer = build(loader(), k=2, seed=70 + number, checkpoint_manager=manager)
        if number == 0:
            trainer = build(loader(), k=2, checkpoint_manager=manager)
        else:
            trainer.resume(manager.load_latest())
        found += curve(trainer.fit(step))
        manager.close()
    assert found == expected
    assert_same_tensors(facts(trainer)["model"], facts(straight)["model"])
    assert_same_tensors(facts(trainer)["optimizer"], facts(straight)["optimizer"])
    assert_same_tensors(facts(trainer)["rng"], facts(straight)["rng"])


@LOADERS
def test_fit_called_again_continues_data_schedule_and_random_state(loader) -> None:
    straight = build(loader(), k=2)
    expected = curve(straight.fit(NUM_STEPS))
    trainer = build(loader(), k=2)
    found = [record for step in (2, 5, 6, NUM_STEPS) for record in curve(trainer.fit(step))]
    assert found == expected
    assert_same_tensors(facts(trainer)["model"], facts(straight)["model"])


def test_a_resumed_trainer_goes_on_after_a_failure_as_if_nothing_happened() -> None:
    straight = build(own_loader(), k=2)
    expected = curve(straight.fit(NUM_STEPS))
    trainer = build(own_loader(), k=2)
    forward = trainer.model.forward
    calls = []

    def failing(*args, **kwargs):
        calls.append(1)
        if len(calls) == 12:
            raise RuntimeError("a cosmic ray")
        return forward(*args, **kwargs)

    head = curve(trainer.fit(5))
    state = trainer.state_dict()
    trainer.model.forward = failing
    calls += [1] * 10
    with pytest.raises(RuntimeError, match="cosmic ray"):
        trainer.fit(NUM_STEPS)
    trainer.model.forward = forward
    trainer.resume(state)
    assert head + curve(trainer.fit(NUM_STEPS)) == expected


def test_evaluations_and_their_best_are_those_of_an_undisturbed_run() -> None:
    recorder = Recorder()
    straight = build(own_loader(), k=1, recorder=recorder)
    straight.fit(NUM_STEPS)
    expected = [(record["step"], record["loss"]) for record in recorder.of("eval")]
    assert [step for step, _ in expected] == [4, 8, 12, 14]

    recorder = Recorder()
    first = build(own_loader(), k=1, recorder=recorder)
    first.fit(8)  # a multiple of the cadence: no extra evaluation
    state = first.state_dict()
    second = build(own_loader(), k=1, seed=4, recorder=recorder)
    second.resume(state)
    second.fit(NUM_STEPS)
    assert [(record["step"], record["loss"]) for record in recorder.of("eval")] == expected
    assert second.outcome.best_eval_loss == straight.outcome.best_eval_loss
    assert second.outcome.best_eval_step == straight.outcome.best_eval_step
    assert second.outcome.final_eval_loss == straight.outcome.final_eval_loss


# ---------------------------------------------------------------- the state itself


def test_a_state_is_fresh_and_independent_of_later_training() -> None:
    trainer = build(own_loader(), k=1)
    trainer.fit(3)
    state = trainer.state_dict()
    kept = copy.deepcopy(state)
    trainer.fit(6)
    assert_same_tensors(state, kept)
    assert trainer.state_dict()["step"] == 6


def test_a_resume_leaves_the_state_alone() -> None:
    trainer = build(own_loader(), k=1)
    trainer.fit(3)
    state = trainer.state_dict()
    kept = copy.deepcopy(state)
    other = build(own_loader(), k=1, seed=8)
    other.resume(state)
    other.fit(6)
    assert_same_tensors(state, kept)


def test_a_state_holds_plain_containers_only() -> None:
    trainer = build(own_loader(), k=1)
    trainer.fit(2)

    def check(value, path: str) -> None:
        if isinstance(value, dict):
            assert type(value) is dict, path
            for key, item in value.items():
                check(item, f"{path}.{key}")
        elif isinstance(value, list | tuple):
            assert type(value) in (list, tuple), path
            for index, item in enumerate(value):
                check(item, f"{path}[{index}]")
        else:
            assert value is None or type(value) in (bool, int, float, str, torch.Tensor), path

    state = trainer.state_dict()
    check(state, "state")
    assert {"model", "optimizer", "scheduler", "scaler", "step", "samples", "tokens"} <= set(state)
    assert {"attempt", "rng", "data", "coordinator", "config", "precision", "best"} <= set(state)


def test_a_resume_restores_everything_at_once_but_scaler_and_coordinator() -> None:
    first = build(own_loader(), k=1)
    first.fit(5)
    state = first.state_dict()
    second = build(own_loader(), k=1, seed=8)
    second.resume(state)
    assert (second.step, second.samples, second.tokens, second.attempts) == (5, 10, 80, 5)
    assert second.optimizer.param_groups[0]["lr"] == first.optimizer.param_groups[0]["lr"]
    assert second.scheduler.last_epoch == 5
    assert_same_tensors(rng_state(), state["rng"])
    assert_same_tensors(facts(second), facts(first))


def test_a_minimal_state_of_the_contract_is_enough() -> None:
    first = build(own_loader(), k=1)
    first.fit(2)
    keys = ("model", "optimizer", "scheduler", "step", "samples", "tokens", "rng")
    state = {key: first.state_dict()[key] for key in keys}
    second = build(own_loader(), k=1)
    second.resume(state)
    assert (second.step, second.attempts) == (2, 2)
    assert second.fit(4).steps == 4


def test_a_schedule_that_was_not_saved_starts_where_it_is_built() -> None:
    first = build(own_loader(), k=1)
    first.fit(2)
    state = {**first.state_dict(), "scheduler": {}}
    second = build(own_loader(), k=1)
    second.resume(state)
    assert second.scheduler.last_epoch == 0


def test_the_saved_learning_rate_is_restored_whatever_was_built() -> None:
    first = build(own_loader(), k=1)
    first.fit(2)
    second = build(own_loader(), k=1)
    second.optimizer.param_groups[0]["lr"] = 7.0
    second.resume(first.state_dict())
    assert second.optimizer.param_groups[0]["lr"] == first.optimizer.param_groups[0]["lr"]


def test_skipped_attempts_survive_a_resume() -> None:
    def poisoned(trainer: Trainer) -> Trainer:
        forward, calls = trainer.model.forward, []

        def maybe(*args, **kwargs):
            calls.append(1)
            output = forward(*args, **kwargs)
            return {"loss": output["loss"] * float("nan")} if len(calls) == 2 else output

        trainer.model.forward = maybe
        return trainer

    straight = poisoned(build(own_loader(), k=1))
    expected = curve(straight.fit(6))
    first = poisoned(build(own_loader(), k=1))
    head = curve(first.fit(3))
    state = first.state_dict()
    assert (state["step"], state["attempt"]) == (3, 4)
    second = build(own_loader(), k=1, seed=8)
    second.resume(state)
    assert head + curve(second.fit(6)) == expected
    assert second.outcome.skipped_steps == 1
