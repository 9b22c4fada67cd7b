"""Every file of ``conf/`` composes, and what it composes is a valid configuration."""

from __future__ import annotations

from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

from speedtronic.config import SpeedtronicConfig, load_config
from speedtronic.config.groups import GROUPS

CONF = Path(__file__).parents[2] / "conf"
EXPERIMENTS = [path.stem for path in sorted((CONF / "experiment").glob("*.yaml"))]
DEBUGS = [path.stem for path in sorted((CONF / "debug").glob("*.yaml"))]
OPTIONS = [(group.name, option) for group in GROUPS.values() for option in group.options()]
NEEDS_PATH = {("data", "text"), ("data", "tokens")}


def composed(*overrides: str) -> DictConfig:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return compose("config", overrides=list(overrides))


def composed_with_hydra(*overrides: str) -> DictConfig:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return compose("config", overrides=list(overrides), return_hydra_config=True)


def test_the_bare_composition_equals_the_defaults_of_the_classes() -> None:
    assert load_config(composed()) == SpeedtronicConfig()
    assert load_config({}) == SpeedtronicConfig()


@pytest.mark.parametrize(("group", "option"), OPTIONS)
def test_an_option_composes_to_what_its_name_gives_in_python(group: str, option: str) -> None:
    path = ["data.path=text.txt"] if (group, option) in NEEDS_PATH else []
    section = {"name": option, "path": "text.txt"} if path else option

    from_yaml = load_config(composed(f"{group}={option}", *path))

    assert from_yaml == load_config({group: section})
    assert load_config(from_yaml.to_dict()) == from_yaml


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_an_experiment_composes_without_a_plus(experiment: str) -> None:
    config = load_config(composed(f"experiment={experiment}"))
    assert config.run.name == experiment
    assert load_config(config.to_dict()) == config


@pytest.mark.parametrize("debug", DEBUGS)
def test_a_debug_preset_composes_and_wins_over_an_experiment(debug: str) -> None:
    config = load_config(composed("experiment=first_run", f"debug={debug}"))
    assert config.run.name == "debug"
    assert config.effective_max_steps == load_config(composed(f"debug={debug}")).run.max_steps


def test_the_first_run_is_300_updates_of_2048_bytes_on_the_standard_library() -> None:
    config = load_config(composed("experiment=first_run"))
    assert config.effective_max_steps == 300
    assert config.data.update_batch_size * config.effective_block_size == 2048
    assert config.to_dict()["model"]["d_model"] == 256
    assert config.to_dict()["data"]["_target_"] == "speedtronic.config.StdlibDataSettings"
    assert config.to_dict()["optimizer"]["_target_"] == "speedtronic.config.MuonSettings"
    assert config.to_dict()["optimizer"]["muon_lr"] == 0.03
    assert config.to_dict()["optimizer"]["lr"] == 8e-3
    assert config.to_dict()["scheduler"]["_target_"] == "speedtronic.config.WSDSettings"
    assert config.evaluation.every_steps == 100


def test_the_smoke_preset_takes_any_data() -> None:
    config = load_config(composed("debug=smoke", "data=text", "data.path=text.txt"))
    assert config.data.accumulation_steps == 2
    assert config.effective_max_steps == 3


def test_values_on_the_command_line_win_over_experiment_and_debug() -> None:
    config = load_config(
        composed("experiment=first_run", "debug=smoke", "max_steps=7", "name=mine", "model=tiny")
    )
    assert (config.effective_max_steps, config.run.name) == (7, "mine")
    assert config.to_dict()["model"]["n_layer"] == 4


def test_a_whole_experiment_may_change_groups_after_itself() -> None:
    config = load_config(composed("experiment=first_run", "scheduler=linear", "data=synthetic"))
    assert config.to_dict()["scheduler"]["_target_"] == "speedtronic.config.LinearSettings"
    assert config.to_dict()["data"]["num_tokens"] == 1_000_000


@pytest.mark.parametrize(
    ("overrides", "name"),
    [
        ([], "speedtronic"),
        (["run.name=mine"], "mine"),
        (["name=mine"], "mine"),
        (["experiment=first_run"], "first_run"),
        (["experiment=first_run", "name=mine"], "mine"),
        (["debug=smoke"], "debug"),
    ],
)
def test_the_run_folder_carries_the_name_in_force(overrides: list[str], name: str) -> None:
    cfg = composed_with_hydra(*overrides)
    folder = Path(cfg.hydra.run.dir)
    assert folder.parts[:2] == ("outputs", name)
    assert len(folder.name) == len("2026-01-31_23-59-59-123456")
    assert cfg.hydra.sweep.dir.startswith(f"outputs/{name}/sweeps/")
    assert load_config(cfg).run.name == name


def test_hydra_writes_no_log_of_its_own_and_stays_in_the_working_directory() -> None:
    hydra = composed_with_hydra().hydra
    assert hydra.job.chdir is False
    assert hydra.job_logging.root is None
    assert hydra.hydra_logging.root is None


def test_the_help_text_lists_the_groups_and_example_commands() -> None:
    template = composed_with_hydra().hydra.help.template
    assert "$APP_CONFIG_GROUPS" in template
    assert template.count("python scripts/train.py") >= 6
    assert "$CONFIG\n" not in template
    assert max(len(line) for line in template.splitlines()) <= 120


def test_sections_may_be_instantiated_by_hydra_itself() -> None:
    from hydra.utils import instantiate

    cfg = composed("model=tiny")
    assert instantiate(cfg.model) == load_config(cfg).model
    assert instantiate(cfg.optimizer) == load_config(cfg).optimizer


def test_the_saved_composition_of_a_run_loads_from_its_file(tmp_path: Path) -> None:
    cfg = composed("seed=7", "name=mine", "optimizer.lr=0.5")
    OmegaConf.save(cfg, tmp_path / "config.yaml")
    assert load_config(tmp_path / "config.yaml") == load_config(cfg)
