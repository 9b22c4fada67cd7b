"""Targets, counters, order of events and the ways a fit ends."""

from __future__ import annotations

import copy
import threading
import time

import pytest
import torch

from speedtronic.core.errors import NonFiniteError
from speedtronic.core.stopping import StopFlag
from speedtronic.core.types import SyncCoordinator
from speedtronic.trainer import SpeedtronicTrainer, Trainer, TrainingEngine, TrainResult
from speedtronic.trainer.coordination import NoCoordinator
from tests.unit.trainer.builders import (
    CountedLoader,
    Recorder,
    Regression,
    assert_same_tensors,
    make_logger,
    make_regression,
    make_trainer,
    parameters_of,
    regression_batches,
)

NINE_KEYS = [
    "step",
    "loss",
    "lr",
    "steps_per_sec",
    "samples_per_sec",
    "tokens_per_sec",
    "samples",
    "tokens",
    "micro_batches",
]


# ---------------------------------------------------------------- names and defaults


def test_compatibility_names_are_the_trainer() -> None:
    assert TrainingEngine is Trainer
    assert SpeedtronicTrainer is Trainer
    assert Trainer.train is Trainer.fit


def test_a_trainer_without_configuration_is_a_bare_loop() -> None:
    model = make_regression()
    trainer = Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), [], device="cpu")
    assert trainer.max_steps == 1000
    assert trainer.config is None
    assert trainer.precision.mode == "fp32"
    assert trainer.logger.every_steps == 10
    assert (trainer.step, trainer.samples, trainer.tokens) == (0, 0, 0)


def test_a_dict_becomes_a_configuration() -> None:
    trainer = make_trainer(options={"data": {"max_steps": 3}, "optimizer": {"grad_clip": 0.5}})
    assert trainer.max_steps == 3
    assert trainer.config.optimizer.grad_clip == 0.5


def test_the_argument_wins_over_the_configured_target() -> None:
    assert make_trainer(options={"max_steps": 3}, max_steps=2).fit().steps == 2


def test_private_batch_helpers_move_and_count() -> None:
    trainer = make_trainer()
    batch = {"input_ids": torch.zeros(2, 3), "attention_mask": torch.tensor([[1, 1, 0], [1, 0, 0]])}
    assert trainer._batch_size_and_tokens(batch) == (2, 3)  # noqa: SLF001 - names of the contract
    assert trainer._move_batch(batch)["input_ids"].device.type == "cpu"  # noqa: SLF001 - a name of the contract


# ---------------------------------------------------------------- targets and counters


@pytest.mark.parametrize("target", [0, -5])
def test_a_target_below_one_is_a_value_error(target) -> None:
    with pytest.raises(ValueError, match=rf"max_steps must be at least 1, got {target}"):
        make_trainer().fit(target)
    with pytest.raises(ValueError, match="max_steps must be at least 1"):
        make_trainer(max_steps=target).fit()


def test_counters_are_cumulative_and_absolute() -> None:
    trainer = make_trainer(start_step=10)
    result = trainer.fit(14)
    assert (result.steps, result.samples, result.tokens) == (14, 12, 48)
    assert [record["step"] for record in result.metrics] == [11, 12, 13, 14]
    again = trainer.fit(15)
    assert (again.steps, again.samples, len(again.metrics)) == (15, 15, 1)


def test_a_reached_target_runs_and_writes_nothing() -> None:
    recorder = Recorder()
    coordinator = Coordinator([])
    trainer = make_trainer(recorder=recorder, coordinator=coordinator)
    trainer.fit(2)
    before, written = parameters_of(trainer.model), len(recorder.events)
    coordinator.calls.clear()
    result = trainer.fit(2)
    assert result == TrainResult(2, 6, 24, None, 0.0, [])
    assert trainer.outcome.status == "completed"
    assert trainer.outcome.updates == 0
    assert len(recorder.events) == written
    assert coordinator.calls == []
    assert_same_tensors(before, parameters_of(trainer.model))


def test_records_have_the_nine_keys_of_the_contract() -> None:
    trainer = make_trainer(
        options={"data": {"micro_batch_size": 3, "target_batch_size": 6}},
        with_schedule=True,
        log_every=100,
    )
    result = trainer.fit(3)
    assert [list(record) for record in result.metrics] == [NINE_KEYS] * 3
    assert [r["micro_batches"] for r in result.metrics] == [2, 2, 2]
    assert [r["samples"] for r in result.metrics] == [6, 12, 18]
    assert [r["tokens"] for r in result.metrics] == [24, 48, 72]
    # One position ahead: update k used 0.1 / k, its record shows 0.1 / (k + 1).
    assert [r["lr"] for r in result.metrics] == [0.1 / 2, 0.1 / 3, 0.1 / 4]
    last = result.metrics[-1]
    assert last["samples_per_sec"] == pytest.approx(6 * last["steps_per_sec"])
    assert last["tokens_per_sec"] == pytest.approx(24 * last["steps_per_sec"])
    # Counted to the end of the last update, and elapsed_s to the end of the fit.
    assert last["steps_per_sec"] >= 3 / result.elapsed_s * (1 - 1e-9)
    assert last["loss"] == result.final_loss


def test_rates_are_those_of_the_invocation() -> None:
    trainer = make_trainer()
    trainer.fit(4)
    record = trainer.fit(5).metrics[0]
    assert record["samples"] == 15
    assert record["samples_per_sec"] == pytest.approx(3 * record["steps_per_sec"])


def test_the_logger_gets_its_cadence_and_always_the_last_step() -> None:
    recorder = Recorder()
    result = make_trainer(recorder=recorder, log_every=3).fit(8)
    steps = recorder.of("train_step")
    assert [record["step"] for record in steps] == [3, 6, 8]
    assert steps == [result.metrics[index] for index in (2, 5, 7)]
    stats = recorder.of("train_stats")
    assert [record["step"] for record in stats] == [3, 6, 8]
    assert set(stats[0]) == {"step", "lr/0", "skipped", "peak_memory_mb", "data_wait_s"}
    assert stats[0]["lr/0"] == 0.1
    assert stats[0]["peak_memory_mb"] > 10
    assert stats[0]["data_wait_s"] >= 0


def test_train_stats_has_the_gradient_norm_where_gradients_are_clipped() -> None:
    recorder = Recorder()
    batches = regression_batches()
    model = make_regression()
    reference = copy.deepcopy(model)
    reference(*batches[0]).backward()
    norm = torch.cat([p.grad.flatten() for p in reference.parameters()]).norm().item()
    make_trainer(model, batches, recorder=recorder, options={}).fit(1)
    assert recorder.of("train_stats")[0]["grad_norm"] == pytest.approx(norm, rel=1e-6)


def test_the_model_is_in_training_mode() -> None:
    model = make_regression().eval()
    make_trainer(model).fit(1)
    assert model.training


# ---------------------------------------------------------------- order


class Coordinator:
    """Records its calls in a list that others write to as well."""

    def __init__(self, calls: list, *, wants_reset: bool = False, fails_in: str = "") -> None:
        self.calls = calls
        self.wants_reset = wants_reset
        self.fails_in = fails_in

    def start(self) -> None:
        self._note("start")

    def after_optimizer_step(self, model, step):
        self._note(f"coordinate {step}")
        return self.wants_reset

    def stop(self) -> None:
        self._note("stop")

    def state_dict(self):
        return {"round": 3}

    def load_state_dict(self, state) -> None:
        self._note(f"load {state}")

    def _note(self, what: str) -> None:
        self.calls.append(what)
        if self.fails_in and what.startswith(self.fails_in):
            raise RuntimeError(f"{what} failed")


class PreparedCoordinator(Coordinator):
    def prepare_state(self, state) -> None:
        self._note(f"prepare {state}")


class Checkpoints:
    """A checkpoint manager that notes what it is asked to save."""

    enabled = True

    def __init__(self, calls: list, every: int = 2, keep_best: int = 0) -> None:
        self.calls = calls
        self.every = every
        self.keep_best = keep_best
        self.on_event = None
        self.saved: dict[int, dict] = {}
        self.metrics: dict[int, float | None] = {}

    def should_save(self, step) -> bool:
        return step % self.every == 0

    def save(self, step, state, *, metric=None) -> None:
        self.calls.append(f"save {step}")
        self.saved[step] = copy.deepcopy(state)
        self.metrics[step] = metric

    def poll(self) -> None:
        pass

    def close(self) -> None:
        self.calls.append("close")


def test_order_of_a_step_and_of_a_fit() -> None:
    calls: list[str] = []
    model = make_regression()
    trainer = make_trainer(
        model,
        options={"evaluation": {"every_steps": 2}, "optimizer": {"grad_clip": None}},
        with_schedule=True,
        coordinator=Coordinator(calls),
        checkpoint_manager=Checkpoints(calls),
        eval_dataloader=regression_batches(2),
        logger=make_logger(lambda event, payload: calls.append(f"{event} {payload['step']}")),
    )
    trainer.optimizer.register_step_post_hook(lambda *_: calls.append("update"))
    schedule_step = trainer.scheduler.step
    trainer.scheduler.step = lambda: (calls.append("schedule"), schedule_step())
    trainer.fit(3)
    step = ["update", "schedule", "coordinate {0}", "train_step {0}", "train_stats {0}"]
    expected = ["start", "train_start 0"]
    expected += [line.format(1) for line in step]
    expected += [line.format(2) for line in step] + ["eval 2", "save 2"]
    expected += [line.format(3) for line in step] + ["eval 3", "save 3", "close"]
    expected += ["train_end 3", "stop", "close"]
    assert calls == expected


def test_the_last_step_off_the_cadence_is_logged_before_its_evaluation() -> None:
    recorder = Recorder()
    trainer = make_trainer(
        options={"evaluation": {"every_steps": 100}},
        eval_dataloader=regression_batches(1),
        recorder=recorder,
        log_every=100,
    )
    trainer.fit(3)
    assert recorder.names() == ["train_start", "train_step", "train_stats", "eval", "train_end"]


def test_no_coordinator_is_an_object_that_does_nothing() -> None:
    trainer = make_trainer()
    assert isinstance(trainer.coordinator, NoCoordinator)
    assert isinstance(trainer.coordinator, SyncCoordinator)
    assert trainer.coordinator.after_optimizer_step(None, 1) is None
    assert trainer.coordinator.state_dict() is None


@pytest.mark.parametrize("fails_in", ["start", "coordinate"])
def test_the_coordinator_is_stopped_whatever_fails(fails_in) -> None:
    calls: list[str] = []
    recorder = Recorder()
    trainer = make_trainer(recorder=recorder, coordinator=Coordinator(calls, fails_in=fails_in))
    with pytest.raises(RuntimeError, match=f"{fails_in}.* failed"):
        trainer.fit(3)
    assert calls[-1] == "stop"
    assert trainer.outcome.status == "failed"
    assert recorder.of("train_end")[0]["status"] == "failed"


def test_a_failing_stop_does_not_hide_the_first_error() -> None:
    class Failing(Coordinator):
        def stop(self) -> None:
            raise ValueError("stop failed as well")

    trainer = make_trainer(coordinator=Failing([], fails_in="coordinate"))
    with pytest.raises(RuntimeError, match="coordinate 1 failed"):
        trainer.fit(3)


def test_a_failing_stop_after_a_good_fit_is_raised_and_the_rest_is_still_ended() -> None:
    calls: list[str] = []
    trainer = make_trainer(
        coordinator=Coordinator(calls, fails_in="stop"), checkpoint_manager=Checkpoints(calls)
    )
    with pytest.raises(RuntimeError, match="stop failed"):
        trainer.fit(1)
    assert calls[-2:] == ["stop", "close"]
    assert trainer.outcome.status == "failed"


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (Coordinator, ["start", "load {'round': 3}"]),
        (PreparedCoordinator, ["prepare {'round': 3}", "start"]),
    ],
)
def test_a_saved_coordinator_is_prepared_before_or_loaded_after_the_start(kind, expected) -> None:
    state = make_trainer(coordinator=Coordinator([])).state_dict()
    calls: list[str] = []
    trainer = make_trainer(coordinator=kind(calls))
    trainer.resume(state)
    assert calls == []
    assert trainer.state_dict()["coordinator"] == {"round": 3}
    trainer.fit(1)
    assert calls[: len(expected)] == expected
    calls.clear()
    trainer.fit(2)
    assert calls[:2] == ["start", "coordinate 2"]  # a second fit applies nothing again


@pytest.mark.parametrize(("setting", "is_reset"), [(None, True), (True, True), (False, False)])
def test_the_inner_optimizer_is_reset_where_asked_and_allowed(setting, is_reset) -> None:
    trainer = make_trainer(
        options={"distributed": {"reset_inner_optimizer": setting}},
        coordinator=Coordinator([], wants_reset=True),
    )
    trainer.fit(1)
    assert (len(trainer.optimizer.state) == 0) is is_reset
    trainer.fit(2)  # a cleared optimizer goes on


# ---------------------------------------------------------------- skipping


class Spoiled(Regression):
    """Gives a loss or a gradient that is not finite in chosen forwards (counted from 1)."""

    def __init__(self, bad: set[int], how: str = "loss") -> None:
        super().__init__()
        self.bad = bad
        self.how = how
        self.num_forwards = 0

    def forward(self, inputs, targets):
        self.num_forwards += 1
        loss = super().forward(inputs, targets)
        if self.num_forwards not in self.bad:
            return loss
        if self.how == "gradient":  # finite, but its gradient is infinite
            return loss + torch.sqrt(self.head.bias * 0).sum()
        if self.how == "loss alone":  # its gradient is that of a good one
            return loss + float("inf")
        return loss * float("nan")


def spoiled(bad: set[int], how: str = "loss") -> Spoiled:
    torch.manual_seed(0)
    return Spoiled(bad, how)


@pytest.mark.parametrize(
    ("how", "clip", "reason"),
    [
        ("loss", 1.0, "non-finite loss"),
        ("loss alone", 1.0, "non-finite loss"),
        ("loss", None, "non-finite loss"),
        ("gradient", 1.0, "non-finite gradient norm"),
    ],
)
def test_a_skipped_attempt_counts_nothing_and_moves_to_the_next_batch(how, clip, reason) -> None:
    calls: list[str] = []
    recorder = Recorder()
    batches = regression_batches()
    trainer = make_trainer(
        spoiled({2}, how),
        batches,
        options={"optimizer": {"grad_clip": clip}},
        with_schedule=True,
        coordinator=Coordinator(calls),
        recorder=recorder,
    )
    result = trainer.fit(2)
    assert recorder.of("optimizer_step_skipped") == [{"step": 2, "reason": reason}]
    assert (result.steps, result.samples, result.tokens, trainer.attempts) == (2, 6, 24, 3)
    assert [record["lr"] for record in result.metrics] == [0.1 / 2, 0.1 / 3]
    assert [call for call in calls if "coordinate" in call] == ["coordinate 1", "coordinate 2"]
    assert trainer.outcome.skipped_steps == 1
    assert recorder.of("train_stats")[-1]["skipped"] == 1
    # The same as training on batches 0 and 2 only.
    clean = make_trainer(
        spoiled(set()),
        [batches[0], batches[2]],
        options={"optimizer": {"grad_clip": clip}},
        with_schedule=True,
    )
    clean.fit(2)
    assert_same_tensors(parameters_of(clean.model), parameters_of(trainer.model))


def test_one_bad_microbatch_skips_its_whole_update() -> None:
    trainer = make_trainer(
        spoiled({3}), options={"data": {"micro_batch_size": 3, "target_batch_size": 6}}
    )
    result = trainer.fit(2)
    assert (result.steps, trainer.attempts, trainer.model.num_forwards) == (2, 3, 6)


def test_too_many_skips_in_a_row_end_the_run_with_the_last_good_step() -> None:
    calls: list[str] = []
    recorder = Recorder()
    manager = Checkpoints(calls)
    trainer = make_trainer(
        spoiled(set(range(4, 100))),
        options={"trainer": {"max_skipped_steps": 5}},
        recorder=recorder,
        checkpoint_manager=manager,
    )
    with pytest.raises(
        NonFiniteError, match=r"5 attempts in a row.*non-finite loss.*last good step is 3"
    ):
        trainer.fit(50)
    assert len(recorder.of("optimizer_step_skipped")) == 5
    assert list(manager.saved) == [2]
    assert trainer.outcome.status == "failed"
    assert all(torch.isfinite(p).all() for p in trainer.model.parameters())


def test_skips_that_are_not_in_a_row_do_not_add_up() -> None:
    bad = {2, 3, 5, 6, 8, 9}
    trainer = make_trainer(spoiled(bad), options={"trainer": {"max_skipped_steps": 3}})
    assert trainer.fit(6).steps == 6
    assert trainer.outcome.skipped_steps == 6


# ---------------------------------------------------------------- stopping


class StopAt:
    """A hook that asks for a stop when a step was recorded."""

    def __init__(self, stop: StopFlag, step: int) -> None:
        self.stop = stop
        self.step = step

    def __call__(self, event, payload) -> None:
        if event == "train_step" and payload["step"] == self.step:
            self.stop.request("received SIGTERM", signal_number=15)


def test_a_stop_ends_after_the_step_and_saves_it() -> None:
    calls: list[str] = []
    stop = StopFlag()
    manager = Checkpoints(calls, every=100)
    trainer = make_trainer(
        stop=stop, checkpoint_manager=manager, logger=make_logger(StopAt(stop, 3))
    )
    result = trainer.fit(10)
    assert result.steps == 3
    assert list(manager.saved) == [3]
    outcome = trainer.outcome
    assert (outcome.status, outcome.signal_number, outcome.reason) == (
        "interrupted",
        15,
        "received SIGTERM",
    )


def test_the_last_step_is_logged_when_a_stop_comes_off_the_cadence() -> None:
    recorder = Recorder()
    stop = StopFlag()

    class Stopping(Coordinator):
        def after_optimizer_step(self, model, step):
            if step == 4:
                stop.request("enough")

    make_trainer(recorder=recorder, log_every=10, stop=stop, coordinator=Stopping([])).fit(10)
    assert [record["step"] for record in recorder.of("train_step")] == [4]


def test_a_stop_before_the_first_update_writes_no_checkpoint() -> None:
    stop = StopFlag()
    stop.request("received SIGINT", signal_number=2)
    manager = Checkpoints([])
    trainer = make_trainer(stop=stop, checkpoint_manager=manager)
    result = trainer.fit(5)
    assert (result.steps, result.final_loss, result.metrics) == (0, None, [])
    assert manager.saved == {}
    assert trainer.outcome.status == "interrupted"


def test_the_time_limit_saves_and_interrupts() -> None:
    class Slow(Regression):
        def forward(self, inputs, targets):
            time.sleep(0.02)
            return super().forward(inputs, targets)

    torch.manual_seed(0)
    manager = Checkpoints([], every=1000)
    trainer = make_trainer(
        Slow(), options={"run": {"max_minutes": 0.1 / 60}}, checkpoint_manager=manager
    )
    result = trainer.fit(1000)
    assert 1 <= result.steps <= 6
    assert list(manager.saved) == [result.steps]
    assert trainer.outcome.status == "interrupted"
    assert trainer.outcome.signal_number is None
    assert trainer.outcome.reason == "run.max_minutes is over"


class Waiting(CountedLoader):
    """A loader that meets a stop while its consumer waits for one of its batches."""

    def __init__(self, batches, stop: StopFlag, at: int) -> None:
        super().__init__(lambda number: batches[number % len(batches)])
        self.stop_flag = stop
        self.at = at

    def wait_for(self, number, stop) -> None:
        if number == self.at:
            self.stop_flag.request("received SIGTERM", signal_number=15)
            stop.raise_if_requested()


@pytest.mark.parametrize("at", [4, 5])
def test_a_stop_while_waiting_for_data_gives_the_begun_update_back(at) -> None:
    options = {"data": {"micro_batch_size": 3, "target_batch_size": 6}}
    batches = regression_batches(5)
    straight = make_trainer(make_regression(0.5), batches, options=options)
    straight.fit(4)

    stop = StopFlag()
    trainer = make_trainer(
        make_regression(0.5), Waiting(batches, stop, at), options=options, stop=stop
    )
    result = trainer.fit(4)
    assert result.steps == 2
    assert trainer.outcome.status == "interrupted"
    assert all(p.grad is None for p in trainer.model.parameters())
    state = trainer.state_dict()
    assert state["attempt"] == 2

    resumed = make_trainer(
        make_regression(0.5, seed=99), Waiting(batches, StopFlag(), -1), options=options
    )
    resumed.resume(state)
    resumed.fit(4)
    assert_same_tensors(parameters_of(straight.model), parameters_of(resumed.model))


def test_an_evaluation_cut_short_at_the_target_is_made_up_by_the_next_fit() -> None:
    options = {"evaluation": {"every_steps": 2}}
    batches = regression_batches(2)
    straight = Recorder()
    make_trainer(options=options, recorder=straight, eval_dataloader=batches).fit(4)

    stop = StopFlag()

    class StoppingInTheSecond(list):
        passes = 0

        def __iter__(self):
            self.passes += 1
            if self.passes == 2:
                stop.request("received SIGTERM", signal_number=15)
            return super().__iter__()

    trainer = make_trainer(options=options, eval_dataloader=StoppingInTheSecond(batches), stop=stop)
    assert trainer.fit(4).steps == 4
    assert (trainer.outcome.status, trainer.outcome.signal_number) == ("interrupted", 15)

    recorder = Recorder()
    resumed = make_trainer(options=options, recorder=recorder, eval_dataloader=batches)
    resumed.resume(trainer.state_dict())
    result = resumed.fit(4)
    assert (result.steps, result.final_loss, resumed.outcome.status) == (4, None, "completed")
    assert [payload["step"] for payload in recorder.of("eval")] == [4]
    assert recorder.of("eval")[0]["loss"] == straight.of("eval")[-1]["loss"]
    assert resumed.fit(4).metrics == []
    assert not resumed.outcome.has_run


def test_the_trainer_installs_no_signal_handler() -> None:
    errors: list[BaseException] = []

    def run() -> None:  # signal handlers can be installed on the main thread only
        try:
            make_trainer().fit(2)
        except BaseException as error:  # noqa: BLE001 - handed to the main thread
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert errors == []


# ---------------------------------------------------------------- failing


def test_a_failing_model_saves_nothing_and_tells_the_logger() -> None:
    class Failing(Regression):
        calls = 0

        def forward(self, inputs, targets):
            self.calls += 1
            if self.calls == 4:
                raise RuntimeError("shapes do not fit\nsecond line")
            return super().forward(inputs, targets)

    recorder = Recorder()
    manager = Checkpoints([], every=100)
    trainer = make_trainer(Failing(), recorder=recorder, checkpoint_manager=manager)
    with pytest.raises(RuntimeError, match="shapes do not fit"):
        trainer.fit(10)
    assert manager.saved == {}
    assert recorder.events[-1][0] == "train_end"
    assert recorder.events[-1][1]["error"] == "RuntimeError: shapes do not fit"
    assert trainer.outcome.status == "failed"
    assert trainer.outcome.reason == "RuntimeError: shapes do not fit"
    assert trainer.step == 3
    assert trainer.fit(4).steps == 4  # the failed batch is drawn again and works


def test_a_folder_owned_by_another_is_left_alone() -> None:
    recorder = Recorder()

    def claim():
        raise RuntimeError("owned by process 7")

    trainer = make_trainer(recorder=recorder, claim=claim)
    with pytest.raises(RuntimeError, match="owned by process 7"):
        trainer.fit(1)
    assert recorder.events == []
