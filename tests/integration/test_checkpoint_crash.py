"""A process that is killed at any moment of saving leaves a folder that loads."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

# One process imports torch and forks a writer for each kill, so that ten kills cost seconds. The
# writer reports each step that is durable through a pipe; after the kill another child, as a fresh
# process would, loads the newest checkpoint and looks at what was left.
NURSERY = """
import json, os, random, signal, sys, time, warnings
from pathlib import Path
import torch
from speedtronic.checkpoint.folder import Inspector, candidates
from speedtronic.checkpoint.manager import CheckpointManager

directory, num_kills = Path(sys.argv[1]), int(sys.argv[2])
chance = random.Random(20260101)


def state_of(step):
    return {
        "model": {"w": torch.full((64_000,), float(step)), "v": torch.full((8,), float(step))},
        "optimizer": {0: torch.full((64_000,), -float(step))},
        "step": step,
    }


def write(pipe, first, async_save):
    def report(name, payload):
        if name == "checkpoint":
            os.write(pipe, b"%d\\n" % payload["step"])

    manager = CheckpointManager(
        directory, keep_last=2, keep_best=1, async_save=async_save, on_event=report
    )
    for step in range(first, first + 100_000):
        manager.save(step, state_of(step), metric=float(step % 7))
        if step % 3 == 0:
            manager.save(step, state_of(step), metric=float(step % 7))
        manager.wait()


def look():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        state = CheckpointManager(directory).load_latest()
    step = None if state is None else state["step"]
    is_exact = state is None or (
        bool((state["model"]["w"] == step).all()) and bool((state["optimizer"][0] == -step).all())
    )
    inspector = Inspector()
    return {
        "step": step,
        "exact": is_exact,
        "skipped": [str(warning.message) for warning in caught],
        "damaged": [
            inspector.verify(path).problem
            for path in candidates(directory)
            if inspector.verify(path).problem
        ],
        "best": None if state is None else str(CheckpointManager(directory).best_path()),
    }


def in_child(work):
    read, written = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        try:
            work(written)
        finally:
            os._exit(0)
    os.close(written)
    return pid, read


for kill in range(num_kills):
    first = 1 + 1000 * kill
    pid, read = in_child(lambda pipe: write(pipe, first, kill % 2 == 0))
    time.sleep(0.03 + 0.25 * chance.random())
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    with os.fdopen(read) as lines:
        durable = [int(line) for line in lines.read().split()]
    pid, read = in_child(lambda pipe: os.write(pipe, json.dumps(look()).encode()))
    with os.fdopen(read) as text:
        found = json.loads(text.read())
    os.waitpid(pid, 0)
    print(json.dumps({"first": first, "durable": durable[-1:], **found}), flush=True)

# A writer that lives on cleans up after the dead.
manager = CheckpointManager(directory, keep_last=2, keep_best=1)
manager.save(10**6, state_of(10**6))
manager.close()
print(json.dumps(sorted(path.name for path in directory.iterdir())))
"""


def test_ten_kills_at_random_moments_never_lose_a_durable_checkpoint(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", NURSERY, str(tmp_path / "checkpoints"), "10"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    *kills, names = map(json.loads, done.stdout.splitlines())
    assert len(kills) == 10
    newest_durable = 0
    for found in kills:
        newest_durable = max([newest_durable, *found["durable"]])
        assert found["exact"], found
        assert found["skipped"] == [], found
        assert found["damaged"] == [], found
        assert (found["step"] or 0) >= newest_durable, found
        newest_durable = found["step"] or 0
    assert newest_durable > 1000, "hardly any save was finished before its kill"
    assert len(names) in {2, 3}, names  # two newest, and the best when it is neither
    assert all(name.startswith("step_") for name in names), names
    assert names[-1] == "step_000001000000"
