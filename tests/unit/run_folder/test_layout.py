"""Where files lie, and when a folder holds a run that a fresh start must not mix with."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from speedtronic.run_folder.layout import RunFolder, find_resumable, read_json


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def run_json(*statuses: str, steps: int = 0) -> str:
    return json.dumps({"steps": steps, "segments": [{"status": status} for status in statuses]})


def test_every_file_has_its_documented_name(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    names = {
        folder.config_json: "config.json",
        folder.run_json: "run.json",
        folder.result_json: "result.json",
        folder.metrics: "metrics.jsonl",
        folder.superseded: "metrics.superseded.jsonl",
        folder.checkpoints: "checkpoints",
        folder.tensorboard: "tensorboard",
        folder.curves: "curves.png",
        folder.log: "train.log",
        folder.hydra: ".hydra",
        folder.tokenizer: "tokenizer.json",
        folder.lock: ".lock",
        folder.owner_json: ".lock.json",
    }
    assert all(path == tmp_path / name for path, name in names.items())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("checkpoints/step_000000000020/meta.json", "{}"),
        ("metrics.jsonl", '{"event": "train_start", "step": 0}\n{"event": "x", "step": 1}\n'),
        ("run.json", run_json("running")),
        ("run.json", run_json("failed", "killed")),
        ("run.json", run_json("failed", steps=3)),
        ("run.json", "{torn"),
        ("result.json", "{}"),
    ],
)
def test_a_folder_with_progress_or_a_start_holds_a_run(
    tmp_path: Path, file: str, text: str
) -> None:
    write(tmp_path / file, text)
    assert RunFolder(tmp_path).holds_run()


@pytest.mark.parametrize(
    ("file", "text"),
    [
        (".hydra/config.yaml", "a: 1"),
        (".lock", ""),
        ("run.json", run_json("failed")),
        ("metrics.jsonl", '{"event": "train_start", "step": 0}\n'),
        ("checkpoints/.tmp-12", ""),
        ("notes.txt", "mine"),
    ],
)
def test_a_start_that_did_nothing_is_no_run(tmp_path: Path, file: str, text: str) -> None:
    write(tmp_path / file, text)
    assert not RunFolder(tmp_path).holds_run()
    assert not RunFolder(tmp_path / "missing").holds_run()


def test_the_recorded_step_is_the_highest_that_any_file_names(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert folder.recorded_steps() == 0
    assert folder.latest_step() is None
    write(folder.checkpoints / "step_000000000020" / "meta.json", "{}")
    write(folder.checkpoints / "step_000000000007" / "meta.json", "{}")
    assert folder.latest_step() == 20
    write(folder.metrics, '{"event": "train_step", "step": 23}\n{"event": "train_step", "st')
    assert folder.recorded_steps() == 23
    write(folder.result_json, '{"steps": 40}')
    assert folder.recorded_steps() == 40


def test_resumable_runs_come_newest_first_and_need_a_checkpoint(tmp_path: Path) -> None:
    for at, name in enumerate(["old", "middle", "new"]):
        write(tmp_path / name / "checkpoints" / f"step_{at:012d}" / "meta.json", "{}")
        os.utime(tmp_path / name / "checkpoints", (1000 + at, 1000 + at))
    write(tmp_path / "empty" / "run.json", "{}")
    found = find_resumable(tmp_path, limit=2)
    assert [(run.path.name, run.step) for run in found] == [("new", 2), ("middle", 1)]
    assert find_resumable(tmp_path / "missing", limit=2) == []


@pytest.mark.parametrize("text", ["", "{", "[1]", "null"])
def test_a_file_without_an_object_reads_as_none(tmp_path: Path, text: str) -> None:
    write(tmp_path / "x.json", text)
    assert read_json(tmp_path / "x.json") is None
    assert read_json(tmp_path / "missing.json") is None
