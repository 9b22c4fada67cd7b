"""Start, kill and compare whole runs through the command line, as a user would."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

ROOT = Path(__file__).resolve().parents[2]
TRAIN = ROOT / "scripts" / "train.py"


def environment() -> dict[str, str]:
    """Return the environment of a run: one thread, so that tests share the cores."""
    return os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


def train(*overrides: str, cwd: Path, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
    """Run ``scripts/train.py`` to its end."""
    return subprocess.run(
        [sys.executable, str(TRAIN), *overrides],
        cwd=cwd,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def start(*overrides: str, cwd: Path) -> subprocess.Popen[str]:
    """Start ``scripts/train.py`` and return at once."""
    return subprocess.Popen(
        [sys.executable, str(TRAIN), *overrides],
        cwd=cwd,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def records(folder: Path, *events: str) -> list[dict[str, Any]]:
    """Return the records of some events, in file order; a torn last line is left out."""
    path = folder / "metrics.jsonl"
    if not path.exists():
        return []
    parsed = []
    for line in path.read_text().splitlines():
        try:
            parsed.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return [record for record in parsed if record["event"] in events]


def wait_for_step(
    process: subprocess.Popen[str], folder: Path, step: int, *, timeout_s: float = 90
) -> None:
    """Wait until a running process has logged a step."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        steps = [record["step"] for record in records(folder, "train_step")]
        if steps and max(steps) >= step:
            return
        if process.poll() is not None:
            output = process.stdout.read() if process.stdout else ""
            raise AssertionError(
                f"the run ended with {process.returncode} before step {step}:\n{output}"
            )
        time.sleep(0.01)
    process.kill()
    raise AssertionError(f"step {step} was not reached in {timeout_s} s")


def stop(process: subprocess.Popen[str], number: signal.Signals) -> tuple[int, str]:
    """Send a signal, wait for the end and return exit status and output."""
    process.send_signal(number)
    output, _ = process.communicate(timeout=60)
    return process.returncode, output


def loss_curve(folder: Path) -> list[tuple[str, int, float, float | None]]:
    """Return (event, step, loss, lr) of every train_step and eval record."""
    return [
        (record["event"], record["step"], record["loss"], record.get("lr"))
        for record in records(folder, "train_step", "eval")
    ]


def last_checkpoint(folder: Path) -> Path:
    """Return the checkpoint folder of the highest step."""
    return max((folder / "checkpoints").glob("step_*"))


def assert_same_run(first: Path, second: Path) -> None:
    """Assert that two runs logged the same losses and ended in the same tensors, bit for bit."""
    assert loss_curve(first) == loss_curve(second)
    results = [json.loads((folder / "result.json").read_text()) for folder in (first, second)]
    for key in (
        "steps",
        "samples",
        "tokens",
        "final_loss",
        "final_eval_loss",
        "best_eval_loss",
        "best_eval_step",
    ):
        assert results[0][key] == results[1][key], key
    one, two = last_checkpoint(first), last_checkpoint(second)
    assert one.name == two.name
    compared = 0
    for file in sorted(one.glob("*.safetensors")):
        expected, found = load_file(file), load_file(two / file.name)
        assert expected.keys() == found.keys()
        for name, tensor in expected.items():
            assert torch.equal(tensor, found[name]), f"{file.name}: {name} differs"
            compared += 1
    assert compared > 0
