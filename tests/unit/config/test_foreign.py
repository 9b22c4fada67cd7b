"""The user's own classes in a configuration: keys, arguments, and what they are built with."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hydra import compose, initialize_config_dir
from torch import nn

from speedtronic.config import ConfigError, Factory, load_config
from speedtronic.config.groups import conf_folder
from speedtronic.config.model import RegisteredModelSettings
from speedtronic.models.registry import register_model

SOURCE = '''
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, width=16, *, vocab_size=3, d_model=5, n_layer=1, activation=None):
        super().__init__()
        self.width, self.vocab_size, self.d_model = width, vocab_size, d_model
        self.n_layer, self.activation = n_layer, activation
        self.layer = nn.Linear(width, vocab_size)

class Open(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.options = options

class Pairs(torch.utils.data.Dataset):
    def __init__(self, num_samples, *, block_size=1, shuffle=None):
        self.num_samples, self.block_size, self.shuffle = num_samples, block_size, shuffle

    def __len__(self):
        return self.num_samples

    def __getitem__(self, index):
        return torch.full((2,), float(index)), torch.tensor(float(index))

class Damped(torch.optim.SGD):
    """Has a ``decay`` of its own."""

    def __init__(self, params, lr=0.1, decay=0.5):
        super().__init__(params, lr=lr)
        self.decay = decay

def make_optimizer(model, device, lr=0.2):
    return torch.optim.SGD(model.parameters(), lr=lr)

def make_text():
    return "no module"

def watch(event, payload):
    SEEN.append((event, payload))

SEEN = []

class Watcher:
    def __init__(self, *, folder=None, label="x"):
        self.folder, self.label = folder, label

    def on_event(self, event, payload):
        SEEN.append((self.label, event, payload))
'''
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Put ``mine.py`` into the working directory."""
    (tmp_path / "mine.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    yield
    sys.modules.pop("mine", None)


def composed(*overrides: str) -> Any:
    with initialize_config_dir(str(conf_folder()), version_base="1.3"):
        return compose("config", overrides=list(overrides))


def test_a_model_gets_its_arguments_and_the_vocabulary() -> None:
    config = load_config({"model": {"_target_": "mine.Net", "width": 32}})
    model: Any = config.model.build(vocab_size=7)
    assert (model.width, model.vocab_size, model.layer.out_features) == (32, 7, 7)


def test_a_given_argument_wins_over_the_offered_one() -> None:
    config = load_config({"model": {"_target_": "mine.Net", "vocab_size": 9}})
    built: Any = config.model.build(vocab_size=7)
    assert built.vocab_size == 9


def test_a_signature_with_free_keywords_is_offered_nothing() -> None:
    config = load_config({"model": {"_target_": "mine.Open", "anything": [1, 2]}})
    built: Any = config.model.build(vocab_size=7)
    assert built.options == {"anything": [1, 2]}


def test_an_unknown_argument_is_refused_at_load_with_the_nearest() -> None:
    with pytest.raises(ConfigError) as caught:
        load_config({"model": {"_target_": "mine.Net", "widht": 3}})
    assert str(caught.value) == "model.widht: unknown key, got 3; did you mean 'model.width'?"


def test_a_missing_argument_is_one_line_when_building() -> None:
    config = load_config({"data": {"_target_": "mine.Pairs"}})
    with pytest.raises(ConfigError) as caught:
        config.data.build(block_size=4, seed=0, max_eval_batches=None, device=CPU)
    assert "data: Pairs(num_samples, block_size, shuffle) cannot be called" in str(caught.value)
    assert "missing a required argument: 'num_samples'" in str(caught.value)


def test_a_target_that_gives_no_module_is_refused() -> None:
    config = load_config({"model": {"_target_": "mine.make_text"}})
    with pytest.raises(ConfigError) as caught:
        config.model.build(vocab_size=None)
    assert str(caught.value) == (
        "model._target_ must give a torch.nn.Module, got str from mine.make_text;"
        " name a model class"
    )


def test_nested_targets_and_positional_arguments_are_built_innermost_first() -> None:
    config = load_config(
        {
            "model": {
                "_target_": "torch.nn.Sequential",
                "_args_": [
                    {"_target_": "torch.nn.Linear", "in_features": 2, "out_features": 3},
                    {"_target_": "torch.nn.ReLU"},
                ],
            }
        }
    )
    model: Any = config.model.build(vocab_size=None)
    assert [type(layer) for layer in model] == [nn.Linear, nn.ReLU]
    assert model[0].weight.shape == (3, 2)


def test_a_partial_target_is_passed_uncalled() -> None:
    partial = {"_target_": "torch.nn.LeakyReLU", "_partial_": True, "negative_slope": 0.5}
    config = load_config({"model": {"_target_": "mine.Net", "activation": partial}})
    built: Any = config.model.build(vocab_size=None)
    assert built.activation().negative_slope == 0.5


def test_on_the_command_line_keys_of_the_default_model_are_no_arguments() -> None:
    config = load_config(composed("model._target_=mine.Net", "+model.width=32"))
    assert config.to_dict()["model"] == {
        "_target_": "mine.Net",
        # Its signature has them, so what the composed configuration says holds.
        "n_layer": 4,
        "d_model": 256,
        "width": 32,
    }


def test_a_composed_key_that_the_target_lacks_is_dropped_with_a_warning() -> None:
    with pytest.warns(UserWarning, match="not used") as caught:
        config = load_config(
            composed("model=tiny", "model._target_=mine.Net", "model.n_head=2", "model.dropout=0.5")
        )
    assert [str(warning.message) for warning in caught] == [
        "model.n_head=2, model.dropout=0.5: not used, mine.Net has no such parameter"
    ]
    assert config.to_dict()["model"].keys() == {"_target_", "n_layer", "d_model"}


def test_a_preset_beside_a_target_drops_what_the_target_lacks() -> None:
    with pytest.warns(UserWarning, match=r"model\.max_seq_len=\d+.*: not used, mine\.Net has no"):
        config = load_config(composed("debug=smoke", "model._target_=mine.Net"))
    assert config.to_dict()["model"].keys() == {"_target_", "n_layer", "d_model"}


@pytest.mark.parametrize("option", ["nano", "tiny", "gpt", "small"])
def test_the_values_of_the_chosen_option_are_dropped_in_silence(option: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_config(composed(f"model={option}", "model._target_=mine.Net"))


def test_on_the_command_line_a_key_that_no_option_has_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"model\.widht: unknown key, got 3; did you mean"):
        load_config(composed("model._target_=mine.Net", "+model.widht=3"))


def test_a_foreign_model_leaves_the_block_size_to_data_or_its_own_max_seq_len() -> None:
    assert load_config({"model": {"_target_": "mine.Net"}}).effective_block_size == 128
    own = {"_target_": "mine.Open", "max_seq_len": 48}
    assert load_config({"model": own}).effective_block_size == 48
    assert load_config({"model": own, "data": {"block_size": 16}}).effective_block_size == 16


def test_loader_keys_beside_a_data_target_are_ours_and_offered_to_it() -> None:
    config = load_config(
        {
            "data": {
                "_target_": "mine.Pairs",
                "num_samples": 40,
                "micro_batch_size": 4,
                "target_batch_size": 8,
                "validation_fraction": 0.0,
                "shuffle": False,
            }
        }
    )
    assert config.data.accumulation_steps == 2
    loaded = config.data.build(block_size=6, seed=0, max_eval_batches=None, device=CPU)
    iterator = iter(loaded.train)
    inputs, labels = next(iterator)
    iterator.close()  # type: ignore[attr-defined]
    assert inputs.tolist() == [[0.0, 0.0], [1.0, 1.0], [2.0, 2.0], [3.0, 3.0]]
    assert labels.tolist() == [0.0, 1.0, 2.0, 3.0]
    assert config.data.factory.call(  # type: ignore[attr-defined]
        section="data", offered={"block_size": 6, "shuffle": False}
    ).__dict__ == {"num_samples": 40, "block_size": 6, "shuffle": False}


def test_a_wrong_loader_key_beside_a_data_target_is_checked_like_ours() -> None:
    with pytest.raises(ConfigError, match=r"data\.micro_batch_size: must be at least 1, got 0"):
        load_config({"data": {"_target_": "mine.Pairs", "num_samples": 4, "micro_batch_size": 0}})


def test_a_torch_optimizer_gets_our_groups_and_keeps_our_keys() -> None:
    config = load_config(
        {
            "optimizer": {
                "_target_": "torch.optim.SGD",
                "lr": 0.5,
                "weight_decay": 0.25,
                "grad_clip": None,
                "decay": "all",
            }
        }
    )
    assert config.optimizer.grad_clip is None
    optimizer = config.optimizer.build(model=nn.Linear(2, 3), device=CPU)
    assert type(optimizer) is torch.optim.SGD
    assert [(group["lr"], group["weight_decay"]) for group in optimizer.param_groups] == [
        (0.5, 0.25)
    ]
    assert len(optimizer.param_groups[0]["params"]) == 2


def test_on_the_command_line_an_optimizer_keeps_only_the_keys_it_has() -> None:
    config = load_config(composed("optimizer._target_=torch.optim.SGD", "optimizer.lr=0.5"))
    assert config.to_dict()["optimizer"] == {
        "_target_": "torch.optim.SGD",
        "lr": 0.5,
        "weight_decay": 0.1,
    }
    optimizer = config.optimizer.build(model=nn.Linear(2, 3), device=CPU)
    decays = [group["weight_decay"] for group in optimizer.param_groups]
    assert decays == [0.1, 0.0]  # the matrix, then the bias


def test_a_decay_of_the_targets_own_is_its_argument() -> None:
    config = load_config({"optimizer": {"_target_": "mine.Damped", "decay": 0.75}})
    assert config.optimizer.decay == "matrices"
    built: Any = config.optimizer.build(model=nn.Linear(2, 3), device=CPU)
    assert built.decay == 0.75


def test_a_function_that_names_model_gets_the_model() -> None:
    config = load_config({"optimizer": {"_target_": "mine.make_optimizer", "lr": 0.125}})
    model = nn.Linear(2, 3)
    optimizer = config.optimizer.build(model=model, device=CPU)
    assert optimizer.param_groups[0]["lr"] == 0.125
    assert optimizer.param_groups[0]["params"][0] is model.weight


def test_a_torch_schedule_gets_the_optimizer() -> None:
    config = load_config(
        {"scheduler": {"_target_": "torch.optim.lr_scheduler.StepLR", "step_size": 1, "gamma": 0.5}}
    )
    optimizer = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=1.0)
    schedule = config.scheduler.build(optimizer=optimizer, max_steps=10)
    optimizer.step()
    schedule.step()
    assert schedule.get_last_lr() == [0.5]


def test_hooks_are_built_functions_taken_as_they_are_and_folders_offered(tmp_path: Path) -> None:
    config = load_config(
        {
            "logging": {
                "hooks": [
                    "mine.watch",
                    {"_target_": "mine.watch"},
                    {"_target_": "mine.Watcher", "label": "y"},
                ]
            }
        }
    )
    first, second, third = config.logging.build_hooks(folder=tmp_path)
    assert first is second
    first("eval", {"loss": 1.0})
    third.on_event("eval", {})
    assert sys.modules["mine"].SEEN == [("eval", {"loss": 1.0}), ("y", "eval", {})]
    assert third.folder == tmp_path


def test_named_hooks_are_ours() -> None:
    hooks = load_config({"logging": {"hooks": ["wandb", {"name": "mlflow"}]}}).logging.hooks
    assert [hook.target for hook in hooks] == [
        "speedtronic.metrics.wandb.WandbHook",
        "speedtronic.metrics.mlflow.MlflowHook",
    ]


@pytest.mark.parametrize(
    "values",
    [
        {
            "model": {
                "_target_": "mine.Net",
                "width": 4,
                "activation": {"_target_": "torch.nn.ReLU"},
            }
        },
        {"data": {"_target_": "mine.Pairs", "num_samples": 4, "shuffle": False, "seed": 3}},
        {"optimizer": {"_target_": "mine.Damped", "decay": 0.75, "grad_clip": 2.0}},
        {"optimizer": {"_target_": "torch.optim.SGD", "lr": 1.0, "decay": "all"}},
        {"scheduler": {"_target_": "torch.optim.lr_scheduler.StepLR", "step_size": 2}},
        {"logging": {"hooks": [{"_target_": "mine.Watcher", "label": "y"}]}},
    ],
)
def test_foreign_sections_round_trip(values: dict[str, Any], tmp_path: Path) -> None:
    config = load_config(values)
    assert load_config(config.to_dict()) == config
    config.save(tmp_path / "c.yaml")
    assert load_config(tmp_path / "c.yaml") == config


def test_secrets_in_arguments_are_in_no_file_and_no_representation(tmp_path: Path) -> None:
    values = {"model": {"_target_": "mine.Open", "token": "open sesame", "depth": 2}}
    config = load_config(values)

    config.save(tmp_path / "c.yaml")

    assert "sesame" not in (tmp_path / "c.yaml").read_text()
    assert "sesame" not in repr(config)
    assert "sesame" not in str(config)
    assert config.to_dict()["model"]["token"] == "***"
    assert config.to_dict(redact_secrets=False)["model"]["token"] == "open sesame"
    assert load_config(config.to_dict(redact_secrets=False)) == config
    built: Any = config.model.build(vocab_size=None)
    assert built.options["token"] == "open sesame"


class TestRegisteredModels:
    """``register_model`` gives a class a short name for dicts."""

    @pytest.fixture(autouse=True)
    def registered(self) -> None:
        @register_model("config_test_net")
        class RegisteredNet(nn.Module):
            def __init__(self, width: int, vocab_size: int) -> None:
                super().__init__()
                self.layer = nn.Linear(width, vocab_size)

        self.cls = RegisteredNet

    def test_the_name_builds_the_class(self) -> None:
        config = load_config({"model": {"name": "config_test_net", "width": 2}})
        assert isinstance(config.model, RegisteredModelSettings)
        model: Any = config.model.build(vocab_size=5)
        assert type(model).__name__ == "RegisteredNet"
        assert model.layer.weight.shape == (5, 2)

    def test_it_round_trips(self) -> None:
        config = load_config({"model": {"name": "config_test_net", "width": 2}})
        assert config.to_dict()["model"] == {"name": "config_test_net", "width": 2}
        assert load_config(config.to_dict()) == config

    def test_its_arguments_are_checked(self) -> None:
        with pytest.raises(ConfigError, match=r"model\.widht: .* did you mean 'model\.width'"):
            load_config({"model": {"name": "config_test_net", "widht": 2}})
        nested = {"name": "config_test_net", "width": {"_target_": "os.getpid"}}
        with pytest.raises(ConfigError, match=r"model\.width\._target_: 'os\.getpid' may not"):
            load_config({"model": nested})


def test_a_factory_made_in_python_needs_no_configuration() -> None:
    factory = Factory(target="torch.nn.Linear", arguments={"in_features": 2})
    layer = factory.call(section="model", offered={"out_features": 4, "unknown": 1})
    assert layer.weight.shape == (4, 2)
