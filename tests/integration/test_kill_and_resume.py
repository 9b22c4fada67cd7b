"""A run that is killed and resumed ends bit for bit where an undisturbed one does."""

from __future__ import annotations

import json
import random
import signal
from pathlib import Path

import pytest

from tests.integration.runs import assert_same_run, records, start, stop, train, wait_for_step

BASE = (
    "model=nano",
    "model.dropout=0.1",
    "data=text",
    "data.path=text.txt",
    "data.micro_batch_size=4",
    "data.target_batch_size=8",
    "model.max_seq_len=32",
    "checkpoint.every_steps=7",
    "evaluation.every_steps=20",
    "evaluation.max_batches=3",
    "logging.every_steps=1",
    "logging.tensorboard=false",
    "logging.plots=false",
    "data.max_steps=60",
)


@pytest.fixture
def workdir(tmp_path: Path) -> Path:
    words = random.Random(0)
    lines = [
        " ".join(words.choice(["to", "be", "or", "not", "that"]) for _ in range(9))
        for _ in range(400)
    ]
    (tmp_path / "text.txt").write_text("\n".join(lines))
    return tmp_path


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_kill_9_three_times_and_resume_equals_an_undisturbed_run(
    workdir: Path, precision: str
) -> None:
    base = (*BASE, f"precision={precision}")
    undisturbed = train(*base, "run_dir=A", cwd=workdir)
    assert undisturbed.returncode == 0, undisturbed.stderr
    for step in (9, 30, 50):
        process = start(*base, "run_dir=B", "resume=true", cwd=workdir)
        wait_for_step(process, workdir / "B", step)
        assert stop(process, signal.SIGKILL)[0] == -9
    # A bare resume needs no other word: the first start's overrides come back.
    last = train("run_dir=B", "resume=true", cwd=workdir)
    assert last.returncode == 0, last.stderr
    assert_same_run(workdir / "A", workdir / "B")
    steps = [record["step"] for record in records(workdir / "B", "train_step")]
    assert steps == list(range(1, 61))


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_saves_a_checkpoint_and_the_resumed_run_is_exact(
    workdir: Path, number: signal.Signals, status: int
) -> None:
    assert train(*BASE, "run_dir=A", cwd=workdir).returncode == 0
    process = start(*BASE, "run_dir=B", cwd=workdir)
    wait_for_step(process, workdir / "B", 16)
    returncode, output = stop(process, number)
    assert returncode == status, output
    interrupted = json.loads((workdir / "B" / "result.json").read_text())
    assert interrupted["status"] == "interrupted"
    saved = sorted(path.name for path in (workdir / "B" / "checkpoints").glob("step_*"))
    assert saved[-1] == f"step_{interrupted['steps']:012d}"
    assert train("run_dir=B", "resume=true", cwd=workdir).returncode == 0
    assert_same_run(workdir / "A", workdir / "B")
