"""What a run from Python promises about stops, secrets, times, exactness and what it builds."""

from __future__ import annotations

import json
import shutil
import signal
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

import speedtronic
from speedtronic import cli
from speedtronic.checkpoint.locating import find_checkpoint
from speedtronic.checkpoint.storing import read_checkpoint
from speedtronic.core.errors import ConfigError

WORDS = "to be or not to be that is the question whether tis nobler in the mind to suffer\n"
SECRET = "hf_SECRET123"

HOOKS = """
import os
import torch

class Send:
    def __init__(self, number, step):
        self.number, self.step = number, step
    def on_event(self, event, payload):
        if event == "train_step" and payload["step"] == self.step:
            os.kill(os.getpid(), self.number)

class Watch:
    deterministic = []
    events = []
    def on_event(self, event, payload):
        Watch.events.append(event)
        Watch.deterministic.append(torch.are_deterministic_algorithms_enabled())
"""

DATA = """
import torch

class Data:
    tokens = []
    def __init__(self, token):
        Data.tokens.append(token)
    def __len__(self):
        return 40
    def __getitem__(self, index):
        ids = (torch.arange(17) + index) % 11
        return {"input_ids": ids[:-1], "labels": ids[1:]}
"""


class UnhandledSignalError(Exception):
    """What a signal does here that the run has not caught."""


def refuse(number: int, _frame: object) -> None:
    raise UnhandledSignalError(signal.Signals(number).name)


@pytest.fixture(autouse=True)
def workdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text(WORDS * 60)
    (tmp_path / "promised_hooks.py").write_text(HOOKS)
    (tmp_path / "mydata.py").write_text(DATA)
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, refuse) for number in numbers}
    yield tmp_path
    for number, handler in before.items():
        signal.signal(number, handler)
    for module in ("promised_hooks", "mydata"):
        sys.modules.pop(module, None)


def settings(**sections: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "model": {"name": "nano", "n_layer": 1, "n_head": 2, "d_model": 16, "max_seq_len": 16},
        "data": {"name": "text", "path": "text.txt", "micro_batch_size": 2},
        "precision": "fp32",
        "run": {"output_dir": "R", "max_steps": 6},
        "evaluation": {"every_steps": None},
        "checkpoint": {"every_steps": 100},
        "logging": {"every_steps": 1, "tensorboard": False, "plots": False, "progress": "off"},
    }
    for name, values in sections.items():
        is_merged = isinstance(values, Mapping) and isinstance(base.get(name), Mapping)
        base[name] = {**base[name], **values} if is_merged else values
    return base


def stopping(number: signal.Signals, *, step: int) -> dict[str, Any]:
    """Logging settings of a run that gets a signal while it logs a step."""
    return {
        "hooks": [{"_target_": "promised_hooks.Send", "number": int(number), "step": step}],
    }


def result() -> dict[str, Any]:
    return json.loads(Path("R/result.json").read_text())


def run_record() -> dict[str, Any]:
    return json.loads(Path("R/run.json").read_text())


def saved_steps() -> list[int]:
    folders = Path("R/checkpoints").glob("step_*")
    return sorted(int(path.name.removeprefix("step_")) for path in folders)


def last_state() -> dict[str, Any]:
    return read_checkpoint(find_checkpoint("R", checkpoint="latest"))


# Stops --------------------------------------------------------------------------------------------


def test_ctrl_c_is_a_keyboard_interrupt_after_the_step_was_saved() -> None:
    with pytest.raises(KeyboardInterrupt):
        speedtronic.train_from_config(settings(logging=stopping(signal.SIGINT, step=3)))

    assert (result()["status"], result()["steps"]) == ("interrupted", 3)
    assert saved_steps() == [3]
    assert last_state()["step"] == 3


def test_sigterm_is_a_system_exit_of_143_after_the_step_was_saved() -> None:
    with pytest.raises(SystemExit) as ended:
        speedtronic.train_from_config(settings(logging=stopping(signal.SIGTERM, step=3)))

    assert ended.value.code == 143
    assert (result()["status"], result()["steps"]) == ("interrupted", 3)
    assert saved_steps() == [3]
    assert last_state()["step"] == 3


def test_a_time_limit_interrupts_the_run_and_is_exit_status_0(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = [
        "data=text",
        "data.path=text.txt",
        "model.n_layer=1",
        "model.n_head=2",
        "model.d_model=16",
        "model.max_seq_len=16",
        "run_dir=R",
        "run.max_steps=10000",
        "run.max_minutes=0.005",
        "evaluation.every_steps=null",
        "logging.plots=false",
        "logging.tensorboard=false",
        "precision=fp32",
    ]
    status = cli.run(words)

    assert status == 0, capsys.readouterr().err
    assert result()["status"] == "interrupted"
    assert 1 <= result()["steps"] < 10_000
    assert saved_steps()[-1] == result()["steps"]
    assert "run.max_minutes is over" in Path("R/metrics.jsonl").read_text()


def test_an_evaluation_made_up_for_keeps_the_final_loss() -> None:
    measured = {"every_steps": 100, "max_batches": 2}
    with pytest.raises(SystemExit):
        speedtronic.train_from_config(
            settings(evaluation=measured, logging=stopping(signal.SIGTERM, step=6))
        )
    stopped = result()
    assert (stopped["status"], stopped["steps"]) == ("interrupted", 6)
    assert stopped["final_eval_loss"] is None
    assert stopped["final_loss"] > 0

    made_up = speedtronic.train_from_config(settings(evaluation=measured), resume=True)

    assert made_up.final_loss is None
    assert (result()["status"], result()["steps"]) == ("completed", 6)
    assert result()["final_eval_loss"] > 0
    assert result()["final_loss"] == stopped["final_loss"]


# What is written ----------------------------------------------------------------------------------


def test_no_file_of_a_run_and_no_line_holds_a_secret(capfd: pytest.CaptureFixture[str]) -> None:
    data = {"_target_": "mydata.Data", "token": SECRET, "micro_batch_size": 2}
    config = settings(
        model={"vocab_size": 11},
        evaluation={"every_steps": 3, "max_batches": 2},
        checkpoint={"every_steps": 2},
        logging={"tensorboard": True, "plots": True, "level": "DEBUG"},
    )
    speedtronic.train_from_config({**config, "data": data})

    assert set(sys.modules["mydata"].Data.tokens) == {SECRET}
    files = [path for path in Path("R").rglob("*") if path.is_file()]
    names = {path.name for path in files}
    assert {"config.json", "run.json", "result.json", "train.log", "metrics.jsonl"} <= names
    assert any("tfevents" in name for name in names)
    assert saved_steps()[-1] == 6
    assert [str(path) for path in files if SECRET.encode() in path.read_bytes()] == []
    printed = capfd.readouterr()
    assert "status:" in printed.out
    assert SECRET not in printed.out + printed.err


def test_elapsed_seconds_are_summed_over_the_starts() -> None:
    first = speedtronic.train_from_config(settings(), max_steps=3)
    second = speedtronic.train_from_config(settings(), resume=True)

    seconds = [segment["elapsed_s"] for segment in run_record()["segments"]]
    assert seconds == [first.elapsed_s, second.elapsed_s]
    assert min(seconds) > 0
    assert result()["elapsed_s"] == pytest.approx(seconds[0] + seconds[1], rel=1e-12)


# Exactness ----------------------------------------------------------------------------------------


def test_determinism_is_in_force_during_a_run_put_back_after_it_and_saved() -> None:
    assert not torch.are_deterministic_algorithms_enabled()
    watch = {"hooks": [{"_target_": "promised_hooks.Watch"}]}
    speedtronic.train_from_config(settings(trainer={"deterministic": True}, logging=watch))

    assert set(sys.modules["promised_hooks"].Watch.deterministic) == {True}
    assert not torch.are_deterministic_algorithms_enabled()
    assert last_state()["environment"]["deterministic"] is True


def test_a_fit_of_a_built_runtime_is_deterministic_and_puts_it_back() -> None:
    trainer, _ = speedtronic.build_runtime(settings(trainer={"deterministic": True}))
    seen: list[bool] = []
    trainer.logger.add_hook(
        lambda _event, _payload: seen.append(torch.are_deterministic_algorithms_enabled())
    )
    trainer.fit()
    trainer.logger.close()

    assert set(seen) == {True}
    assert not torch.are_deterministic_algorithms_enabled()


def environment_of_a_built_run(trainer_settings: dict[str, Any]) -> dict[str, Any]:
    trainer, _ = speedtronic.build_runtime(settings(trainer=trainer_settings))
    trainer.fit()
    trainer.logger.close()
    return last_state()["environment"]


def test_a_built_runtime_saves_the_environment_its_fit_computes_in() -> None:
    environment = environment_of_a_built_run({"deterministic": True, "num_threads": 2})
    assert (environment["deterministic"], environment["threads"]) == (True, 2)


def test_another_precision_on_resume_goes_on_and_is_not_called_exact() -> None:
    speedtronic.train_from_config(settings(), max_steps=3)
    assert result()["exact"] is True

    speedtronic.train_from_config(
        settings(precision="bf16", resume_strict=False), resume=True, max_steps=6
    )

    assert result()["steps"] == 6
    assert result()["exact"] is False
    (fallback,) = result()["fallbacks"]
    assert fallback["kind"] == "environment"
    assert "precision fp32 -> bf16" in fallback["reason"]


# What is built ------------------------------------------------------------------------------------


def test_the_argument_names_the_device_whatever_the_configuration_says() -> None:
    config = settings(run={"device": "cuda:0"})
    trainer, _ = speedtronic.build_runtime(config, device="cpu")

    assert trainer.device == torch.device("cpu")
    assert {parameter.device.type for parameter in trainer.model.parameters()} == {"cpu"}


def test_the_device_of_the_configuration_is_used_without_an_argument(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match=r"run\.device must be a device of this machine"):
        speedtronic.build_runtime(settings(run={"device": "cuda:0"}))


def test_tensorboard_hides_what_a_resumed_run_does_again(monkeypatch: pytest.MonkeyPatch) -> None:
    purged: list[int | None] = []

    class Hook:
        def __init__(self, folder: Path, *, purge_step: int | None, hparams: Any) -> None:
            purged.append(purge_step)

        def on_event(self, event: str, payload: Mapping[str, Any]) -> None:
            pass

    monkeypatch.setattr("speedtronic.metrics.tensorboard.TensorBoardHook", Hook)
    shown = {"checkpoint": {"every_steps": 4}, "logging": {"tensorboard": True}}
    speedtronic.train_from_config(settings(**shown))
    shutil.rmtree("R/checkpoints/step_000000000006")
    speedtronic.train_from_config(settings(**shown), resume=True)

    assert purged == [None, 5]


def test_a_logger_is_built_from_its_settings_and_gets_no_hook(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    added: list[Any] = []
    monkeypatch.setattr(
        speedtronic.MetricLogger, "add_hook", lambda _self, hook: added.append(hook)
    )
    own = {
        "level": "WARNING",
        "file": "logs/own.log",
        "json_file": "own.jsonl",
        "every_steps": 7,
        "tensorboard": True,
        "progress": "plain",
        "hooks": [{"_target_": "promised_hooks.Watch"}],
    }
    logger = speedtronic.build_logger({"logging": own})
    logger.info("too low")
    logger.warning("high enough")
    logger.event("train_step", {"step": 7, "loss": 1.5})
    logger.close()

    lines = Path("logs/own.log").read_text().splitlines()
    assert len(lines) == 1
    assert lines[0].endswith("WARNING high enough")
    assert capsys.readouterr().out == "warning: high enough\n"
    (record,) = map(json.loads, Path("own.jsonl").read_text().splitlines())
    assert (record["event"], record["step"], record["loss"]) == ("train_step", 7, 1.5)
    assert [step for step in range(1, 22) if logger.should_log(step)] == [7, 14, 21]
    assert logger.every_steps == 7
    assert added == []
    watch = getattr(sys.modules.get("promised_hooks"), "Watch", None)
    assert watch is None or watch.events == []
    assert not Path("tensorboard").exists()
