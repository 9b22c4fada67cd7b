"""Every YAML option lists each field of its settings class, with its default and a comment."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf
from pydantic_core import PydanticUndefined

from speedtronic import config
from speedtronic.config.groups import GROUPS, Group, conf_folder
from speedtronic.config.load import SHORTHANDS
from speedtronic.config.schema import SpeedtronicConfig
from speedtronic.core.settings import Settings

CONF = Path(__file__).parents[2] / "conf"
OPTIONS = [(group, option) for group in GROUPS.values() for option in group.options()]
# Presets: options that exist to give these keys other values than the class.
PRESETS: dict[tuple[str, str], dict[str, Any]] = {
    ("model", "nano"): {"n_layer": 2, "d_model": 64},
    ("model", "tiny"): {"n_head": 4, "d_model": 128},
    ("model", "gpt2_124m"): {"n_layer": 12, "n_head": 12, "d_model": 768, "max_seq_len": 1024},
    ("optimizer", "cautious_adamw"): {"cautious": True},
    ("optimizer", "muon_plus"): {"muon_plus": "col_row"},
    ("optimizer", "normuon"): {"normuon": True},
    ("precision", "bf16"): {"mode": "bf16"},
    ("precision", "fp16"): {"mode": "fp16"},
    ("precision", "fp32"): {"mode": "fp32"},
}


def read(path: Path) -> dict[str, Any]:
    tree = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
    assert isinstance(tree, dict)
    return {str(key): value for key, value in tree.items()}


def defaults(cls: type[Settings]) -> dict[str, Any]:
    found = {name: field.get_default() for name, field in cls.model_fields.items()}
    assert PydanticUndefined not in found.values()
    return {
        name: list(value) if isinstance(value, tuple) else value for name, value in found.items()
    }


def test_the_conf_tree_is_the_one_beside_the_package() -> None:
    assert conf_folder() == CONF


def test_every_group_of_the_architecture_has_options() -> None:
    assert {group.name for group, _ in OPTIONS} == set(GROUPS) - {"run", "extras"}


@pytest.mark.parametrize(
    ("group", "option"), OPTIONS, ids=[f"{group.name}-{option}" for group, option in OPTIONS]
)
def test_an_option_lists_every_field_with_its_default(group: Group, option: str) -> None:
    tree = read(group.option_path(option))
    cls = getattr(config, tree.pop("_target_").removeprefix("speedtronic.config."))

    expected = defaults(cls) | PRESETS.get((group.name, option), {})

    assert issubclass(cls, group.base)
    assert tree == expected
    assert {key: type(value) for key, value in tree.items()} == {
        key: type(value) for key, value in expected.items()
    }


@pytest.mark.parametrize("section", ["run", "extras"])
def test_the_primary_file_lists_every_field_of_its_own_sections(section: str) -> None:
    assert read(CONF / "config.yaml")[section] == defaults(GROUPS[section].default)


def test_the_primary_file_lists_every_root_key_and_null_shorthands() -> None:
    tree = read(CONF / "config.yaml")
    roots = set(SpeedtronicConfig.model_fields) - set(GROUPS)
    default = SpeedtronicConfig()

    assert set(tree) == {"defaults", "hydra", "run", "extras", *roots, *SHORTHANDS}
    assert {key: tree[key] for key in SHORTHANDS} == dict.fromkeys(SHORTHANDS)
    for key in roots - {"tags"}:
        assert tree[key] == getattr(default, key), key
    assert tree["tags"] == list(default.tags)


def test_every_class_a_group_may_choose_has_an_option() -> None:
    chosen = {read(group.option_path(option))["_target_"] for group, option in OPTIONS}
    selectable = {
        f"speedtronic.config.{name}"
        for name in config.__all__
        for group in GROUPS.values()
        if group.options()
        and isinstance(found := getattr(config, name), type)
        and issubclass(found, group.base)
        and not name.startswith(("Foreign", "Registered"))
        and not found.__abstractmethods__
    }
    assert chosen == selectable


@pytest.mark.parametrize(
    "path",
    sorted(CONF.rglob("*.yaml")),
    ids=lambda path: str(path.relative_to(CONF)),
)
def test_every_key_has_a_comment_and_every_file_says_what_it_is_for(path: Path) -> None:
    lines = path.read_text().splitlines()
    package_line = "# @package _global_"
    head = lines[1] if lines[0] == package_line else lines[0]
    assert head.startswith("# ")
    if "hydra" in path.parts:
        return
    for number, line in enumerate(lines):
        is_field = re.match(r" *[a-z]\w*: *[^ #]", line) and "_target_" not in line
        is_shorthand = line.endswith(": null") and path.name == "config.yaml"
        in_hydra_section = "hydra:" in lines[:number]
        if is_field and not is_shorthand and not in_hydra_section:
            before = lines[number - 1].strip()
            assert "#" in line or before.startswith("#"), f"{path.name}: {line}"
