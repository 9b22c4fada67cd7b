"""What the newest runs of ``make train`` and ``make race`` below outputs/ reached."""

from __future__ import annotations

import json
from pathlib import Path

from racing.runs import read_runs
from racing.settings import answer_race, group_runs, keep_newest

from benching.figures import Figure, show

FIRST_RUN_STEPS = 300


def bench_learning() -> None:
    """Losses and steps of runs that are already there; nothing is trained here."""
    results = [
        result
        for path in sorted(Path("outputs/first_run").glob("*/result.json"))
        if (result := json.loads(path.read_text()))["steps"] == FIRST_RUN_STEPS
        and result["final_eval_loss"] is not None
    ]
    if results:
        name = f"held-out loss of the newest first run, {FIRST_RUN_STEPS} steps"
        show(Figure(name, results[-1]["final_eval_loss"], "nats", target=1.65))
    else:
        print("  no finished run of `make train` below outputs/first_run")
    folder = Path("outputs/optimizer_race")
    runs = read_runs(folder)[0] if folder.is_dir() else []
    names = {run.optimizer for run in runs}
    if not {"adamw", "muon"} <= names:
        print(f"  no runs of `make race` below {folder}")
        return
    settings = group_runs(keep_newest(runs)[0])
    for answer in answer_race(settings, baseline="adamw"):
        if answer.reached is None:
            print(f"  {answer.optimizer} does not reach the best loss of adamw in the race")
            continue
        ratio = answer.reached.steps / answer.baseline.steps
        name = f"steps of {answer.optimizer} to the best loss of adamw"
        show(Figure(name, ratio, "x", target=0.62))
