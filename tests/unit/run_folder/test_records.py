"""run.json, result.json, and metrics that hold each step once."""

from __future__ import annotations

import json
import math
import os
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from speedtronic.run_folder.layout import RunFolder
from speedtronic.run_folder.records import (
    ResultRecord,
    begin_segment,
    end_segment,
    read_result,
    supersede_records,
    total_elapsed_s,
    write_result,
)


def read(path: Path) -> dict[str, Any]:
    content = json.loads(path.read_text())
    assert isinstance(content, dict)
    return content


def line(step: int, event: str = "train_step") -> str:
    return json.dumps({"event": event, "step": step, "loss": step / 2}) + "\n"


def test_two_segments_keep_their_own_argv_steps_and_status(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert begin_segment(folder, argv=["train.py", "seed=1"], facts={"bytes": 10}) == 1
    assert read(folder.run_json)["status"] == "running"
    end_segment(folder, status="interrupted", steps=5, elapsed_s=2.5)
    assert begin_segment(folder, argv=["train.py", "resume=true"], step=5) == 2
    end_segment(folder, status="failed", steps=9, elapsed_s=1.5, error="boom")
    run = read(folder.run_json)
    first, second = run["segments"]
    assert (first["segment"], first["first_step"], first["steps"]) == (1, 0, 5)
    assert (second["segment"], second["first_step"], second["steps"]) == (2, 5, 9)
    assert first["argv"] == ["train.py", "seed=1"]
    assert second["argv"] == ["train.py", "resume=true"]
    assert (first["status"], second["status"], run["status"]) == ("interrupted", "failed", "failed")
    assert second["error"] == "boom"
    assert run["steps"] == 9
    assert run["facts"] == {"bytes": 10}
    assert run["created"] == first["started"]
    assert first["pid"] == os.getpid()
    assert first["versions"]["torch"].startswith("2.")
    assert total_elapsed_s(folder) == 4.0


def test_a_killed_segment_is_closed_with_the_time_and_step_it_reached(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    begin_segment(folder, argv=[])
    folder.metrics.write_text(line(1) + line(12) + '{"event": "tra')
    started = datetime.fromisoformat(read(folder.run_json)["segments"][0]["started"]).timestamp()
    os.utime(folder.metrics, (started + 30, started + 30))
    begin_segment(folder, argv=[], step=10)
    killed, running = read(folder.run_json)["segments"]
    assert killed["status"] == "killed"
    assert killed["steps"] == 12
    assert killed["elapsed_s"] == pytest.approx(30, abs=0.01)
    assert running["status"] == "running"
    end_segment(folder, status="completed", steps=20, elapsed_s=5)
    assert total_elapsed_s(folder) == pytest.approx(35, abs=0.01)


def test_facts_of_a_later_segment_replace_those_of_the_same_name(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    begin_segment(folder, argv=[], facts={"data": {"files": 3}, "precision": "fp32"})
    begin_segment(folder, argv=[], facts={"precision": "bf16", "rate": math.inf})
    facts = read(folder.run_json)["facts"]
    assert facts == {"data": {"files": 3}, "precision": "bf16", "rate": None}


def test_ending_a_segment_that_never_began_is_a_mistake_of_ours(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="begin_segment comes first"):
        end_segment(RunFolder(tmp_path), status="completed", steps=1, elapsed_s=1)


def test_no_secret_reaches_run_json(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    begin_segment(folder, argv=["train.py", "distributed.token=hf_secret", "data.tokenizer=byte"])
    assert "hf_secret" not in folder.run_json.read_text()
    argv = read(folder.run_json)["segments"][0]["argv"]
    assert argv == ["train.py", "distributed.token=***", "data.tokenizer=byte"]


def test_result_json_has_the_promised_keys_and_no_bare_nan(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert read_result(folder) is None
    record = ResultRecord("completed", steps=3, final_loss=math.nan, fallbacks=("compile: no",))
    write_result(folder, record)
    assert read_result(folder) == {
        "status": "completed",
        "steps": 3,
        "samples": 0,
        "tokens": 0,
        "final_loss": None,
        "final_eval_loss": None,
        "best_eval_loss": None,
        "best_eval_step": None,
        "elapsed_s": 0.0,
        "tokens_per_sec": None,
        "skipped_steps": 0,
        "fallbacks": ["compile: no"],
        "exact": True,
        "run_dir": None,
        "error": None,
    }


def test_records_after_the_checkpoint_move_and_the_torn_line_goes(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    kept = line(0, "train_start") + line(1) + line(2) + line(2, "eval")
    later = line(3) + line(3, "eval") + line(4)
    folder.metrics.write_text(kept + later + '{"event": "train_step", "step": 5, "lo')
    assert supersede_records(folder, after_step=2) == 3
    assert folder.metrics.read_text() == kept
    assert folder.superseded.read_text() == later
    folder.metrics.write_text(kept + line(3))
    assert supersede_records(folder, after_step=2) == 1
    assert folder.superseded.read_text() == later + line(3)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "metrics.jsonl",
        "metrics.superseded.jsonl",
    ]


def test_a_whole_last_line_without_its_end_is_kept_and_ended(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.metrics.write_text(line(1) + line(2).rstrip("\n"))
    assert supersede_records(folder, after_step=2) == 0
    assert folder.metrics.read_text() == line(1) + line(2)
    assert not folder.superseded.exists()


def test_metrics_with_nothing_to_move_are_not_rewritten(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert supersede_records(folder, after_step=0) == 0
    folder.metrics.write_text(line(1) + json.dumps({"event": "note"}) + "\n")
    before = folder.metrics.stat()
    assert supersede_records(folder, after_step=1) == 0
    assert folder.metrics.stat().st_ino == before.st_ino


def test_bytes_a_power_cut_left_are_dropped(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.metrics.write_bytes(line(1).encode() + b"\0\0\0\xff\n[1]\n" + line(2).encode())
    assert supersede_records(folder, after_step=5) == 0
    assert folder.metrics.read_text() == line(1) + line(2)
