"""Text, events, hooks and files of the metric logger."""

from __future__ import annotations

import io
import json
import logging
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from speedtronic.core.errors import ConfigError
from speedtronic.metrics.logger import MetricLogger


def make_console() -> Console:
    return Console(file=io.StringIO(), width=40)


def shown_on(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def read_records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


class Recorder:
    """A hook that keeps what it is given."""

    def __init__(self) -> None:
        self.events: list[tuple[str, Any]] = []
        self.closed = 0

    def on_event(self, event: str, payload: Mapping[str, Any]) -> None:
        self.events.append((event, payload))

    def close(self) -> None:
        self.closed += 1


class Broken:
    def on_event(self, event: str, payload: Mapping[str, Any]) -> None:
        raise RuntimeError(f"no network for {event}")

    def close(self) -> None:
        raise RuntimeError("no network for close")


def test_text_goes_to_the_console_and_with_a_time_stamp_to_the_file(tmp_path: Path) -> None:
    console = make_console()
    logger = MetricLogger(file=tmp_path / "deep" / "train.log", console=console)

    logger.info("seed 1234")
    logger.warning("careful")
    logger.error("failed")
    logger.debug("unseen")
    logger.close()

    assert shown_on(console) == "seed 1234\nwarning: careful\nerror: failed\n"
    lines = (tmp_path / "deep" / "train.log").read_text().splitlines()
    stamp = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} "
    assert [re.sub(stamp, "TIME ", line) for line in lines] == [
        "TIME INFO seed 1234",
        "TIME WARNING careful",
        "TIME ERROR failed",
    ]


def test_text_is_shown_as_it_is_without_markup_or_wrapping() -> None:
    console = make_console()
    line = "[bold]x[/bold] :smile: 100% %s " + "long " * 20

    MetricLogger(console=console).info(line)

    assert shown_on(console) == line + "\n"


def test_the_level_filters_console_and_file(tmp_path: Path) -> None:
    console = make_console()
    logger = MetricLogger(level="warning", file=tmp_path / "log", console=console)

    logger.info("quiet")
    logger.warning("loud")
    logger.close()

    assert shown_on(console) == "warning: loud\n"
    assert "quiet" not in (tmp_path / "log").read_text()


def test_an_unknown_level_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"logging\.level must be one of DEBUG, .*, got 'LOUD'"):
        MetricLogger(level="LOUD")


def test_a_cadence_below_one_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"logging\.every_steps must be at least 1, got 0"):
        MetricLogger(every_steps=0)


def test_the_cadence_is_every_nth_step() -> None:
    logger = MetricLogger(every_steps=3)

    assert [step for step in range(1, 10) if logger.should_log(step)] == [3, 6, 9]


def test_an_event_is_in_the_file_before_the_logger_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    logger = MetricLogger(json_file=path, console=make_console())

    logger.event("train_step", {"step": 10, "loss": float("inf")})
    logger.event("compile", {"ok": False})

    assert read_records(path) == [
        {"event": "train_step", "step": 10, "loss": None, "nonfinite": True},
        {"event": "compile", "step": 10, "ok": False},
    ]
    logger.close()


def test_no_file_is_made_before_there_is_something_to_write(tmp_path: Path) -> None:
    logger = MetricLogger(file=tmp_path / "log", json_file=tmp_path / "json")
    logger.close()

    assert list(tmp_path.iterdir()) == []


def test_events_are_appended_after_a_restart_and_a_torn_last_line_is_cut_off(
    tmp_path: Path,
) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"event": "a", "step": 1}\n{"event": "b", "st')
    logger = MetricLogger(json_file=path, console=make_console())

    logger.event("c", {"step": 2})
    logger.close()
    logger.event("d", {"step": 3})  # a closed logger opens again
    logger.close()

    assert [record["event"] for record in read_records(path)] == ["a", "c", "d"]


def test_a_file_with_nothing_but_a_torn_line_starts_over(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"event"')
    logger = MetricLogger(json_file=path, console=make_console())

    logger.event("c", {"step": 2})
    logger.close()

    assert path.read_text() == '{"event": "c", "step": 2}\n'


def test_a_file_that_cannot_be_written_is_reported_once_and_the_run_goes_on(
    tmp_path: Path,
) -> None:
    console = make_console()
    hook = Recorder()
    path = tmp_path / "a folder"
    path.mkdir()
    logger = MetricLogger(json_file=path, hooks=[hook], console=console)

    logger.event("train_stats", {"step": 1})
    logger.event("train_stats", {"step": 2})
    logger.close()

    assert shown_on(console).count(f"error: cannot write {path}, the run goes on") == 1
    assert len(hook.events) == 2


def test_events_people_follow_are_lines_of_text_too(tmp_path: Path) -> None:
    console = make_console()
    logger = MetricLogger(file=tmp_path / "log", console=console)

    logger.event("train_step", {"step": 10, "loss": 2.5, "lr": 3e-3})
    logger.event("train_stats", {"step": 10, "grad_norm": 1.0})
    logger.close()

    assert shown_on(console) == "step 10  loss 2.5000  lr 3.00e-03\n"
    assert (tmp_path / "log").read_text().endswith(" INFO step 10  loss 2.5000  lr 3.00e-03\n")


def test_the_console_leaves_events_to_a_hook_that_shows_them(tmp_path: Path) -> None:
    class Shower(Recorder):
        draws_progress = True

    console = make_console()
    logger = MetricLogger(file=tmp_path / "log", hooks=[Shower()], console=console)

    logger.event("train_step", {"step": 10, "loss": 2.5})
    logger.close()

    assert shown_on(console) == ""
    assert "step 10  loss 2.5000" in (tmp_path / "log").read_text()


def test_hooks_are_functions_or_objects_and_get_every_event_in_order() -> None:
    calls: list[str] = []
    recorder = Recorder()
    logger = MetricLogger(
        hooks=[lambda event, payload: calls.append(event)], console=make_console()
    )
    logger.event("train_start", {"step": 0})
    logger.add_hook(recorder)
    logger.event("train_end", {"step": 1, "x": [1]})
    logger.close()

    assert calls == ["train_start", "train_end"]
    assert recorder.events == [("train_end", {"step": 1, "x": [1]})]
    assert recorder.closed == 1


def test_every_hook_has_its_own_copy_of_the_payload(tmp_path: Path) -> None:
    def spoil(event: str, payload: Any) -> None:
        payload["nested"]["list"].append("spoilt")
        payload.clear()

    recorder = Recorder()
    path = tmp_path / "json"
    logger = MetricLogger(hooks=[spoil, recorder], json_file=path, console=make_console())
    payload = {"step": 1, "nested": {"list": [1]}}

    logger.event("x", payload)
    logger.close()

    assert recorder.events == [("x", {"step": 1, "nested": {"list": [1]}})]
    assert payload == {"step": 1, "nested": {"list": [1]}}
    assert read_records(path) == [{"event": "x", "step": 1, "nested": {"list": [1]}}]


def test_hooks_get_numbers_as_they_are_not_as_json() -> None:
    recorder = Recorder()
    logger = MetricLogger(hooks=[recorder], console=make_console())

    logger.event("train_step", {"step": 1, "loss": float("inf")})

    assert recorder.events[0][1]["loss"] == float("inf")


def test_a_failing_hook_is_reported_once_with_its_name_and_stops_nothing(tmp_path: Path) -> None:
    console = make_console()
    recorder = Recorder()
    path = tmp_path / "json"
    logger = MetricLogger(hooks=[Broken(), recorder], json_file=path, console=console)

    logger.event("a", {"step": 1})
    logger.event("b", {"step": 2})
    logger.close()

    assert shown_on(console) == (
        "error: the logging hook Broken failed, the run goes on: RuntimeError: no network for a\n"
    )
    assert [event for event, _ in recorder.events] == ["a", "b"]
    assert recorder.closed == 1
    assert read_records(path) == [
        {"event": "a", "step": 1},
        {
            "event": "hook_failed",
            "step": 1,
            "hook": "Broken",
            "reason": "RuntimeError: no network for a",
        },
        {"event": "b", "step": 2},
    ]


def test_a_failing_function_is_named_as_well() -> None:
    console = make_console()

    def send_home(event: str, payload: Mapping[str, Any]) -> None:
        raise OSError("gone")

    MetricLogger(hooks=[send_home], console=console).event("a", {})

    assert "send_home failed, the run goes on: OSError: gone" in shown_on(console)


def test_two_loggers_share_no_file_handler_or_name(tmp_path: Path) -> None:
    consoles = [make_console(), make_console()]
    loggers = [
        MetricLogger(
            file=tmp_path / f"log{index}", json_file=tmp_path / f"json{index}", console=console
        )
        for index, console in enumerate(consoles)
    ]
    handlers_of_the_process = list(logging.getLogger().handlers)
    names_of_the_process = set(logging.root.manager.loggerDict)

    for index, logger in enumerate(loggers):
        logger.info(f"text {index}")
        logger.event("x", {"step": index})
    loggers[0].close()
    loggers[1].info("still open")
    loggers[1].close()

    assert shown_on(consoles[0]) == "text 0\n"
    assert shown_on(consoles[1]) == "text 1\nstill open\n"
    assert "text 1" not in (tmp_path / "log0").read_text()
    assert read_records(tmp_path / "json0") == [{"event": "x", "step": 0}]
    assert read_records(tmp_path / "json1") == [{"event": "x", "step": 1}]
    assert logging.getLogger().handlers == handlers_of_the_process
    assert set(logging.root.manager.loggerDict) == names_of_the_process


def test_text_goes_to_the_current_standard_output_by_default(
    capsys: pytest.CaptureFixture[str],
) -> None:
    logger = MetricLogger()

    logger.warning("without a file, logging must not write to stderr by itself")

    captured = capsys.readouterr()
    assert captured.out == "warning: without a file, logging must not write to stderr by itself\n"
    assert captured.err == ""


def test_a_terminal_that_cannot_show_a_character_shows_its_escape() -> None:
    file = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    logger = MetricLogger(console=Console(file=file))

    logger.info("café \ud83d")
    file.flush()

    assert file.buffer.getvalue() == b"caf\\xe9 \\ud83d\n"  # type: ignore[attr-defined]


def test_the_room_does_not_import_torch(tmp_path: Path) -> None:
    names = ["logger", "progress", "tensorboard", "wandb", "mlflow"]
    program = (
        "import sys\n"
        + "".join(f"import speedtronic.metrics.{name}\n" for name in names)
        + "from speedtronic.metrics.logger import MetricLogger\n"
        "from speedtronic.metrics.tensorboard import TensorBoardHook\n"
        "from speedtronic.metrics.progress import ProgressHook\n"
        "logger = MetricLogger(hooks=[TensorBoardHook(sys.argv[1]), ProgressHook(3)])\n"
        "logger.event('train_step', {'step': 1, 'loss': 1.0})\n"
        "logger.event('eval', {'step': 1, 'loss': 1.0, 'sample': 'a'})\n"
        "logger.close()\n"
        "assert 'torch' not in sys.modules\n"
    )

    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True)
