"""Long versions of promises that the fast suite tests once: run with ``make soak``."""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path

import pytest

from tests.integration.runs import (
    assert_same_run,
    records,
    start,
    stop,
    train,
    wait_for_step,
)

BASE = (
    "model=tiny",
    "model.dropout=0.1",
    "data=text",
    "data.path=text.txt",
    "data.micro_batch_size=8",
    "data.target_batch_size=16",
    "model.max_seq_len=64",
    "checkpoint.every_steps=7",
    "evaluation.every_steps=20",
    "evaluation.max_batches=10",
    "logging.every_steps=1",
    "data.max_steps=120",
)


@pytest.fixture
def workdir(tmp_path: Path) -> Path:
    words = random.Random(0)
    vocabulary = ["to", "be", "or", "not", "that", "is", "the", "question"]
    lines = [" ".join(words.choice(vocabulary) for _ in range(9)) for _ in range(4000)]
    (tmp_path / "text.txt").write_text("\n".join(lines))
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_ten_interruptions_of_any_kind_leave_an_exact_run(workdir: Path, precision: str) -> None:
    base = (*BASE, f"precision={precision}")
    assert train(*base, "run_dir=A", cwd=workdir, timeout_s=600).returncode == 0
    chance = random.Random(1)
    kinds = [signal.SIGKILL] * 6 + [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2]
    chance.shuffle(kinds)
    reached = 0
    for number in kinds:
        process = start(*base, "run_dir=B", "resume=true", cwd=workdir)
        wait_for_step(process, workdir / "B", reached + chance.randint(1, 11), timeout_s=300)
        time.sleep(chance.random() * 0.3)
        stop(process, number)
        saved = [record["step"] for record in records(workdir / "B", "checkpoint")]
        reached = max(saved, default=0)
    assert train("run_dir=B", "resume=true", cwd=workdir, timeout_s=600).returncode == 0
    assert_same_run(workdir / "A", workdir / "B")
    steps = [record["step"] for record in records(workdir / "B", "train_step")]
    assert steps == list(range(1, 121))
