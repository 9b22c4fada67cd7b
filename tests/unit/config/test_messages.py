"""Every mistake in a configuration is one line: key, rule, value, what to do."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from speedtronic.config import AdamWSettings, ConfigError, load_config
from speedtronic.config.load import unknown_override
from speedtronic.core.settings import redact

OPTIMIZERS = "adamw, cautious_adamw, muon, muon_plus, muon_torch, normuon"

LINES: list[tuple[dict[str, Any], str]] = [
    # unknown keys
    ({"optimizer": {"lrr": 1}}, "optimizer.lrr: unknown key, got 1; did you mean 'optimizer.lr'?"),
    ({"experimant": "x"}, "experimant: unknown key, got 'x'; did you mean 'experiment'?"),
    ({"optimiser": {}}, "optimiser: unknown key, got {}; did you mean 'optimizer'?"),
    (
        {"evaluation": {"zzz": 1}},
        "evaluation.zzz: unknown key, got 1; known keys are every_steps, max_batches, patience",
    ),
    (
        {"run": {"sede": 1, "nam": 2}},
        "run.sede: unknown key, got 1; did you mean 'run.seed'? (also wrong: run.nam)",
    ),
    (
        {"optimizer": {"_partial_": True}},
        "optimizer._partial_: unknown key, got true; known keys are betas, cautious, decay,"
        " eps, fused, grad_clip, lr, weight_decay",
    ),
    # types
    (
        {"optimizer": {"lr": "abc"}},
        "optimizer.lr: must be a number, got 'abc'; the default is 0.001",
    ),
    ({"optimizer": {"lr": True}}, "optimizer.lr: must be a number, got true; the default is 0.001"),
    ({"run": {"seed": 1.5}}, "run.seed: must be an integer, got 1.5; the default is 1234"),
    ({"run": {"seed": True}}, "run.seed: must be an integer, got true; the default is 1234"),
    ({"run": {"seed": "3"}}, "run.seed: must be an integer, got '3'; the default is 1234"),
    ({"resume": 1}, "resume: must be true or false, got 1; the default is false"),
    ({"compile": "on"}, "compile: must be true or false, got 'on'; write true"),
    ({"compile": "no"}, "compile: must be true or false, got 'no'; write false"),
    ({"tags": "a"}, "tags: must be a list, got 'a'; the default is []"),
    ({"tags": ["a", 1]}, "tags[1]: must be text, got 1; the default is []"),
    (
        {"optimizer": {"betas": 3}},
        "optimizer.betas: must be a list, got 3; the default is [0.9, 0.95]",
    ),
    (
        {"optimizer": {"betas": [0.9]}},
        "optimizer.betas: must have 2 items, got (0.9,); the default is [0.9, 0.95]",
    ),
    (
        {"optimizer": {"betas": [0.9, 0.95, 0.99]}},
        "optimizer.betas: must have 2 items, got [0.9, 0.95, 0.99]; the default is [0.9, 0.95]",
    ),
    (
        {"gradient_checkpointing": "x"},
        "gradient_checkpointing: must be true or false or an integer, got 'x';"
        " the default is false",
    ),
    (
        {"optimizer": {"fused": "None"}},
        "optimizer.fused: got the text 'None'; write null",
    ),
    ({"data": {"path": "None"}}, "data.path: got the text 'None'; write null"),
    ({"init_from": "None"}, "init_from: got the text 'None'; write null"),
    (
        {"run": {"name": {"_target_": "os.system"}}},
        "run.name: must be text, got {'_target_': 'os.system'}; the default is 'speedtronic'",
    ),
    # ranges and choices
    (
        {"optimizer": {"lr": -1}},
        "optimizer.lr: must be greater than 0, got -1; the default is 0.001",
    ),
    (
        {"optimizer": {"betas": [0.9, 1.0]}},
        "optimizer.betas[1]: must be less than 1, got 1.0; the default is [0.9, 0.95]",
    ),
    ({"seed": -1}, "run.seed: must be at least 0, got -1; the default is 1234"),
    ({"seed": 2**32}, "run.seed: must be at most 4294967295, got 4294967296; the default is 1234"),
    ({"max_steps": 0}, "run.max_steps: must be at least 1, got 0; the default is 1000"),
    (
        {"data": {"max_steps": 0}},
        "data.max_steps: must be at least 1 or null, got 0; the default is null",
    ),
    (
        {"run": {"max_minutes": float("inf")}},
        "run.max_minutes: must be finite or null, got inf; the default is null",
    ),
    (
        {"precision": {"mode": "bf61"}},
        "precision.mode: must be one of 'auto', 'bf16', 'fp16' or 'fp32', got 'bf61';"
        " did you mean 'bf16'?",
    ),
    (
        {"logging": {"level": "info"}},
        "logging.level: must be one of 'DEBUG', 'INFO', 'WARNING' or 'ERROR', got 'info';"
        " did you mean 'INFO'?",
    ),
    (
        {"data": {"tokenizer": "bytes"}},
        "data.tokenizer: must be byte, char or file:PATH, got 'bytes'; the default is 'byte'",
    ),
    (
        {"data": {"tokenizer": "file:"}},
        "data.tokenizer: must be byte, char or file:PATH, got 'file:'; the default is 'byte'",
    ),
    (
        {"run": {"device": "gpu"}},
        "run.device: must be auto, cpu, mps, cuda or cuda:N, got 'gpu'; the default is 'auto'",
    ),
    (
        {"run": {"name": "../x"}},
        "run.name: must be the name of one folder, got '../x'; the default is 'speedtronic'",
    ),
    (
        {"data": {"name": "text", "path": []}},
        "data.path: must be text or a list of at least 1 entry or null, got [];"
        " the default is null",
    ),
    # options
    (
        {"optimizer": "adamww"},
        f"optimizer: must be one of {OPTIMIZERS}, got 'adamww'; did you mean 'adamw'?",
    ),
    (
        {"optimizer": "spectral"},
        f"optimizer: must be one of {OPTIMIZERS}, got 'spectral'; see conf/optimizer",
    ),
    (
        {"scheduler": "triangle"},
        "scheduler: must be one of constant, cosine, linear, wsd, got 'triangle';"
        " see conf/scheduler",
    ),
    ({"distributed": "diloco"}, "distributed: must be solo, got 'diloco'; see conf/distributed"),
    (
        {"optimizer": 3},
        f"optimizer: must be a section or the name of an option, got 3; options are {OPTIMIZERS}",
    ),
    (
        {"optimizer": None},
        "optimizer: must be a section or the name of an option, got null; options are"
        f" {OPTIMIZERS}",
    ),
    # across keys
    (
        {"model": {"n_head": 7}},
        "model.d_model must be divisible by model.n_head (7), got 256;"
        " try model.n_head=8 or model.d_model=252",
    ),
    (
        {"model": {"n_head": 256}},
        "model.d_model must give heads of even width for model.n_head=256, got 256;"
        " try model.n_head=128 or model.d_model=512",
    ),
    (
        {"model": {"d_model": 63}},
        "model.d_model must be divisible by model.n_head (8), got 63; try model.d_model=64",
    ),
    (
        {"model": {"n_kv_head": 3}},
        "model.n_kv_head must divide model.n_head (8), got 3; try model.n_kv_head=2",
    ),
    (
        {"data": {"target_batch_size": 6, "micro_batch_size": 4}},
        "data.target_batch_size must be a multiple of data.micro_batch_size (4), got 6; try 8",
    ),
    (
        {"data": {"block_size": 256}},
        "data.block_size must be at most model.max_seq_len (128), got 256;"
        " try data.block_size=128 or model.max_seq_len=256",
    ),
    (
        {"data": "text"},
        "data.path must be given for data=text, got null;"
        " set data.path to a file, a folder or a pattern",
    ),
    (
        {"data": "tokens"},
        "data.path must be given for data=tokens, got null;"
        " set data.path to a folder written by python -m speedtronic.data",
    ),
    (
        {"evaluation": {"every_steps": None, "patience": 2}},
        "evaluation.patience needs evaluation.every_steps, got evaluation.patience=2 with"
        " evaluation.every_steps=null; set both",
    ),
    (
        {"resume": True, "overwrite": True},
        "resume and overwrite cannot both be true, got resume=true overwrite=true;"
        " resume continues the run in the folder, overwrite moves it aside: choose one",
    ),
    # interpolation
    (
        {"run": {"seed": "${nope}"}},
        "run.seed: Interpolation key 'nope' not found; correct this key",
    ),
    ({"run": {"seed": "???"}}, "run.seed: Missing mandatory value: seed; correct this key"),
    # hooks
    (
        {"logging": {"hooks": ["nope"]}},
        "logging.hooks[0]: must be wandb or mlflow or have a _target_, got 'nope'; name a callable",
    ),
    (
        {"logging": {"hooks": [3]}},
        "logging.hooks[0]: must be wandb or mlflow or have a _target_, got 3; name a callable",
    ),
    (
        {"logging": {"hooks": {"a": 1}}},
        "logging.hooks: must be a list, got {'a': 1}; the default is []",
    ),
    # secrets
    (
        {"data": {"token": "open sesame"}},
        "data.token: unknown key, got ***; did you mean 'data.tokenizer'?",
    ),
    (
        {"optimizer": {"lr": {"token": "open sesame"}}},
        "optimizer.lr: must be a number, got {'token': '***'}; the default is 0.001",
    ),
]


@pytest.mark.parametrize(("values", "line"), LINES, ids=[line[:50] for _, line in LINES])
def test_a_mistake_is_one_line(values: dict[str, Any], line: str) -> None:
    for source in (values, OmegaConf.create(values)):
        with pytest.raises(ConfigError) as caught:
            load_config(source)
        assert str(caught.value) == line
        assert caught.value.exit_status == 2
        assert isinstance(caught.value, ValueError)


def test_settings_built_in_python_give_the_same_line() -> None:
    with pytest.raises(ConfigError) as caught:
        AdamWSettings(lr=-1)
    assert str(caught.value) == "optimizer.lr: must be greater than 0, got -1; the default is 0.001"


def test_a_long_value_is_cut() -> None:
    with pytest.raises(ConfigError) as caught:
        load_config({"run": {"seed": "x" * 1000}})
    assert len(str(caught.value)) < 160


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(tmp_path / "c.yaml")
    expected = f"{tmp_path}/c.yaml: cannot be read (no such file or directory); give a YAML file"
    assert str(caught.value) == expected


def test_a_folder_is_no_configuration(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(tmp_path)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a: [1\n", "is no valid YAML"),
        ("- 1\n", "must hold a mapping"),
        ("a: 1\na: 2\n", "no valid"),
    ],
)
def test_a_broken_file_is_one_line(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=reason) as caught:
        load_config(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


def test_an_undecodable_file_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_bytes(b"run:\n  name: \xff\xfe\n")
    with pytest.raises(ConfigError, match="is no valid YAML") as caught:
        load_config(path)
    assert "\n" not in str(caught.value)


def test_something_else_than_a_mapping_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"configuration: must be a mapping .* got list"):
        load_config([1])


def test_settings_cannot_be_changed() -> None:
    settings = AdamWSettings()
    with pytest.raises(ValueError, match="frozen"):
        settings.lr = 1.0  # type: ignore[misc]


def test_a_changed_copy_is_checked() -> None:
    assert AdamWSettings().replace(lr=0.5) == AdamWSettings(lr=0.5)
    with pytest.raises(ConfigError, match=r"optimizer\.lr: must be greater than 0, got 0"):
        AdamWSettings().replace(lr=0)


def test_settings_can_be_pickled_and_copied() -> None:
    config = load_config({"model": "tiny", "data": "synthetic"})
    assert pickle.loads(pickle.dumps(config)) == config
    assert copy.deepcopy(config) == config


def test_redaction_hides_values_at_any_depth_and_leaves_the_rest() -> None:
    tree = {"a": [{"API_KEY": "x"}], "tokenizer": "byte", "eos_token": "<s>", "token": None}
    assert redact(tree) == {
        "a": [{"API_KEY": "***"}],
        "tokenizer": "byte",
        "eos_token": "<s>",
        "token": None,
    }


@pytest.mark.parametrize(
    ("key", "line"),
    [
        ("optimizer.lrr", "optimizer.lrr: unknown key, got 1; did you mean 'optimizer.lr'?"),
        ("optimiser.lr", "optimiser.lr: unknown key, got 1; did you mean 'optimizer.lr'?"),
        ("seeed", "seeed: unknown key, got 1; did you mean 'seed'?"),
        ("data.vocab_sise", "data.vocab_sise: unknown key, got 1; did you mean 'data.vocab_size'?"),
        ("experimant", "experimant: unknown key, got 1; did you mean 'experiment'?"),
        ("zz.yy", "zz.yy: unknown key, got 1; see --cfg job for all keys"),
    ],
)
def test_an_unknown_override_gets_the_nearest_key_of_any_choice(key: str, line: str) -> None:
    assert unknown_override(key, 1) == line
