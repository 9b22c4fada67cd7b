"""The ways in: dict, YAML, DictConfig and configuration; short names and root shorthands."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from speedtronic.config import (
    AdamWSettings,
    ConfigError,
    GPTSettings,
    LinearSettings,
    PrecisionSettings,
    RunSettings,
    SpeedtronicConfig,
    SyntheticDataSettings,
    TextDataSettings,
    groups,
    load_config,
)
from speedtronic.config.load import register_resolvers

VALUES: dict[str, Any] = {
    "seed": 7,
    "model": {"name": "tiny", "dropout": 0.1},
    "data": {"name": "text", "path": ["a.txt", "b/*.txt"], "target_batch_size": 32},
    "optimizer": {"lr": 3e-3, "betas": (0.8, 0.9)},
    "scheduler": "linear",
    "precision": "fp32",
    "evaluation": {"every_steps": None},
    "tags": ["first", "second"],
    "gradient_checkpointing": 2,
}


def written(values: dict[str, Any], path: Path) -> Path:
    path.write_text(OmegaConf.to_yaml(OmegaConf.create(values)))
    return path


def test_dict_yaml_json_and_dictconfig_give_equal_configurations(tmp_path: Path) -> None:
    from_dict = load_config(VALUES)
    json_path = tmp_path / "c.json"
    json_path.write_text(json.dumps(VALUES))

    assert load_config(written(VALUES, tmp_path / "c.yaml")) == from_dict
    assert load_config(str(tmp_path / "c.yaml")) == from_dict
    assert load_config(json_path) == from_dict
    assert load_config(OmegaConf.create(VALUES)) == from_dict
    assert from_dict == SpeedtronicConfig(
        run=RunSettings(seed=7),
        model=GPTSettings(n_layer=4, n_head=4, d_model=128, dropout=0.1),
        data=TextDataSettings(path=["a.txt", "b/*.txt"], target_batch_size=32),
        optimizer=AdamWSettings(lr=3e-3, betas=(0.8, 0.9)),
        scheduler=LinearSettings(),
        precision=PrecisionSettings(mode="fp32"),
        evaluation=from_dict.evaluation.replace(every_steps=None),
        tags=("first", "second"),
        gradient_checkpointing=2,
    )


def test_a_configuration_is_returned_as_it_is() -> None:
    config = SpeedtronicConfig()
    assert load_config(config) is config
    assert SpeedtronicConfig.load(config) is config


def test_loading_changes_neither_dict_nor_dictconfig() -> None:
    values: dict[str, Any] = {"seed": 3, "run": {"name": "a"}, "model": {"name": "tiny"}}
    cfg = OmegaConf.create(values)
    load_config(values)
    load_config(cfg)
    assert values == {"seed": 3, "run": {"name": "a"}, "model": {"name": "tiny"}}
    assert cfg == OmegaConf.create(values)


@pytest.mark.parametrize("value", ["tiny", {"name": "tiny"}])
def test_a_short_name_is_an_option_of_the_conf_tree(value: Any) -> None:
    assert load_config({"model": value}).model == GPTSettings(n_layer=4, n_head=4, d_model=128)


def test_a_section_without_name_and_target_is_the_default_of_its_group() -> None:
    config = load_config({"optimizer": {"lr": 0.5}, "model": {"n_layer": 2}})
    assert config.optimizer == AdamWSettings(lr=0.5)
    assert config.model == GPTSettings(n_layer=2)


def test_a_target_of_ours_picks_the_class() -> None:
    section = {"_target_": "speedtronic.config.SyntheticDataSettings", "num_tokens": 99}
    assert load_config({"data": section}).data == SyntheticDataSettings(num_tokens=99)


def test_name_and_target_may_agree() -> None:
    section = {"_target_": "speedtronic.config.GPTSettings", "name": "tiny", "n_layer": 1}
    assert load_config({"model": section}).model == GPTSettings(n_layer=1, n_head=4, d_model=128)


def test_name_and_target_that_disagree_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"optimizer\.name and optimizer\._target_ must agree"):
        load_config({"optimizer": {"name": "adamw", "_target_": "torch.optim.SGD"}})


def test_a_name_beside_a_composed_section_is_refused_because_it_would_change_nothing() -> None:
    section = {"_target_": "speedtronic.config.GPTSettings", **GPTSettings().model_dump()}
    with pytest.raises(ConfigError, match=r"model\.name: has no effect .* write model=tiny"):
        load_config({"model": {**section, "name": "tiny"}})


def test_settings_objects_may_stand_in_a_dict() -> None:
    optimizer = AdamWSettings(lr=0.25)
    assert load_config({"optimizer": optimizer, "seed": 0}).optimizer == optimizer


def test_interpolations_are_resolved(tmp_path: Path) -> None:
    values = {"run": {"seed": 5}, "data": {"seed": "${run.seed}"}}
    assert load_config(values).data.seed == 5
    assert load_config(written(values, tmp_path / "c.yaml")).data.seed == 5


@pytest.mark.parametrize("key", ["name", "seed", "device", "max_steps", "output_dir"])
def test_a_root_shorthand_means_the_key_of_run(key: str) -> None:
    value: Any = {"name": "mine", "seed": 0, "device": "cpu", "max_steps": 3, "output_dir": "o"}[
        key
    ]
    config = load_config({key: value})
    assert getattr(config.run, key) == value
    assert config == load_config({"run": {key: value}})
    assert config == load_config({key: value, "run": {key: value}})


def test_a_null_shorthand_is_not_given() -> None:
    assert load_config({"seed": None, "run": {"seed": 5}}).run.seed == 5


def test_a_shorthand_wins_over_the_default_that_a_composed_run_section_repeats() -> None:
    assert load_config({"seed": 5, "run": {"seed": 1234}}).run.seed == 5


def test_a_shorthand_that_differs_from_run_is_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        load_config({"max_steps": 5, "run": {"max_steps": 6}})
    assert str(caught.value) == (
        "max_steps and run.max_steps must not differ, got max_steps=5 run.max_steps=6;"
        " give one of them"
    )


def test_a_run_object_beside_a_shorthand_is_merged() -> None:
    config = load_config({"seed": 5, "run": RunSettings(name="mine")})
    assert (config.run.seed, config.run.name) == (5, "mine")


def test_yaml_that_says_off_means_progress_off(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("logging:\n  progress: off\n")
    assert load_config(path).logging.progress == "off"


def test_numbers_in_exponent_notation_are_numbers_in_yaml(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("optimizer:\n  lr: 3e-3\n  eps: 1e-8\n")
    assert load_config(path).optimizer == AdamWSettings(lr=3e-3, eps=1e-8)


def test_a_path_object_becomes_text() -> None:
    config = load_config({"data": {"name": "text", "path": Path("a") / "b.txt"}})
    assert config.data == TextDataSettings(path="a/b.txt")
    assert RunSettings(output_dir=Path("/x")).output_dir == "/x"


def test_the_python_surface_round_trips(tmp_path: Path) -> None:
    config = SpeedtronicConfig.from_dict(VALUES)
    config.save(tmp_path / "sub" / "c.yaml")

    assert SpeedtronicConfig.from_yaml(tmp_path / "sub" / "c.yaml") == config
    assert SpeedtronicConfig.from_dict(config.to_dict()) == config
    assert SpeedtronicConfig.load(str(tmp_path / "sub" / "c.yaml")) == config


def test_to_dict_is_strict_json_with_every_field() -> None:
    tree = load_config(VALUES).to_dict()
    assert json.loads(json.dumps(tree, allow_nan=False)) == tree
    assert tree["model"]["_target_"] == "speedtronic.config.GPTSettings"
    assert tree["optimizer"]["betas"] == [0.8, 0.9]
    assert tree["run"]["seed"] == 7
    assert "seed" not in tree


def test_text_that_looks_like_an_interpolation_survives_saving(tmp_path: Path) -> None:
    config = SpeedtronicConfig(tags=("a${b}c", "plain"))
    config.save(tmp_path / "c.yaml")
    assert load_config(tmp_path / "c.yaml").tags == ("a${b}c", "plain")


class TestSavedRuns:
    """A saved configuration is a stranger's: its text is text, and nothing is looked up."""

    TEXT = "${oc.env:SPEEDTRONIC_PROBE} ${run.seed} ${"

    @pytest.fixture(autouse=True)
    def probe(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SPEEDTRONIC_PROBE", "open sesame")

    def test_a_dict_with_an_allow_list_is_taken_as_it_is(self) -> None:
        values = {"tags": (self.TEXT,), "run": {"name": self.TEXT}, "model": GPTSettings(n_head=4)}
        config = load_config(values, allow_targets=())
        assert config.tags == (self.TEXT,)
        assert config.run.name == self.TEXT
        assert config.model == GPTSettings(n_head=4)
        assert load_config(config.to_dict(), allow_targets=()) == config

    def test_so_is_a_json_file(self, tmp_path: Path) -> None:
        path = tmp_path / "config.json"
        path.write_text(json.dumps({"tags": [self.TEXT]}))
        assert load_config(path).tags == (self.TEXT,)
        assert load_config(path, allow_targets=()).tags == (self.TEXT,)

    def test_a_yaml_file_with_an_allow_list_looks_nothing_up(self, tmp_path: Path) -> None:
        path = tmp_path / "c.yaml"
        path.write_text("tags: ['${oc.env:SPEEDTRONIC_PROBE}']\n")
        assert load_config(path).tags == ("open sesame",)
        assert load_config(path, allow_targets=()).tags == ("${oc.env:SPEEDTRONIC_PROBE}",)

    def test_a_saved_yaml_file_round_trips(self, tmp_path: Path) -> None:
        config = SpeedtronicConfig(tags=("a${b}c", "${oc.env:SPEEDTRONIC_PROBE}"))
        config.save(tmp_path / "c.yaml")
        assert load_config(tmp_path / "c.yaml", allow_targets=()) == config

    def test_a_torn_json_file_is_one_line(self, tmp_path: Path) -> None:
        path = tmp_path / "config.json"
        path.write_text('{"tags": [')
        with pytest.raises(ConfigError, match=r"config\.json: is no valid JSON \(Expecting value"):
            load_config(path)
        path.write_text("[1]")
        with pytest.raises(ConfigError, match="must be a mapping of sections"):
            load_config(path)
        with pytest.raises(ConfigError, match=r"none\.json: cannot be read \(no such file"):
            load_config(tmp_path / "none.json")


def test_a_missing_configuration_tree_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "speedtronic"
    monkeypatch.setattr(groups, "__file__", str(package / "config" / "groups.py"))
    with pytest.raises(ConfigError) as caught:
        groups.conf_folder()
    assert str(caught.value) == (
        f"no configuration tree beside {package}; install speedtronic again"
    )
    for folder in (tmp_path / "conf", package / "conf"):  # the installed one goes first
        folder.mkdir(parents=True)
        (folder / "config.yaml").touch()
        assert groups.conf_folder() == folder


def test_the_resolver_is_registered_without_a_deprecated_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    registered: list[str] = []

    def register(name: str, resolver: Any, *, replace: bool) -> None:
        registered.append(name)

    monkeypatch.setattr(OmegaConf, "register_resolver", staticmethod(register), raising=False)
    register_resolvers()
    assert registered == ["speedtronic.first_given"]
    monkeypatch.undo()
    register_resolvers()
    tree = OmegaConf.create({"a": "${speedtronic.first_given:null,3}"})
    assert tree.a == 3


def test_importing_and_loading_settings_imports_neither_torch_nor_hydra() -> None:
    code = (
        "import sys; from speedtronic.config import load_config; load_config({'model': 'tiny'});"
        "print('torch' in sys.modules, 'hydra' in sys.modules, 'numpy' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False", "False"]
