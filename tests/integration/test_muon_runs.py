"""Whole runs with Muon: their table of routes, rules, resumes, and a kill -9 on the way."""

from __future__ import annotations

import json
import math
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import speedtronic
from speedtronic import cli
from speedtronic.checkpoint.locating import find_checkpoint
from speedtronic.checkpoint.storing import read_checkpoint
from speedtronic.core.errors import ConfigError, IncompatibleCheckpointError
from tests.integration.runs import assert_same_run, records, start, stop, train, wait_for_step
from tests.unit.trainer.builders import assert_same_tensors

WORDS = "to be or not to be that is the question whether tis nobler in the mind to suffer\n"
WSD = {
    "name": "wsd",
    "warmup_steps": 2,
    "max_steps": 16,
    "momentum_start": 0.85,
    "momentum_warmup_steps": 6,
    "momentum_end": 0.9,
    "momentum_cooldown_steps": 4,
}
WORDS_OF_A_RUN = (
    "model=nano",
    "model.n_layer=1",
    "model.n_head=2",
    "model.d_model=16",
    "model.max_seq_len=16",
    "data=text",
    "data.path=text.txt",
    "data.micro_batch_size=2",
    "precision=fp32",
    "optimizer=muon",
    "evaluation.every_steps=10",
    "evaluation.max_batches=2",
    "logging.every_steps=1",
    "logging.tensorboard=false",
    "logging.plots=false",
)


@pytest.fixture(autouse=True)
def workdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text(WORDS * 60)
    return tmp_path


def settings(folder: str = "R", **sections: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "model": {"name": "nano", "n_layer": 1, "n_head": 2, "d_model": 16, "max_seq_len": 16},
        "data": {"name": "text", "path": "text.txt", "micro_batch_size": 2},
        "optimizer": {"name": "muon"},
        "precision": "fp32",
        "run": {"output_dir": folder, "max_steps": 4},
        "evaluation": {"every_steps": None},
        "checkpoint": {"every_steps": 100},
        "logging": {"every_steps": 1, "tensorboard": False, "plots": False, "progress": "off"},
    }
    for name, values in sections.items():
        is_merged = isinstance(values, Mapping) and isinstance(base.get(name), Mapping)
        base[name] = {**base[name], **values} if is_merged else values
    return base


def last_state(folder: str) -> dict[str, Any]:
    state: dict[str, Any] = read_checkpoint(find_checkpoint(folder, checkpoint="latest"))
    return state


def groups(trainer: speedtronic.Trainer) -> dict[str, dict[str, Any]]:
    return {group["name"]: group for group in trainer.optimizer.param_groups}


# The table of routes ------------------------------------------------------------------------------


def test_a_run_with_muon_saves_and_logs_which_algorithm_trains_what() -> None:
    speedtronic.train_from_config(settings(), max_steps=1)
    table = json.loads(Path("R/routing.json").read_text())
    routes = {row["name"]: row for row in table}
    assert {name: row["algorithm"] for name, row in routes.items()} == {
        "embedding.weight": "adamw",
        "blocks.0.attention_norm.weight": "adamw",
        "blocks.0.attention.qkv.weight": "muon",
        "blocks.0.attention.output.weight": "muon",
        "blocks.0.feed_forward_norm.weight": "adamw",
        "blocks.0.feed_forward.gate_and_value.weight": "muon",
        "blocks.0.feed_forward.output.weight": "muon",
        "norm.weight": "adamw",
    }
    assert routes["blocks.0.attention.qkv.weight"] == {
        "name": "blocks.0.attention.qkv.weight",
        "shape": [48, 16],
        "algorithm": "muon",
        "reason": "hidden matrix",
        "lr": 0.03,
        "weight_decay": 0.1,
        "decays": True,
        "layout": "matrix",
        "row_splits": [16, 16, 16],
    }
    embedding = routes["embedding.weight"]
    assert (embedding["lr"], embedding["weight_decay"]) == (0.008, 0.0)
    log = Path("R/train.log").read_text()
    # 48 x 16, 16 x 16, and a SwiGLU of width 64: 128 x 16 and 16 x 64.
    assert "muon, hidden matrix, lr 0.03, decay 0.1: 4 tensors, 4,096 parameters: " in log
    assert "adamw, embedding" in log
    assert "adamw, vector or scalar, lr 0.008, decay 0: 3 tensors, 48 parameters" in log


@pytest.mark.parametrize("name", ["adamw", "cautious_adamw"])
def test_a_run_with_one_algorithm_has_no_table(name: str) -> None:
    speedtronic.train_from_config(settings(optimizer={"name": name}), max_steps=1)
    assert not Path("R/routing.json").exists()
    assert "embedding" not in Path("R/train.log").read_text()


def test_a_rule_on_the_command_line_is_followed_saved_and_logged() -> None:
    rule = "optimizer.routing=[{match: embedding, algorithm: muon}]"
    assert cli.run((*WORDS_OF_A_RUN, rule, "data.max_steps=1", "run_dir=R")) == 0
    table = {row["name"]: row for row in json.loads(Path("R/routing.json").read_text())}
    row = table["embedding.weight"]
    assert (row["algorithm"], row["reason"], row["lr"], row["weight_decay"]) == (
        "muon",
        "rule 'embedding'",
        0.03,
        0.1,
    )
    assert (
        "muon, rule 'embedding', lr 0.03, decay 0.1: 1 tensor, 4,096 parameters"
        in Path("R/train.log").read_text()
    )
    saved = last_state("R")["optimizer"]["param_groups"]
    assert [group["name"] for group in saved][:2] == ["muon", "muon_rule_0"]


@pytest.mark.parametrize(
    ("rule", "line"),
    [
        (
            "[{match: embeding, algorithm: muon}]",
            "error: optimizer.routing[0].match must match a parameter that no earlier rule decided,"
            " got 'embeding'; near names: embedding.weight\n",
        ),
        (
            "[{match: norm, algorithm: muon}]",
            "error: optimizer.routing[0].algorithm ",
        ),
    ],
)
def test_a_rule_that_cannot_be_followed_is_one_line_before_any_update(
    rule: str, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (*WORDS_OF_A_RUN, f"optimizer.routing={rule}", "data.max_steps=3", "run_dir=R")
    assert cli.run(words) == 2
    message = capsys.readouterr().err
    assert message.startswith(line)
    assert message.count("\n") == 1
    assert records(Path("R"), "train_start", "train_step") == []
    assert not Path("R/routing.json").exists()
    assert list(Path("R").glob("checkpoints/step_*")) == []


def test_the_printed_configuration_shows_the_decay_in_force(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = (*WORDS_OF_A_RUN, "optimizer.weight_decay=0.25", "data.max_steps=1", "run_dir=R")
    assert cli.run((*words, "extras.print_config=true")) == 0
    assert "  muon_weight_decay: null # 0.25\n" in capsys.readouterr().out


# Resuming -----------------------------------------------------------------------------------------


# optimizers.md (21), through train_from_config and its checkpoint files
@pytest.mark.parametrize("option", ["muon", "muon_plus", "normuon", "cautious_adamw", "muon_torch"])
def test_a_run_resumed_twice_equals_one_in_a_single_piece(option: str) -> None:
    schedule: dict[str, Any] = dict(WSD) if "muon" in option else {"name": "wsd", "max_steps": 16}
    kept: dict[str, Any] = {"optimizer": {"name": option}, "scheduler": schedule}
    straight = speedtronic.train_from_config(settings("A", **kept), max_steps=16)
    losses = []
    for target in (5, 9, 16):
        part = speedtronic.train_from_config(settings("B", **kept), resume=True, max_steps=target)
        losses += [record["loss"] for record in part.metrics]
    assert losses == [record["loss"] for record in straight.metrics]
    left, right = last_state("A"), last_state("B")
    for part_of_state in ("model", "optimizer", "scheduler", "rng", "data"):
        assert_same_tensors(left[part_of_state], right[part_of_state], part_of_state)
    if "muon" in option:
        # Position 16: at the end of the fall from 0.95.
        assert left["optimizer"]["param_groups"][0]["momentum"] == pytest.approx(0.9)


# optimizers.md (21): a crash instead of an end
def test_a_run_with_muon_that_is_killed_and_resumed_equals_an_undisturbed_one(
    workdir: Path,
) -> None:
    base = (
        *WORDS_OF_A_RUN,
        "scheduler=wsd",
        "scheduler.momentum_start=0.85",
        "model.dropout=0.1",
        "checkpoint.every_steps=10",
        "data.max_steps=150",
    )
    undisturbed = train(*base, "run_dir=A", cwd=workdir)
    assert undisturbed.returncode == 0, undisturbed.stderr
    process = start(*base, "run_dir=B", cwd=workdir)
    wait_for_step(process, workdir / "B", 25)
    assert stop(process, signal.SIGKILL)[0] == -9
    resumed = train("run_dir=B", "resume=true", cwd=workdir)
    assert resumed.returncode == 0, resumed.stderr
    assert_same_run(workdir / "A", workdir / "B")
    assert (workdir / "A/routing.json").read_bytes() == (workdir / "B/routing.json").read_bytes()


# optimizers.md (23): the configuration wins
def test_changed_rates_momentum_and_decay_hold_from_the_resume_on_and_are_logged() -> None:
    constant = {"scheduler": {"name": "constant", "warmup_steps": 0}}
    speedtronic.train_from_config(settings(**constant), max_steps=3)
    changed = {
        "lr": 0.004,
        "muon_lr": 0.05,
        "muon_momentum": 0.9,
        "weight_decay": 0.2,
        "betas": [0.8, 0.9],
    }
    trainer, _ = speedtronic.build_runtime(
        settings(optimizer={"name": "muon", **changed}, **constant), resume=True
    )
    trainer.logger.close()
    found = groups(trainer)
    keys = ("lr", "weight_decay", "momentum", "betas")
    assert {
        name: {key: group[key] for key in keys if key in group} for name, group in found.items()
    } == {
        "muon": {"lr": 0.05, "weight_decay": 0.2, "momentum": 0.9},
        "adamw_no_decay": {"lr": 0.004, "weight_decay": 0.0, "betas": (0.8, 0.9)},
    }
    log = Path("R/train.log").read_text()
    for line in (
        "optimizer.muon_lr: 0.03 -> 0.05",
        "optimizer.lr: 0.008 -> 0.004",
        "optimizer.muon_momentum: 0.95 -> 0.9",
        "optimizer.muon_weight_decay: 0.1 -> 0.2",
        "optimizer.betas: (0.9, 0.95) -> (0.8, 0.9)",
    ):
        assert f"resume: {line}\n" in log, line


def test_changed_bases_of_a_moving_schedule_are_put_on_its_curve() -> None:
    schedule = {"scheduler": WSD}
    speedtronic.train_from_config(settings(**schedule), max_steps=3)
    changed = {"name": "muon", "muon_lr": 0.06, "muon_momentum": 0.97}
    trainer, _ = speedtronic.build_runtime(settings(optimizer=changed, **schedule), resume=True)
    trainer.logger.close()
    muon, adamw = groups(trainer)["muon"], groups(trainer)["adamw_no_decay"]
    assert (muon["initial_lr"], muon["initial_momentum"]) == (0.06, 0.97)
    assert (muon["lr"], adamw["lr"]) == (0.06, 0.008)  # position 3 is on the plateau
    assert muon["momentum"] == pytest.approx(0.85 + (0.97 - 0.85) * 3 / 6)
    log = Path("R/train.log").read_text()
    assert "resume: learning rate at step 3: 0.03 -> 0.06\n" in log


def test_one_changed_value_leaves_all_others_as_they_were() -> None:
    speedtronic.train_from_config(settings(), max_steps=2)
    changed = {"name": "muon", "muon_weight_decay": 0.3}
    trainer, _ = speedtronic.build_runtime(settings(optimizer=changed), resume=True)
    trainer.logger.close()
    decays = {name: group["weight_decay"] for name, group in groups(trainer).items()}
    assert decays == {"muon": 0.3, "adamw_no_decay": 0.0}
    lines = [line for line in Path("R/train.log").read_text().splitlines() if "resume: opt" in line]
    assert [line.partition("resume: ")[2] for line in lines] == [
        "optimizer.muon_weight_decay: 0.1 -> 0.3"
    ]


# optimizers.md (23): another way of making updates is another run
@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"scale": "match_rms_adamw"}, "optimizer.scale: original -> match_rms_adamw"),
        ({"cautious": True}, "optimizer.cautious: false -> true"),
        ({"name": "muon_plus"}, "optimizer.muon_plus: false -> col_row"),
        ({"routing": [{"match": "embedding", "algorithm": "muon"}]}, "optimizer.routing: [] -> ["),
    ],
)
def test_another_way_of_making_updates_is_not_resumed(changed: dict[str, Any], named: str) -> None:
    speedtronic.train_from_config(settings(), max_steps=2)
    before = Path("R/result.json").read_bytes()
    other = settings(optimizer={"name": "muon", **changed})
    with pytest.raises(ConfigError, match="resume cannot change ") as caught:
        speedtronic.train_from_config(other, resume=True, max_steps=4)
    assert named in str(caught.value)
    assert Path("R/result.json").read_bytes() == before


# Each of these is locked; who unlocks it gets what the configuration says, and a line about it.
@pytest.mark.parametrize(
    ("changed", "in_force", "line"),
    [
        ({"muon_nesterov": False}, {"nesterov": False}, "muon_nesterov: True -> False"),
        ({"muon_ns_steps": 3}, {"ns_steps": 3}, "muon_ns_steps: 5 -> 3"),
        ({"normuon": True}, {"normuon_beta2": 0.95}, "normuon_beta2: None -> 0.95"),
        (
            {"orthogonalization": "exact12"},
            {"orthogonalization": "exact12", "ns_steps": None},
            "orthogonalization: kj5 -> exact12",
        ),
        (
            {"scale": "match_rms_adamw"},
            {"scale": "match_rms_adamw"},
            "scale: original -> match_rms_adamw",
        ),
        ({"muon_plus": "row"}, {"muon_plus": "row"}, "muon_plus: None -> row"),
        ({"cautious": "wd"}, {"cautious": "wd"}, "cautious: None -> wd"),
    ],
)
def test_an_unlocked_change_of_muon_is_in_force_and_logged(
    changed: dict[str, Any], in_force: dict[str, Any], line: str
) -> None:
    speedtronic.train_from_config(settings(), max_steps=2)
    other = settings(optimizer={"name": "muon", **changed}, resume_strict=False)
    trainer, _ = speedtronic.build_runtime(other, resume=True)
    muon = groups(trainer)["muon"]
    assert {key: muon[key] for key in in_force} == in_force
    assert f"resume: optimizer.{line}\n" in Path("R/train.log").read_text()
    assert trainer.fit(4).steps == 4
    trainer.logger.close()


def test_an_unlocked_change_of_a_rules_rate_is_in_force_as_the_table_says() -> None:
    def with_rate(lr: float, **sections: Any) -> dict[str, Any]:
        rule = {"match": "qkv", "algorithm": "muon", "lr": lr}
        return settings(optimizer={"name": "muon", "routing": [rule]}, **sections)

    speedtronic.train_from_config(with_rate(0.01), max_steps=2)
    speedtronic.train_from_config(with_rate(0.001, resume_strict=False), resume=True, max_steps=3)
    saved = {group["name"]: group for group in last_state("R")["optimizer"]["param_groups"]}
    table = {row["name"]: row for row in json.loads(Path("R/routing.json").read_text())}
    assert saved["muon_rule_0"]["initial_lr"] == 0.001
    assert table["blocks.0.attention.qkv.weight"]["lr"] == 0.001
    assert saved["muon"]["initial_lr"] == 0.03


def test_an_unlocked_change_of_what_decays_is_in_force_as_the_table_says() -> None:
    speedtronic.train_from_config(settings(), max_steps=2)
    everything = {"name": "muon", "decay": "all"}
    speedtronic.train_from_config(
        settings(optimizer=everything, resume_strict=False), resume=True, max_steps=3
    )
    saved = last_state("R")["optimizer"]["param_groups"]
    table = {
        row["name"]: row["weight_decay"] for row in json.loads(Path("R/routing.json").read_text())
    }
    assert {
        name: group["weight_decay"] for group in saved for name in group["param_names"]
    } == table
    assert set(table.values()) == {0.1}


def test_adamw_may_become_cautious_where_strictness_is_off() -> None:
    speedtronic.train_from_config(settings(optimizer={"name": "adamw"}), max_steps=2)
    changed = {"name": "cautious_adamw"}
    result = speedtronic.train_from_config(
        settings(optimizer=changed, resume_strict=False), resume=True, max_steps=3
    )
    assert result.steps == 3
    (entry, *_) = last_state("R")["optimizer"]["state"].values()
    assert float(entry["step"]) == 3


def test_adamw_does_not_become_muon_even_where_strictness_is_off() -> None:
    speedtronic.train_from_config(settings(optimizer={"name": "adamw"}), max_steps=2)
    with pytest.raises(IncompatibleCheckpointError) as caught:
        speedtronic.train_from_config(settings(resume_strict=False), resume=True, max_steps=3)
    message = str(caught.value)
    assert message.startswith("optimizer: the checkpoint trained blocks.0.attention.qkv.weight")
    assert "(another optimizer -> muon)" in message


def test_a_start_that_trains_nothing_leaves_the_table_as_it_was_trained() -> None:
    speedtronic.train_from_config(settings(), max_steps=2)
    before = Path("R/routing.json").read_bytes()
    changed = {"name": "muon", "muon_lr": 0.05}
    speedtronic.train_from_config(settings(optimizer=changed), resume=True, max_steps=2)
    assert Path("R/routing.json").read_bytes() == before
    speedtronic.train_from_config(settings(optimizer=changed), resume=True, max_steps=3)
    assert Path("R/routing.json").read_bytes() != before


def test_a_changed_rate_holds_under_a_schedule_of_another_class_too() -> None:
    cosine = {
        "scheduler": {"_target_": "torch.optim.lr_scheduler.CosineAnnealingLR", "T_max": 10},
        "extras": {"allow_targets": ["torch.optim.lr_scheduler"]},
    }
    speedtronic.train_from_config(settings(**cosine), max_steps=3)
    changed = {"name": "muon", "muon_lr": 0.003}
    trainer, _ = speedtronic.build_runtime(settings(optimizer=changed, **cosine), resume=True)
    factor = (1 + math.cos(math.pi * 3 / 10)) / 2
    found = groups(trainer)
    assert found["muon"]["lr"] == pytest.approx(0.003 * factor)
    assert found["adamw_no_decay"]["lr"] == pytest.approx(0.008 * factor)
    trainer.fit(4)
    trainer.logger.close()
    factor = (1 + math.cos(math.pi * 4 / 10)) / 2
    assert groups(trainer)["muon"]["lr"] == pytest.approx(0.003 * factor)


# optimizers.md (22): even where strictness is off
def test_muons_parameters_that_adamw_would_train_are_refused_by_their_routing() -> None:
    speedtronic.train_from_config(settings(), max_steps=2)
    rules = [{"match": "attention.output", "algorithm": "adamw"}]
    other = settings(optimizer={"name": "muon", "routing": rules}, resume_strict=False)
    with pytest.raises(
        IncompatibleCheckpointError, match=r"optimizer\.routing: the checkpoint"
    ) as c:
        speedtronic.train_from_config(other, resume=True, max_steps=4)
    assert "blocks.0.attention.output.weight (muon -> adamw)" in str(c.value)
    assert last_state("R")["step"] == 2
