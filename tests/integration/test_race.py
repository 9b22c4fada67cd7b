"""The optimizer race: made-up run folders for the arithmetic, and two tiny sweeps for the whole."""

from __future__ import annotations

import csv
import doctest
import json
import os
import re
import shutil
import statistics
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir

from speedtronic.config import load_config
from speedtronic.core.errors import ConfigError
from tests.integration.runs import TRAIN, train

ROOT = Path(__file__).parents[2]
RACE = ROOT / "scripts" / "race.py"
if str(RACE.parent) not in sys.path:  # where python puts it when it runs the script
    sys.path.append(str(RACE.parent))

import race  # noqa: E402 - found by the line above
from racing import settings as arithmetic  # noqa: E402 - as above
from racing import words  # noqa: E402 - as above
from racing.picture import draw_race  # noqa: E402 - as above
from racing.runs import Run, measure_step_seconds, name_optimizer, read_runs  # noqa: E402 - as above
from racing.settings import answer_race, find_bests, group_runs, keep_newest  # noqa: E402 - as above

ADAMW = {"_target_": "speedtronic.config.AdamWSettings", "lr": 1e-3, "betas": [0.9, 0.95]}
SGD = {"_target_": "torch.optim.SGD", "lr": 0.1}


def made_up(**given: Any) -> Run:
    """Return a run that was never trained; its optimizer is told by ``lr`` alone."""
    lr = given.pop("lr", 1e-3)
    config = {"optimizer._target_": "x", "optimizer.lr": lr, **given.pop("config", {})}
    fields = {"optimizer": "adamw", "seed": 1, "steps": 240, "folder": Path(f"{id(given)}")}
    return Run(**{**fields, "config": config, **given})


def write_run(folder: Path, **given: Any) -> None:
    """Write what a training run leaves behind, as far as the race reads it."""
    steps, loss = given.get("steps", 100), given.get("loss", 2.0)
    config = {
        "run": {"name": folder.name, "seed": given.get("seed", 1), "max_steps": 1000},
        "data": {"path": given.get("path", "a.txt"), "max_steps": given.get("horizon", steps)},
        "optimizer": given.get("optimizer", ADAMW),
        "scheduler": {"min_lr_ratio": given.get("min_lr_ratio", 0)},
        "logging": {"json_file": "metrics.jsonl", "hooks": [folder.name]},
    }
    result = {
        "status": given.get("status", "completed"),
        "steps": steps,
        "final_eval_loss": loss,
        "error": given.get("error"),
    }
    records = [
        {"event": "train_step", "step": steps, "steps_per_sec": given.get("speed", 10.0)},
        {"event": "eval", "step": steps // 2, "loss": loss and loss + 1, "seconds": 0.0},
        {"event": "eval", "step": steps, "loss": loss, "seconds": 0.0},
    ]
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "result.json").write_text(json.dumps(result))
    (folder / "run.json").write_text(json.dumps({"created": given.get("created", "2026")}))
    (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, records)))


@pytest.fixture
def two_optimizers(tmp_path: Path) -> Path:
    """AdamW's best is 1.9 after 400 steps; SGD ends at 2.4, 1.8 and 1.5 after 100, 200 and 400."""
    for seed, off in ((1, -0.1), (2, 0.1)):
        write_run(tmp_path / f"a{seed}", seed=seed, steps=400, loss=2.1 + off)
        better = ADAMW | {"lr": 2e-3}
        write_run(tmp_path / f"b{seed}", seed=seed, steps=400, loss=1.9 + off, optimizer=better)
        for steps, loss in ((100, 2.4), (200, 1.8), (400, 1.5)):
            name = f"c{steps}-{seed}"
            write_run(
                tmp_path / name, seed=seed, steps=steps, loss=loss + off, optimizer=SGD, speed=8.0
            )
    return tmp_path


# ---------------------------------------------------------------------------- arithmetic


def test_a_setting_has_the_mean_and_the_sample_deviation_of_its_seeds() -> None:
    runs = [made_up(seed=seed, loss=loss) for seed, loss in ((1, 1.0), (2, 2.0), (3, 6.0))]

    (setting,) = group_runs(runs)

    assert setting.mean == 3.0
    assert setting.deviation == pytest.approx(7**0.5)  # (4 + 1 + 9) / 2
    assert setting.losses == [1.0, 2.0, 6.0]


def test_one_seed_has_no_deviation() -> None:
    (setting,) = group_runs([made_up(loss=1.5)])

    assert (setting.mean, setting.deviation, setting.values) == (1.5, None, {})


def test_seconds_of_a_setting_are_the_median_over_all_its_seeds() -> None:
    runs = [made_up(seed=1, loss=1, step_s=(1.0, 9.0)), made_up(seed=2, loss=1, step_s=(2.0,))]

    assert group_runs(runs)[0].step_s == 2.0
    assert group_runs([made_up(loss=1)])[0].step_s is None


def test_settings_are_told_by_what_differs_within_an_optimizer_and_between_all() -> None:
    runs = [
        made_up(loss=1, lr=1e-3, config={"scheduler.kind": "wsd", "optimizer.eps": 1}),
        made_up(loss=2, lr=2e-3, config={"scheduler.kind": "linear", "optimizer.eps": 1}),
        made_up(loss=3, optimizer="sgd", config={"scheduler.kind": "wsd", "optimizer.eps": 2}),
    ]

    settings = group_runs(runs)

    assert [setting.values for setting in settings] == [
        {"optimizer.lr": 1e-3, "scheduler.kind": "wsd"},
        {"optimizer.lr": 2e-3, "scheduler.kind": "linear"},
        {"scheduler.kind": "wsd"},
    ]


def test_steps_make_settings_of_their_own() -> None:
    settings = group_runs([made_up(loss=1, steps=240), made_up(loss=2, steps=100)])

    assert [(setting.steps, setting.mean) for setting in settings] == [(100, 2), (240, 1)]


def test_of_two_runs_of_a_setting_and_seed_the_one_that_started_last_counts() -> None:
    old = made_up(loss=1.0, created="2026-01-01", folder=Path("b"))
    new = made_up(loss=2.0, created="2026-01-02", folder=Path("a"))
    other = made_up(loss=3.0, seed=2, created="2025-01-01")

    assert keep_newest([new, old, other]) == ([new, other], [old])


def test_a_setting_that_lacks_a_seed_is_never_the_best() -> None:
    runs = [
        *(made_up(seed=seed, loss=2.0, lr=1e-3) for seed in (1, 2)),
        made_up(seed=1, loss=1.0, lr=2e-3),
    ]

    whole, lacking = group_runs(runs)

    assert (whole.is_complete, lacking.is_complete, lacking.wanted_seeds) == (True, False, 2)
    assert find_bests([whole, lacking], "adamw") == {240: whole}


def test_the_answer_is_the_shortest_horizon_at_most_at_the_baselines_best() -> None:
    runs = [
        made_up(loss=1.0, steps=50, step_s=(0.1,)),  # not the longest horizon of the baseline
        made_up(loss=2.0, steps=200, step_s=(0.1,)),
        made_up(loss=2.5, steps=200, lr=5e-3),
        made_up(loss=3.0, steps=50, optimizer="muon", step_s=(0.3,)),
        made_up(loss=2.4, steps=100, optimizer="muon", lr=5e-3, step_s=(0.3,)),
        made_up(loss=2.0, steps=100, optimizer="muon", step_s=(0.3,)),
        made_up(loss=1.2, steps=200, optimizer="muon", step_s=(0.3,)),
    ]

    (answer,) = answer_race(group_runs(runs), baseline="adamw")

    assert (answer.baseline.steps, answer.baseline.mean) == (200, 2.0)
    assert answer.reached is not None
    assert (answer.reached.steps, answer.reached.mean) == (100, 2.0)
    assert answer.steps_ratio == 0.5
    assert answer.time_ratio == pytest.approx(1.5)  # half the steps, three times the time of each
    assert (answer.shorter_steps, answer.estimated_steps) == (50, 100)
    assert answer.closest.mean == 1.2


def test_the_estimate_is_linear_in_the_logarithm_of_steps() -> None:
    ends = {"shorter_steps": 100, "shorter_loss": 3.0, "longer_steps": 400, "longer_loss": 2.0}

    assert arithmetic.interpolate_steps(2.5, **ends) == pytest.approx(200)
    assert arithmetic.interpolate_steps(2.75, **ends) == pytest.approx(100 * 2**0.5)
    assert arithmetic.interpolate_steps(3.0, **ends) == 100
    assert arithmetic.interpolate_steps(2.0, **ends) == pytest.approx(400)


def test_an_optimizer_that_reaches_it_nowhere_names_its_lowest_loss() -> None:
    runs = [
        made_up(loss=2.0, lr=2e-3),
        made_up(loss=2.2, lr=4e-3),
        made_up(loss=2.5, optimizer="muon", steps=100),
        made_up(loss=2.3, optimizer="muon", steps=240),
    ]

    (answer,) = answer_race(group_runs(runs), baseline="adamw")

    assert (answer.reached, answer.steps_ratio, answer.time_ratio) == (None, None, None)
    assert words.write_answer(answer) == (
        "muon does not reach adamw's best 2.000 (lr 2e-3, 240 steps, 1 seed):"
        " its lowest is 2.300 (240 steps, 1 seed)"
    )
    assert words.write_short_answer(answer) == (
        "muon does not reach adamw's best loss: 2.300 against 2.000"
    )
    assert words.write_estimate(answer) is None


def test_without_a_shorter_run_there_is_no_estimate() -> None:
    runs = [made_up(loss=2.0), made_up(loss=1.9, optimizer="muon", steps=120)]

    (answer,) = answer_race(group_runs(runs), baseline="adamw")

    assert answer.estimated_steps is None
    assert words.write_estimate(answer) == (
        "muon: no run shorter than 120 steps, so it may need fewer"
    )


@pytest.mark.parametrize(
    ("swept", "expected"),
    [
        ({"optimizer.lr": [1, 2], "optimizer.muon_lr": [3, 3]}, "optimizer.lr"),
        ({"optimizer.lr": [1, 1], "optimizer.muon_lr": [3, 4]}, "optimizer.muon_lr"),
        ({"optimizer.lr": [1, 2], "optimizer.muon_lr": [3, 4]}, "optimizer.muon_lr"),
        ({"optimizer.lr": [1, 1], "optimizer.eps": [1, 2]}, "optimizer.lr"),
        ({"optimizer.lr": [None, None], "optimizer.eps": [1, 2]}, None),
    ],
)
def test_the_learning_rate_of_the_picture_is_the_one_that_is_swept(
    swept: dict[str, list[Any]], expected: str | None
) -> None:
    runs = [
        made_up(loss=1, config={key: pair[number] for key, pair in swept.items()})
        for number in (0, 1)
    ]

    assert arithmetic.find_rate_key(group_runs(runs), "adamw") == expected


@pytest.mark.parametrize("module", [words, arithmetic])
def test_examples_in_docstrings_run_as_written(module: Any) -> None:
    result = doctest.testmod(module)

    assert result.attempted > 0
    assert result.failed == 0


# ---------------------------------------------------------------------------- reading


def test_an_optimizer_is_named_by_the_option_of_its_class_that_is_nearest() -> None:
    options = {
        "muon_plus": {"_target_": "a.Muon", "muon_lr": 0.03, "muon_plus": True},
        "muon": {"_target_": "a.Muon", "muon_lr": 0.03, "muon_plus": False},
        "adamw": {"_target_": "a.AdamW"},
    }

    def name(**section: Any) -> str:
        return name_optimizer(section, options)

    assert name(_target_="a.AdamW", lr=1.0) == "adamw"
    assert name(_target_="a.Muon", muon_lr=0.5, muon_plus=False) == "muon"
    assert name(_target_="a.Muon", muon_lr=0.5, muon_plus=True) == "muon_plus"
    assert name(_target_="a.Muon", muon_lr=0.5, muon_plus="row") == "muon"  # a tie: the shorter
    assert name(_target_="torch.optim.SGD") == "SGD"
    assert name(_target_="my_package.LionSettings") == "Lion"


def test_the_seconds_of_an_update_leave_evaluations_out() -> None:
    # The clock stands at 4 s after 10 steps, 7 s after 20, 12 s after 40; an evaluation took 1 s.
    records: list[dict[str, Any]] = [
        {"event": "train_step", "step": 10, "steps_per_sec": 10 / 4},
        {"event": "eval", "step": 10, "loss": 1.0, "seconds": 1.0},
        {"event": "train_step", "step": 20, "steps_per_sec": 20 / 7},
        {"event": "eval", "step": 20, "loss": 1.0, "seconds": 1.0},
        {"event": "eval", "step": 30, "loss": 1.0, "seconds": 1.0},
        {"event": "train_step", "step": 40, "steps_per_sec": 40 / 12},
    ]

    assert measure_step_seconds(records) == pytest.approx([0.4, 0.2, 0.15])


def test_a_clock_that_a_resume_set_back_gives_no_seconds() -> None:
    records = [
        {"event": "train_step", "step": 10, "steps_per_sec": 2.0},
        {"event": "train_step", "step": 20, "steps_per_sec": 20.0},
    ]

    assert measure_step_seconds(records) == [0.5]


def test_a_run_is_read_from_its_folder(tmp_path: Path) -> None:
    write_run(tmp_path / "sweeps" / "0", seed=7, steps=100, loss=1.25, speed=4.0, created="now")

    (run,), left_out = read_runs(tmp_path)

    assert left_out == []
    assert (run.optimizer, run.seed, run.steps, run.loss) == ("adamw", 7, 100, 1.25)
    assert (run.created, run.folder) == ("now", tmp_path / "sweeps" / "0")
    assert (run.curve, run.step_s) == ({50: 2.25, 100: 1.25}, (0.25,))
    assert run.config == {
        "data.path": "a.txt",
        "optimizer._target_": "speedtronic.config.AdamWSettings",
        "optimizer.lr": 1e-3,
        "optimizer.betas": [0.9, 0.95],
        "scheduler.min_lr_ratio": 0,
    }


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"status": "failed", "error": "loss is nan"}, "failed at step 100: loss is nan"),
        ({"status": "interrupted"}, "interrupted at step 100"),
        ({"horizon": 300}, "stopped at step 100 of 300"),
        ({"loss": None}, "no final held-out loss in result.json: not measured or not finite"),
    ],
)
def test_a_run_that_cannot_count_is_left_out_with_its_reason(
    tmp_path: Path, given: dict[str, Any], reason: str
) -> None:
    write_run(tmp_path / "0", **given)
    write_run(tmp_path / "1")

    runs, left_out = read_runs(tmp_path)

    assert [run.folder.name for run in runs] == ["1"]
    assert [(item.folder.name, item.reason) for item in left_out] == [("0", reason)]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("result.json", "no readable result.json: unfinished or killed"),
        ("config.json", "no readable config.json"),
    ],
)
def test_a_run_without_a_file_is_left_out_with_its_reason(
    tmp_path: Path, name: str, reason: str
) -> None:
    write_run(tmp_path / "0")
    (tmp_path / "0" / name).unlink()

    runs, left_out = read_runs(tmp_path)

    assert (runs, [item.reason for item in left_out]) == ([], [reason])


def test_a_torn_record_costs_that_record_alone(tmp_path: Path) -> None:
    write_run(tmp_path / "0", loss=1.0)
    with (tmp_path / "0" / "metrics.jsonl").open("a") as file:
        file.write('\n{"event": "ev')

    assert read_runs(tmp_path)[0][0].curve == {50: 2.0, 100: 1.0}


# ---------------------------------------------------------------------------- what is written


def test_the_tables_hold_means_deviations_and_bests(
    two_optimizers: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(two_optimizers / "z", status="failed", error="out of memory")
    write_run(two_optimizers / "old", steps=400, loss=9.0, created="2025")

    assert race.main([str(two_optimizers)]) == 0

    assert (two_optimizers / "table.md").read_text().splitlines() == [
        "| optimizer | setting | steps | seeds | loss | sd | s/step | best |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | --- |",
        "| adamw | lr 1e-3 | 400 | 2 | 2.1000 | 0.1414 | 0.1000 |  |",
        "| adamw | lr 2e-3 | 400 | 2 | 1.9000 | 0.1414 | 0.1000 | best |",
        "| SGD |  | 100 | 2 | 2.4000 | 0.1414 | 0.1250 | best |",
        "| SGD |  | 200 | 2 | 1.8000 | 0.1414 | 0.1250 | best |",
        "| SGD |  | 400 | 2 | 1.5000 | 0.1414 | 0.1250 | best |",
        "",
        "loss: held-out loss at the end in nats, mean over the seeds; sd: its sample standard"
        " deviation (n - 1); s/step: median seconds of an update; best: lowest mean of the"
        " optimizer at that number of steps.",
        "",
        # 200 / 400 steps, of 0.125 against 0.1 s each; 100 * 2 ** (0.5 / 0.6) = 178.2
        "- SGD reaches adamw's best 1.900 (lr 2e-3, 400 steps, 2 seeds) in 200 steps: 0.50 times"
        " the steps, 0.62 times the training time",
        "- SGD, an estimate, log-linear between the runs of 100 and 200 steps: 178 steps, 0.45"
        " times the steps",
        "",
        "- left out: z: failed at step 100: out of memory",
        "- repeated with the same setting and seed, the newer run counts: not old",
    ]
    rows = list(csv.DictReader((two_optimizers / "table.csv").open()))
    assert [row["best"] for row in rows] == ["0", "1", "1", "1", "1"]
    assert [row["lr"] for row in rows] == ["1e-3", "2e-3", "", "", ""]
    assert [row["seeds"] for row in rows] == ["1 2"] * 5
    assert float(rows[0]["mean"]) == pytest.approx(2.1)
    assert [float(loss) for loss in rows[2]["losses"].split()] == pytest.approx([2.3, 2.5])
    printed = capsys.readouterr().out
    assert "adamw      lr 2e-3    400" in printed
    assert "SGD reaches adamw's best 1.900 (lr 2e-3, 400 steps, 2 seeds) in 200 steps" in printed
    assert "left out: z: failed at step 100: out of memory" in printed
    assert "the newer run counts: not old" in printed


def test_another_baseline_turns_the_question_round(
    two_optimizers: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert race.main([str(two_optimizers), "baseline=SGD"]) == 0

    assert "adamw does not reach SGD's best 1.500 (400 steps, 2 seeds)" in capsys.readouterr().out


def test_tables_and_picture_can_go_elsewhere(two_optimizers: Path, tmp_path: Path) -> None:
    before = sorted(two_optimizers.rglob("*"))
    out = tmp_path.parent / f"{tmp_path.name}-out" / "deep"

    assert race.main([str(two_optimizers), f"out={out}"]) == 0

    assert sorted(path.name for path in out.iterdir()) == ["race.png", "table.csv", "table.md"]
    assert sorted(two_optimizers.rglob("*")) == before


def test_a_setting_that_lacks_a_seed_is_named(
    two_optimizers: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(two_optimizers / "b2")

    race.main([str(two_optimizers)])

    printed = capsys.readouterr().out
    assert "never best, because it lacks seeds (1 of 2): adamw lr 2e-3, 400 steps" in printed
    assert "SGD reaches adamw's best 2.100 (lr 1e-3, 400 steps, 2 seeds)" in printed


def test_a_race_of_more_than_optimizers_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path / "0", min_lr_ratio=0)
    write_run(tmp_path / "1", min_lr_ratio=0.1, optimizer=SGD)

    race.main([str(tmp_path)])

    note = "compares more than optimizers: scheduler.min_lr_ratio is 0, 0.1"
    assert note in capsys.readouterr().out


def test_losses_on_different_data_are_refused(tmp_path: Path) -> None:
    write_run(tmp_path / "0", path="a.txt")
    write_run(tmp_path / "1", path="b.txt", optimizer=SGD)

    message = (
        r"folder must hold runs measured on the same tokens, got data\.path a\.txt, b\.txt;"
        r" give each race a name= of its own"
    )
    with pytest.raises(ConfigError, match=message):
        race.main([str(tmp_path)])


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("data.path", True),
        ("data.block_size", True),
        ("evaluation.max_batches", True),
        ("data.target_batch_size", False),
        ("data.shuffle", False),
        ("scheduler._target_", False),
    ],
)
def test_what_changes_the_held_out_tokens(key: str, expected: bool) -> None:
    assert arithmetic.changes_held_out(key) is expected


def test_one_optimizer_alone_has_nothing_to_be_compared_with(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path / "0")

    assert race.main([str(tmp_path)]) == 0

    assert "adamw alone: nothing to compare it with" in capsys.readouterr().out


def test_a_missing_baseline_names_the_optimizers_there_are(two_optimizers: Path) -> None:
    message = "baseline must be an optimizer of the runs, got 'muon'; there are: SGD, adamw"
    with pytest.raises(ConfigError, match=message):
        race.main([str(two_optimizers), "baseline=muon"])


def test_a_folder_without_finished_runs_is_refused_after_naming_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path / "0", status="failed")

    with pytest.raises(ConfigError, match=r"folder must hold finished runs, got .*; `make race`"):
        race.main([str(tmp_path)])

    assert capsys.readouterr().out == "left out: 0: failed at step 100\n"


def test_the_folder_is_the_experiments_unless_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    with pytest.raises(ConfigError, match="folder must exist, got outputs/optimizer_race;"):
        race.main(["baseline=adamw"])
    with pytest.raises(ConfigError, match="folder must exist, got elsewhere;"):
        race.main(["elsewhere"])


@pytest.mark.parametrize(
    "runs",
    [
        [made_up(loss=2.0)],
        [made_up(loss=2.0, config={"optimizer.lr": None})],
        [made_up(loss=2.0), made_up(loss=2.0, optimizer="a$b", steps=3, curve={1: 2.0, 3: 2.0})],
        [made_up(loss=2.0, optimizer=name, lr=lr) for name in "abcdefgh" for lr in (0.1, 10.0)],
    ],
    ids=["one run", "no learning rate", "no common horizon", "more than colours"],
)
def test_a_picture_is_drawn_of_any_race(tmp_path: Path, runs: list[Run]) -> None:
    settings = group_runs(runs)
    baseline = settings[0].optimizer
    answers = answer_race(settings, baseline=baseline)

    draw_race(settings, answers=answers, baseline=baseline, path=tmp_path / "race.png")

    assert png_size(tmp_path / "race.png")[0] == 1800
    assert [path.name for path in tmp_path.iterdir()] == ["race.png"]


def png_size(path: Path) -> tuple[int, int]:
    head = path.read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", head[16:24])
    return width, height


# ---------------------------------------------------------------------------- whole


def test_the_experiment_is_240_updates_of_2048_bytes_and_keeps_no_weights() -> None:
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        config = load_config(compose("config", overrides=["experiment=optimizer_race", "seed=2"]))

    assert config.effective_max_steps == 240
    assert config.data.update_batch_size * config.effective_block_size == 2048
    assert config.to_dict()["model"]["d_model"] == 128
    assert (config.run.name, config.run.seed) == ("optimizer_race", 2)
    assert (config.evaluation.every_steps, config.evaluation.max_batches) == (20, 20)
    assert (config.checkpoint.enabled, config.logging.tensorboard, config.logging.plots) == (
        (False,) * 3
    )


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_make_race_runs_the_two_sweeps_and_the_script(tmp_path: Path) -> None:
    shutil.copy(ROOT / "Makefile", tmp_path)
    for name in ("pyproject.toml", "constraints.txt", ".venv/.installed-core"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}

    answer = subprocess.run(
        ["make", "--dry-run", "race", "ARGS=data=text data.path=a.txt"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )

    sweep = ".venv/bin/python scripts/train.py -m experiment=optimizer_race name=optimizer_race"
    assert re.sub(r"\s*\\\n\s*", " ", answer.stdout).splitlines() == [
        f"{sweep} optimizer=adamw optimizer.lr=1e-3,2e-3,4e-3,8e-3 seed=1,2"
        " data=text data.path=a.txt",
        f"{sweep} optimizer=muon optimizer.muon_lr=0.02,0.03,0.05,0.08 seed=1,2"
        " data.max_steps=108,132,148,240 data=text data.path=a.txt",
        ".venv/bin/python scripts/race.py outputs/optimizer_race",
    ]


def test_two_sweeps_and_the_script_make_a_race(tmp_path: Path) -> None:
    tiny = (
        "-m", "experiment=optimizer_race", "model=nano", "data=synthetic", "data.block_size=16",
        "data.micro_batch_size=2", "evaluation.max_batches=2", "evaluation.every_steps=2",
        "seed=1,2",
    )  # fmt: skip
    sweeps = [
        ("optimizer=adamw", "optimizer.lr=1e-3,2e-3", "data.max_steps=4"),
        ("optimizer._target_=torch.optim.SGD", "optimizer.lr=0.1", "data.max_steps=3,4"),
    ]
    for words_of_sweep in sweeps:
        answer = train(*tiny, *words_of_sweep, cwd=tmp_path)
        assert answer.returncode == 0, answer.stdout + answer.stderr

    answer = subprocess.run(
        [sys.executable, str(TRAIN.with_name("race.py"))],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    assert answer.returncode == 0, answer.stderr
    assert answer.stderr == ""
    folder = tmp_path / "outputs" / "optimizer_race"
    rows = list(csv.DictReader((folder / "table.csv").open()))
    shown = [[row[key] for key in ("optimizer", "lr", "steps", "seeds")] for row in rows]
    assert shown == [
        ["adamw", "1e-3", "4", "1 2"],
        ["adamw", "2e-3", "4", "1 2"],
        ["SGD", "", "3", "1 2"],
        ["SGD", "", "4", "1 2"],
    ]
    assert [float(row["mean"]) for row in rows] == pytest.approx(means_of_results(folder))
    assert all(0 < float(row["seconds_per_step"]) < 5 for row in rows)
    assert answer.stdout.count("adamw's best") == 1
    assert f"written: {Path('outputs/optimizer_race/table.md')}" in answer.stdout
    assert png_size(folder / "race.png")[0] == 1800


def means_of_results(folder: Path) -> list[float]:
    """Return the mean losses in the table's order, from the folders by another way."""
    losses: dict[tuple[bool, float, int], list[float]] = {}
    for path in folder.glob("sweeps/*/*/result.json"):
        result = json.loads(path.read_text())
        optimizer = json.loads(path.with_name("config.json").read_text())["optimizer"]
        key = ("SGD" in optimizer["_target_"], optimizer["lr"], result["steps"])
        losses.setdefault(key, []).append(result["final_eval_loss"])
    assert [len(pair) for pair in losses.values()] == [2] * 4
    return [statistics.fmean(losses[key]) for key in sorted(losses)]
