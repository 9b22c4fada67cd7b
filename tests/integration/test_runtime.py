"""Runs from Python: what the runtime functions build, write, refuse and resume."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

import speedtronic
from speedtronic.checkpoint.locating import find_checkpoint
from speedtronic.checkpoint.storing import read_checkpoint
from speedtronic.core.errors import (
    CheckpointError,
    ConfigError,
    IncompatibleCheckpointError,
    NonFiniteError,
    RunFolderError,
)
from speedtronic.evaluate import evaluate_run
from speedtronic.run_folder.claim import claim_folder
from speedtronic.sample import sample_text

WORDS = "to be or not to be that is the question whether tis nobler in the mind to suffer\n"


@pytest.fixture(autouse=True)
def workdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text(WORDS * 60)
    return tmp_path


def settings(folder: str = "R", **sections: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "model": {"name": "nano", "n_layer": 1, "n_head": 2, "d_model": 16, "max_seq_len": 16},
        "data": {"name": "text", "path": "text.txt", "micro_batch_size": 2},
        "precision": "fp32",
        "run": {"output_dir": folder, "max_steps": 10},
        "evaluation": {"every_steps": 5, "max_batches": 2},
        "checkpoint": {"every_steps": 4},
        "logging": {"every_steps": 1, "tensorboard": False, "plots": False, "progress": "off"},
    }
    for name, values in sections.items():
        is_merged = isinstance(values, Mapping) and isinstance(base.get(name), Mapping)
        base[name] = {**base[name], **values} if is_merged else values
    return base


def records(folder: str, event: str) -> list[dict[str, Any]]:
    lines = (Path(folder) / "metrics.jsonl").read_text().splitlines()
    return [record for record in map(json.loads, lines) if record["event"] == event]


def last_state(folder: str) -> dict[str, Any]:
    return read_checkpoint(find_checkpoint(folder, checkpoint="latest"))


def assert_equal_trees(left: Any, right: Any) -> None:
    if isinstance(left, torch.Tensor):
        assert torch.equal(left, right)
    elif isinstance(left, Mapping):
        assert left.keys() == right.keys()
        for key in left:
            assert_equal_trees(left[key], right[key])
    elif isinstance(left, list | tuple):
        assert len(left) == len(right)
        for one, other in zip(left, right, strict=True):
            assert_equal_trees(one, other)
    else:
        assert left == right


def fingerprint(folder: str) -> dict[str, str]:
    return {
        str(path): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(Path(folder).rglob("*"))
        if path.is_file()
    }


# The folder of a run ------------------------------------------------------------------------------


def test_a_run_from_python_writes_its_whole_folder() -> None:
    result = speedtronic.train_from_config(settings(logging={"tensorboard": True, "plots": True}))

    assert (result.steps, result.samples, result.tokens) == (10, 20, 320)
    assert [record["step"] for record in result.metrics] == list(range(1, 11))
    names = {path.name for path in Path("R").iterdir()}
    assert names == {
        "config.json",
        "run.json",
        "result.json",
        "metrics.jsonl",
        "train.log",
        "tensorboard",
        "curves.png",
        "checkpoints",
        "tokenizer.json",
        ".lock",
    }
    written = json.loads(Path("R/result.json").read_text())
    assert written["status"] == "completed"
    assert written["final_loss"] == result.final_loss
    evals = records("R", "eval")
    assert [record["step"] for record in evals] == [5, 10]
    assert written["final_eval_loss"] == evals[-1]["loss"]
    assert written["best_eval_loss"] == min(record["loss"] for record in evals)
    saved = sorted(path.name for path in Path("R/checkpoints").iterdir())
    assert saved[-1] == "step_000000000010"
    run = json.loads(Path("R/run.json").read_text())
    assert run["facts"]["data"]["bytes"] == len(WORDS) * 60
    assert run["facts"]["data"]["sha256"] == hashlib.sha256((WORDS * 60).encode()).hexdigest()
    assert [segment["status"] for segment in run["segments"]] == ["completed"]


def test_the_configuration_as_trained_builds_an_equal_one() -> None:
    speedtronic.train_from_config(settings(), max_steps=2)

    saved = json.loads(Path("R/config.json").read_text())
    given = speedtronic.load_config(settings()).with_target(2)
    assert speedtronic.load_config(saved, allow_targets=()) == given


def test_building_a_runtime_writes_nothing_and_fit_claims_the_folder_while_it_runs() -> None:
    trainer, _ = speedtronic.build_runtime(settings())
    assert not Path("R").exists()
    owners: list[bool] = []
    trainer.logger.add_hook(lambda _event, _payload: owners.append(Path("R/.lock.json").exists()))

    trainer.fit()

    assert owners
    assert all(owners)
    assert not Path("R/.lock.json").exists()


def _hold(folder: str, ready: Any, done: Any) -> None:
    with claim_folder(folder):
        ready.set()
        done.wait(30)


def test_a_folder_that_another_process_owns_is_refused_by_name() -> None:
    context = multiprocessing.get_context("spawn")
    ready, done = context.Event(), context.Event()
    owner = context.Process(target=_hold, args=("R", ready, done))
    owner.start()
    try:
        assert ready.wait(30)
        with pytest.raises(RunFolderError, match=f"in use by process {owner.pid} on "):
            speedtronic.train_from_config(settings())
        trainer, _ = speedtronic.build_runtime(settings())
        with pytest.raises(RunFolderError, match=f"in use by process {owner.pid} on "):
            trainer.fit()
    finally:
        done.set()
        owner.join()


def test_a_second_start_is_refused_and_overwrite_moves_the_old_run_aside() -> None:
    speedtronic.train_from_config(settings())
    before = fingerprint("R/checkpoints")

    with pytest.raises(RunFolderError) as caught:
        speedtronic.train_from_config(settings())
    assert str(caught.value) == (
        "R holds a run (step 10); use resume=true to continue it or overwrite=true to move it aside"
    )

    speedtronic.train_from_config(settings(overwrite=True))
    assert {
        name.replace("R.bak-1", "R"): digest
        for name, digest in fingerprint("R.bak-1/checkpoints").items()
    } == before


def test_a_run_that_fails_says_so_in_its_result() -> None:
    broken = settings(
        optimizer={"lr": 1e30, "grad_clip": None},
        trainer={"max_skipped_steps": 2},
        scheduler={"name": "constant", "warmup_steps": 0},
        evaluation={"every_steps": None},
    )
    with pytest.raises(NonFiniteError, match="2 attempts in a row were skipped"):
        speedtronic.train_from_config(broken)

    written = json.loads(Path("R/result.json").read_text())
    assert written["status"] == "failed"
    assert written["error"].startswith("trainer.max_skipped_steps: 2 attempts in a row")
    assert json.loads(Path("R/run.json").read_text())["segments"][0]["status"] == "failed"


# Targets ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argument", "of_data", "target"), [(3, 5, 3), (None, 5, 5), (None, None, 10)]
)
def test_the_target_is_the_argument_else_the_datas_else_the_runs(
    argument: int | None, of_data: int | None, target: int
) -> None:
    config = settings(data={"max_steps": of_data})
    trainer, _ = speedtronic.build_runtime(config, max_steps=argument)
    assert trainer.max_steps == target


@pytest.mark.parametrize("target", [0, -1])
def test_a_target_below_one_is_refused(target: int) -> None:
    with pytest.raises(ConfigError, match="max_steps: must be at least 1"):
        speedtronic.build_runtime(settings(), max_steps=target)


def test_the_horizon_of_the_schedule_is_the_effective_target() -> None:
    trainer, _ = speedtronic.build_runtime(settings(scheduler={"warmup_steps": 0}), max_steps=4)
    trainer.fit()
    rates = [record["lr"] for record in records("R", "train_step")]
    # 0.1 + 0.9 * (1 + cos(pi p)) / 2 at p = 1/4, 1/2, 3/4, 1, times the peak of 1e-3.
    expected = [0.8681980515339464e-3, 0.55e-3, 0.2318019484660536e-3, 0.1e-3]
    assert rates == pytest.approx(expected, rel=1e-12)


# Resume -------------------------------------------------------------------------------------------


def test_training_in_three_parts_equals_training_at_once() -> None:
    fixed = {"scheduler": {"max_steps": 10}, "model": {"dropout": 0.2}}
    speedtronic.train_from_config(settings("A", **fixed))
    for target in (3, 7, 10):
        speedtronic.train_from_config(settings("B", **fixed), resume=True, max_steps=target)

    straight, parts = last_state("A"), last_state("B")
    for key in ("model", "optimizer", "scheduler", "rng", "data", "attempt", "tokens"):
        assert_equal_trees(straight[key], parts[key])
    assert [r["loss"] for r in records("A", "train_step")] == [
        r["loss"] for r in records("B", "train_step")
    ]
    run = json.loads(Path("B/run.json").read_text())
    assert [segment["first_step"] for segment in run["segments"]] == [0, 3, 7]


def test_resume_without_a_checkpoint_warns_and_starts_from_step_0() -> None:
    result = speedtronic.train_from_config(settings(), resume=True)

    assert result.steps == 10
    log = Path("R/train.log").read_text()
    assert "WARNING resume: no checkpoint in R/checkpoints, starting from step 0" in log


def test_checkpoints_that_are_all_damaged_stop_a_resume_instead_of_starting_afresh() -> None:
    speedtronic.train_from_config(settings())
    for meta in Path("R/checkpoints").glob("step_*/meta.json"):
        meta.write_text(meta.read_text().replace('"step"', '"stop"', 1))

    with pytest.raises(
        CheckpointError, match="R/checkpoints: every checkpoint is damaged"
    ) as caught:
        speedtronic.train_from_config(settings(), resume=True, max_steps=20)

    assert "step_000000000010" in str(caught.value)
    assert len(records("R", "train_step")) == 10


@pytest.mark.parametrize(("first", "purge_step"), [(4, 5), (None, 1)])
def test_a_resumed_run_purges_the_steps_it_makes_again(
    first: int | None, purge_step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if first is not None:
        speedtronic.train_from_config(settings(), max_steps=first)
    purged: list[int | None] = []

    class Hook:
        def __init__(self, _folder: Path, *, purge_step: int | None, hparams: Any) -> None:
            purged.append(purge_step)

        def on_event(self, event: str, payload: Mapping[str, Any]) -> None:
            pass

    monkeypatch.setattr("speedtronic.metrics.tensorboard.TensorBoardHook", Hook)
    speedtronic.build_runtime(settings(logging={"tensorboard": True}), resume=True)
    assert purged == [purge_step]


def test_a_target_below_the_step_changes_no_saved_configuration() -> None:
    speedtronic.train_from_config(settings())
    before = Path("R/config.json").read_bytes()
    speedtronic.train_from_config(settings(), resume=True, max_steps=6)

    assert Path("R/config.json").read_bytes() == before
    log = Path("R/train.log").read_text()
    assert "nothing to do: the run is at step 10 and its target is 6" in log


def test_a_run_at_its_target_is_left_alone() -> None:
    speedtronic.train_from_config(settings())
    kept = {
        name: digest
        for name, digest in fingerprint("R").items()
        if "checkpoints" in name or name.endswith(("result.json", "metrics.jsonl"))
    }

    result = speedtronic.train_from_config(settings(), resume=True)

    assert result.final_loss is None
    after = fingerprint("R")
    assert {name: after[name] for name in kept} == kept


def test_another_target_bends_a_derived_schedule_and_says_so() -> None:
    speedtronic.train_from_config(settings(scheduler={"warmup_steps": 0}))
    speedtronic.train_from_config(
        settings(scheduler={"warmup_steps": 0}), resume=True, max_steps=20
    )

    rates = {record["step"]: record["lr"] for record in records("R", "train_step")}
    assert rates[10] == pytest.approx(1e-4)
    # The curve to 20 as if started with it: position 11 is p = 11/20.
    assert rates[11] == pytest.approx(1e-3 * (0.1 + 0.45 * (1 - 0.15643446504023098)), rel=1e-9)
    log = Path("R/train.log").read_text()
    assert "resume: learning rate at step 10: 0.0001 -> 0.00055" in log


def test_changed_hyperparameters_apply_on_resume_and_are_logged() -> None:
    speedtronic.train_from_config(settings(scheduler="constant"), max_steps=4)
    changed = {"lr": 5e-3, "weight_decay": 0.2, "betas": [0.8, 0.9]}
    trainer, _ = speedtronic.build_runtime(
        settings(scheduler="constant", optimizer=changed), resume=True
    )

    decayed, rest = trainer.optimizer.param_groups
    assert (decayed["lr"], decayed["weight_decay"], decayed["betas"]) == (5e-3, 0.2, (0.8, 0.9))
    assert (rest["lr"], rest["weight_decay"]) == (5e-3, 0.0)
    trainer.logger.close()
    log = Path("R/train.log").read_text()
    for line in (
        "optimizer.lr: 0.001 -> 0.005",
        "optimizer.betas: (0.9, 0.95) -> (0.8, 0.9)",
        "optimizer.weight_decay: 0.1 -> 0.2",
    ):
        assert f"resume: {line}" in log


def test_a_checkpoint_of_another_width_is_refused_naming_its_tensors() -> None:
    speedtronic.train_from_config(settings())
    other = settings(model={"d_model": 32}, resume_strict=False)
    with pytest.raises(IncompatibleCheckpointError) as caught:
        speedtronic.build_runtime(other, resume=True)
    assert "embedding.weight has shape (256, 16), the model's has (256, 32)" in str(caught.value)


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"run": {"seed": 5}}, "run.seed: 1234 -> 5"),
        ({"data": {"micro_batch_size": 4}}, "data.micro_batch_size: 2 -> 4"),
        ({"optimizer": {"_target_": "torch.optim.SGD", "lr": 0.1}}, "optimizer._target_: "),
    ],
)
def test_what_would_be_another_run_is_not_resumed(changed: dict[str, Any], named: str) -> None:
    speedtronic.train_from_config(settings())
    before = Path("R/result.json").read_bytes()

    with pytest.raises(ConfigError, match="resume cannot change ") as caught:
        speedtronic.train_from_config(settings(**changed), resume=True, max_steps=20)

    assert named in str(caught.value)
    assert Path("R/result.json").read_bytes() == before


def test_an_automatic_precision_means_on_resume_what_it_meant_at_the_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("speedtronic.precision.has_fast_bf16", lambda device: True)
    speedtronic.train_from_config(settings(precision="auto"), max_steps=4)
    monkeypatch.setattr("speedtronic.precision.has_fast_bf16", lambda device: False)

    speedtronic.train_from_config(settings(precision="auto"), resume=True)

    assert json.loads(Path("R/run.json").read_text())["facts"]["precision"] == "bf16"
    assert json.loads(Path("R/result.json").read_text())["exact"] is True


def test_another_machine_goes_on_with_a_warning_and_is_not_called_exact(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    speedtronic.train_from_config(settings(), max_steps=4)
    monkeypatch.setattr("speedtronic.resuming.cpu_model", lambda: "another processor")

    speedtronic.train_from_config(settings(), resume=True)

    written = json.loads(Path("R/result.json").read_text())
    assert written["exact"] is False
    assert [fallback["kind"] for fallback in written["fallbacks"]] == ["environment"]
    assert "-> another processor" in written["fallbacks"][0]["reason"]
    assert len(records("R", "fallback")) == 1


def test_a_resumed_run_computes_with_the_threads_it_was_started_with() -> None:
    speedtronic.train_from_config(settings(trainer={"num_threads": 2}), max_steps=2)
    speedtronic.train_from_config(settings(), resume=True, max_steps=4)

    assert json.loads(Path("R/run.json").read_text())["facts"]["threads"] == 2
    assert json.loads(Path("R/result.json").read_text())["exact"] is True
    assert torch.get_num_threads() == 1


def test_records_after_the_checkpoint_are_superseded_on_resume() -> None:
    speedtronic.train_from_config(settings(), max_steps=4)
    with Path("R/metrics.jsonl").open("a") as file:
        file.write('{"event": "train_step", "step": 5, "loss": 9.0, "lr": 0.1}\n{"event": "tr')

    speedtronic.train_from_config(settings(), resume=True, max_steps=6)

    assert [record["step"] for record in records("R", "train_step")] == [1, 2, 3, 4, 5, 6]
    superseded = json.loads(Path("R/metrics.superseded.jsonl").read_text())
    assert superseded["loss"] == 9.0


def test_a_second_fit_of_a_resumed_trainer_keeps_the_records_of_the_first() -> None:
    speedtronic.train_from_config(settings(), max_steps=4)
    trainer, _ = speedtronic.build_runtime(settings(), resume=True)
    trainer.fit(6)
    trainer.fit(8)
    trainer.logger.close()
    assert [record["step"] for record in records("R", "train_step")] == list(range(1, 9))


def test_init_from_starts_a_new_run_from_the_weights_of_an_old_one() -> None:
    speedtronic.train_from_config(settings("old"))
    trainer, _ = speedtronic.build_runtime(settings("new", init_from="old"))

    assert trainer.step == 0
    best = read_checkpoint(find_checkpoint("old", checkpoint="best"))
    assert_equal_trees(dict(trainer.model.state_dict()), dict(best["model"]))
    with pytest.raises(ConfigError, match="nowhere"):
        speedtronic.build_runtime(settings("other", init_from="nowhere"))


# Using a run --------------------------------------------------------------------------------------


def test_a_loaded_run_measures_what_the_run_measured_and_nothing_in_it_changes() -> None:
    speedtronic.train_from_config(settings())
    before = fingerprint("R")

    run = speedtronic.load_run("R", checkpoint="latest")
    assert run.step == 10
    report = evaluate_run(run, max_batches=2)

    assert report.loss == json.loads(Path("R/result.json").read_text())["final_eval_loss"]
    assert fingerprint("R") == before


def test_evaluating_a_text_of_its_own_predicts_every_byte_but_the_first() -> None:
    speedtronic.train_from_config(settings())
    Path("other.txt").write_text("the question is to be or not " * 3)
    run = speedtronic.load_run("R")
    report = evaluate_run(run, data_path="other.txt")

    ids = torch.tensor(list(("the question is to be or not " * 3).encode()))
    losses = []
    # 86 labels in blocks of 16; the last block is moved back to end with the text.
    starts = [0, 16, 32, 48, 64, 70]
    for start, first_new in zip(starts, [0, 0, 0, 0, 0, 10], strict=True):
        with torch.no_grad():
            logits = run.model(input_ids=ids[None, start : start + 16])["logits"][0]
        loss = torch.nn.functional.cross_entropy(
            logits, ids[start + 1 : start + 17], reduction="none"
        )
        losses.append(loss[first_new:])
    assert len(torch.cat(losses)) == len(ids) - 1
    assert report.loss == pytest.approx(torch.cat(losses).mean().item(), rel=1e-5)
    assert report.bits_per_byte == pytest.approx(report.loss / 0.6931471805599453, rel=1e-6)


def test_samples_depend_on_their_seed_alone_and_leave_the_random_state() -> None:
    speedtronic.train_from_config(settings())
    run = speedtronic.load_run("R")
    assert run.tokenizer is not None
    state = torch.get_rng_state()

    texts = [
        sample_text(run.model, run.tokenizer, prompt="to ", num_tokens=20, seed=seed)
        for seed in (0, 0, 1)
    ]

    assert texts[0] == texts[1] != texts[2]
    assert all(text.startswith("to ") for text in texts)
    assert torch.equal(torch.get_rng_state(), state)
    with pytest.raises(ConfigError, match="prompt must hold at least one token"):
        sample_text(run.model, run.tokenizer, prompt="", num_tokens=1)


def test_a_folder_that_is_no_run_is_named() -> None:
    with pytest.raises(ConfigError, match="nothing here must be a run folder"):
        speedtronic.load_run("nothing here")


# Hooks --------------------------------------------------------------------------------------------


def test_hooks_from_the_configuration_get_every_event(workdir: Path) -> None:
    (workdir / "my_hooks.py").write_text(
        "class Collect:\n"
        "    events = []\n"
        "    def __init__(self, tag):\n"
        "        self.tag = tag\n"
        "    def on_event(self, event, payload):\n"
        "        Collect.events.append((self.tag, event, payload.get('step')))\n"
    )
    hooks = [{"_target_": "my_hooks.Collect", "tag": "t"}]
    speedtronic.train_from_config(settings(logging={"hooks": hooks}), max_steps=1)

    import sys

    events = sys.modules.pop("my_hooks").Collect.events
    assert events[0] == ("t", "train_start", 0)
    assert ("t", "train_step", 1) in events
    assert events[-1] == ("t", "train_end", 1)


def test_a_fresh_fit_into_a_folder_that_holds_a_run_is_refused_too() -> None:
    speedtronic.train_from_config(settings())
    trainer, _ = speedtronic.build_runtime(settings(run={"output_dir": "R", "seed": 5}))
    with pytest.raises(RunFolderError, match=r"R holds a run \(step 10\)"):
        trainer.fit()

    moved, _ = speedtronic.build_runtime(settings(overwrite=True))
    assert moved.fit(4).steps == 4
    assert moved.fit(6).steps == 6  # its own run is no reason to refuse
    moved.logger.close()
    assert Path("R.bak-1/checkpoints/step_000000000010").is_dir()
    assert [record["step"] for record in records("R", "train_step")] == list(range(1, 7))


def test_a_fit_computes_with_the_configured_threads_and_puts_them_back() -> None:
    trainer, _ = speedtronic.build_runtime(settings(trainer={"num_threads": 2}))
    seen: list[int] = []
    trainer.logger.add_hook(lambda _event, _payload: seen.append(torch.get_num_threads()))
    trainer.fit()
    assert set(seen) == {2}
    assert torch.get_num_threads() == 1


def test_records_and_checkpoints_under_other_names_continue_as_well() -> None:
    names = {
        "logging": {"json_file": "records.jsonl", "plots": True},
        "checkpoint": {"directory": "saved", "every_steps": 2},
    }
    speedtronic.train_from_config(settings(**names), max_steps=4)
    with Path("R/records.jsonl").open("a") as file:
        file.write('{"event": "train_step", "step": 5, "loss": 9.0, "lr": 0.1}\n')

    with pytest.raises(RunFolderError, match=r"R holds a run \(step 5\)"):
        speedtronic.train_from_config(settings(**names))
    speedtronic.train_from_config(settings(**names), resume=True, max_steps=6)

    lines = [json.loads(line) for line in Path("R/records.jsonl").read_text().splitlines()]
    steps = [record["step"] for record in lines if record["event"] == "train_step"]
    assert steps == [1, 2, 3, 4, 5, 6]
    assert json.loads(Path("R/records.superseded.jsonl").read_text())["loss"] == 9.0
    assert Path("R/curves.png").is_file()


def test_curves_that_cannot_be_drawn_are_a_warning_beside_a_completed_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_arguments: Any, **_keywords: Any) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr("speedtronic.run_folder.plots.draw_curves", fail)
    speedtronic.train_from_config(settings(logging={"plots": True}), max_steps=2)

    assert json.loads(Path("R/result.json").read_text())["status"] == "completed"
    assert "curves.png was not drawn: no space left" in Path("R/train.log").read_text()


def test_a_hook_that_would_never_be_called_is_refused(workdir: Path) -> None:
    (workdir / "typo_hooks.py").write_text(
        "class Hook:\n    def on_evnt(self, *_):\n        pass\n"
    )
    import sys

    try:
        with pytest.raises(ConfigError, match=r"logging\.hooks must be callable or have on_event"):
            speedtronic.build_runtime(
                settings(logging={"hooks": [{"_target_": "typo_hooks.Hook"}]})
            )
    finally:
        sys.modules.pop("typo_hooks", None)


def test_resuming_with_another_compile_decision_is_not_called_exact() -> None:
    speedtronic.train_from_config(settings(), max_steps=4)
    environment = last_state("R")["environment"]
    assert (environment["compile"], environment["attention"]) == (False, "sdpa")
    assert json.loads(Path("R/run.json").read_text())["facts"]["environment"] == environment

    trainer, _ = speedtronic.build_runtime(settings(compile=True), resume=True)

    assert trainer.exact is False
