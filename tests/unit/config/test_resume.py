"""A saved configuration under a new command line: pure functions on trees, and the saved files."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from speedtronic.config import load_config
from speedtronic.config.overrides import Override, explain_composition, keep_effective
from speedtronic.config.resume import (
    MERGED_NAME,
    Change,
    asked_keys,
    check_compatible,
    flatten,
    merge_resumed,
    next_segment,
    read_saved_run,
    replayable,
    save_merged,
)
from speedtronic.core.errors import ConfigError

TREE: dict[str, Any] = {
    "seed": None,
    "resume": False,
    "run": {"seed": 1234, "max_steps": 10},
    "optimizer": {"_target_": "AdamW", "lr": 0.1, "betas": [0.9, 0.95]},
    "extras": {"allow_targets": []},
    "tags": [],
}


def changed(**sections: Any) -> dict[str, Any]:
    """Return the tree with some sections updated."""
    tree = copy.deepcopy(TREE)
    for name, value in sections.items():
        tree[name] = {**tree[name], **value} if isinstance(value, dict) else value
    return tree


def lines(changes: tuple[Change, ...]) -> list[str]:
    return [str(change) for change in changes]


# Merging ------------------------------------------------------------------------------------------


def test_nothing_new_changes_nothing() -> None:
    merged = merge_resumed(TREE, before=TREE, after=TREE, asked=[])
    assert merged.config == TREE
    assert (merged.changes, merged.drift) == ((), ())


def test_the_difference_between_the_compositions_is_applied_to_the_saved_tree() -> None:
    saved = changed(optimizer={"lr": 0.7})
    after = changed(run={"max_steps": 20})
    merged = merge_resumed(saved, before=TREE, after=after, asked=["run.max_steps"])
    assert merged.config == changed(optimizer={"lr": 0.7}, run={"max_steps": 20})
    assert lines(merged.changes) == ["run.max_steps: 10 -> 20"]
    assert lines(merged.drift) == ["optimizer.lr: 0.7 -> 0.1"]


def test_a_value_asked_for_holds_even_where_the_files_have_it_already() -> None:
    saved = changed(optimizer={"lr": 0.7})
    merged = merge_resumed(saved, before=TREE, after=TREE, asked=["optimizer.lr"])
    assert merged.config["optimizer"]["lr"] == 0.1
    assert lines(merged.changes) == ["optimizer.lr: 0.7 -> 0.1"]
    assert merged.drift == ()


def test_another_group_replaces_its_section_and_drops_its_old_keys() -> None:
    after = copy.deepcopy(TREE)
    after["optimizer"] = {"_target_": "Muon", "lr": 0.1, "muon_lr": 0.3}
    merged = merge_resumed(TREE, before=TREE, after=after, asked=["optimizer"])
    assert merged.config["optimizer"] == after["optimizer"]
    assert lines(merged.changes) == [
        "optimizer._target_: AdamW -> Muon",
        "optimizer.betas: [0.9, 0.95] -> absent",
        "optimizer.muon_lr: absent -> 0.3",
    ]


def test_a_deleted_key_is_deleted() -> None:
    after = copy.deepcopy(TREE)
    del after["optimizer"]["betas"]
    merged = merge_resumed(TREE, before=TREE, after=after, asked=["optimizer.betas"])
    assert "betas" not in merged.config["optimizer"]


@pytest.mark.parametrize("keys", [{"seed": 7}, {"run": {"seed": 7}}])
def test_a_shorthand_and_its_full_key_are_one_setting(keys: dict[str, Any]) -> None:
    saved = changed(seed=3)
    merged = merge_resumed(saved, before=saved, after=changed(**keys), asked=list(keys))
    assert merged.config["run"]["seed"] == 7
    assert merged.config["seed"] is None
    assert lines(merged.changes) == ["run.seed: 3 -> 7"]


def test_permissions_and_switches_of_one_start_come_from_the_command_line() -> None:
    saved = changed(resume=True, extras={"allow_targets": ["os"]})
    after = changed(resume=True, extras={"allow_targets": ["mine"]})
    merged = merge_resumed(saved, before=TREE, after=after, asked=["resume"])
    assert merged.config["extras"]["allow_targets"] == ["mine"]
    assert (merged.changes, merged.drift) == ((), ())
    merged = merge_resumed(saved, before=TREE, after=TREE, asked=[])
    assert merged.config["extras"]["allow_targets"] == []
    assert merged.config["resume"] is False


def test_values_are_compared_as_the_settings_see_them() -> None:
    saved = changed(optimizer={"betas": (0.9, 0.95), "lr": 1})
    before = changed(optimizer={"lr": 1.0})
    assert merge_resumed(saved, before=before, after=before, asked=[]).drift == ()
    flag = changed(tags=[1])
    merged = merge_resumed(changed(tags=[True]), before=TREE, after=flag, asked=["tags"])
    assert lines(merged.changes) == ["tags: [True] -> [1]"]


def test_the_arguments_are_left_alone() -> None:
    saved, before, after = changed(seed=3), changed(), changed(run={"seed": 8})
    copies = [copy.deepcopy(tree) for tree in (saved, before, after)]
    merge_resumed(saved, before=before, after=after, asked=["run.seed"])
    assert [saved, before, after] == copies


def test_flattening_keeps_lists_and_empty_sections_as_leaves() -> None:
    assert flatten({"a": {"b": {}, "c": [1]}, "d": None}) == {
        ("a", "b"): {},
        ("a", "c"): [1],
        ("d",): None,
    }


# Compatibility ------------------------------------------------------------------------------------


def test_every_locked_change_is_listed_and_free_ones_are_not() -> None:
    changes = [
        Change(("model", "d_model"), 256, 512),
        Change(("data", "num_workers"), 0, 2),
        Change(("data", "path"), None, "x"),
        Change(("optimizer", "lr"), 1, 2),
    ]
    with pytest.raises(ConfigError) as caught:
        check_compatible(changes, run_dir="R")
    assert str(caught.value) == (
        "resume cannot change model.d_model: 256 -> 512, data.path: null -> x (run R); drop these "
        "overrides, start a new run, or add resume_strict=false"
    )
    check_compatible([changes[1], changes[3]], run_dir="R")


# Overrides ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("a.b=1", "a.b", "1"),
        ("++a=b=c", "a", "b=c"),
        ("~a.b", "a.b", None),
        ("+model@eval=small", "model", "small"),
        ("a=x\ny", "a", "x\ny"),
        ("hydra/launcher=basic", "hydra/launcher", "basic"),
    ],
)
def test_an_override_has_a_key_and_a_value(text: str, key: str, value: str | None) -> None:
    override = Override.parse(text)
    assert (override.text, override.key, override.value) == (text, key, value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("hydra.run.dir=x", True), ("hydra/launcher=x", True), ("hydrant=1", False)],
)
def test_overrides_about_hydra_are_told_apart(text: str, expected: bool) -> None:
    assert Override.parse(text).is_hydra is expected


def test_only_what_describes_the_run_is_replayed() -> None:
    given = [
        "optimizer=muon",
        "resume=true",
        "overwrite=true",
        "++resume_strict=false",
        "run.output_dir=x",
        "output_dir=x",
        "hydra.verbose=true",
        "extras.allow_targets=[os]",
        "+extras={allow_targets: [os]}",
        "extras.print_config=true",
        "~tags",
    ]
    assert replayable(given) == ("optimizer=muon", "extras.print_config=true", "~tags")


@pytest.mark.parametrize(
    ("later", "kept"),
    [
        ([], ["scheduler=linear", "scheduler.warmup_steps=3", "seed=1", "+optimizer.x=2"]),
        (["seed=2"], ["scheduler=linear", "scheduler.warmup_steps=3", "+optimizer.x=2"]),
        (["run.seed=2"], ["scheduler=linear", "scheduler.warmup_steps=3", "+optimizer.x=2"]),
        (["scheduler=cosine"], ["seed=1", "+optimizer.x=2"]),
        (["scheduler=linear"], ["scheduler.warmup_steps=3", "seed=1", "+optimizer.x=2"]),
        (["optimizer=muon"], ["scheduler=linear", "scheduler.warmup_steps=3", "seed=1"]),
        (["scheduler.warmup_steps=4"], ["scheduler=linear", "seed=1", "+optimizer.x=2"]),
    ],
)
def test_later_words_take_back_what_they_replace(later: list[str], kept: list[str]) -> None:
    earlier = ["scheduler=linear", "scheduler.warmup_steps=3", "seed=1", "+optimizer.x=2"]
    choices = {"scheduler": "linear", "optimizer": "adamw"}
    assert keep_effective(earlier, later, choices=choices) == kept


def test_naming_the_same_group_option_again_asks_for_nothing() -> None:
    given = ["optimizer=adamw", "scheduler=linear", "optimizer.lr=1", "hydra.verbose=true"]
    choices = {"optimizer": "adamw", "scheduler": "cosine"}
    assert asked_keys(given, choices=choices) == ("scheduler", "optimizer.lr")


def test_an_unknown_message_of_hydra_becomes_one_line() -> None:
    assert explain_composition("Something\n  odd\n\thappened") == "Something odd happened"


# Saved files --------------------------------------------------------------------------------------


def save(folder: Path, config: Any, overrides: list[str] | None) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    OmegaConf.save(config, folder / "config.yaml")
    if overrides is not None:
        OmegaConf.save(OmegaConf.create(overrides), folder / "overrides.yaml")


def test_the_first_start_is_read_from_hydras_files(tmp_path: Path) -> None:
    assert read_saved_run(tmp_path) is None
    save(tmp_path, {"a": "${b}", "b": 1e-3}, ["b=1e-3", "resume=true"])
    saved = read_saved_run(tmp_path)
    assert saved is not None
    assert saved.config == {"a": "${b}", "b": 0.001}
    assert saved.overrides == ("b=1e-3",)


def test_the_newest_complete_segment_wins(tmp_path: Path) -> None:
    save(tmp_path, {"a": 1}, [])
    for number in (1, 2, 10):
        save(tmp_path / f"resume-{number:03d}", {"a": "composed"}, [f"a={number}"])
        save_merged(tmp_path / f"resume-{number:03d}", {"a": number, "b": "${a}"})
    save(tmp_path / "resume-011", {"a": "composed"}, ["a=11"])
    saved = read_saved_run(tmp_path)
    assert saved is not None
    assert saved.config == {"a": 10, "b": "${a}"}
    assert saved.overrides == ("a=10",)
    assert next_segment(tmp_path) == "resume-012"


@pytest.mark.parametrize("torn", ["", "[", "a: [1", "a: b: c"])
def test_a_torn_file_is_passed_over(tmp_path: Path, torn: str) -> None:
    save(tmp_path, {"a": 1}, [])
    save(tmp_path / "resume-001", {}, [])
    (tmp_path / "resume-001" / MERGED_NAME).write_text(torn)
    saved = read_saved_run(tmp_path)
    assert saved is not None
    assert saved.config == {"a": 1}
    (tmp_path / "overrides.yaml").write_text(torn)
    assert read_saved_run(tmp_path) is None


def test_resolved_settings_serve_a_run_without_hydras_files(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"run": {"seed": 5}, "tags": ["${oc.env:HOME} ${"]}')
    saved = read_saved_run(tmp_path / ".hydra", config_json=tmp_path / "config.json")
    assert saved is not None
    assert saved.config["run"] == {"seed": 5}
    assert load_config(OmegaConf.create(saved.config)).tags == ("${oc.env:HOME} ${",)
    assert not saved.is_composed


def test_the_first_segment_is_001(tmp_path: Path) -> None:
    assert next_segment(tmp_path / "missing") == "resume-001"
