"""The signatures of the API contract: names, order, how they are passed, defaults."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

import pytest

import speedtronic
import speedtronic.runtime
import speedtronic.trainer
from speedtronic.precision import PrecisionPlan
from speedtronic.trainer.coordination import NoCoordinator

REQUIRED = inspect.Parameter.empty

Parameters = dict[str, tuple[str, Any]]


def positional(*names: str, **defaults: Any) -> Parameters:
    """Parameters that are given by place or name: first those without a default."""
    given = dict.fromkeys(names, REQUIRED) | defaults
    return {name: ("POSITIONAL_OR_KEYWORD", default) for name, default in given.items()}


def keywords(*names: str, **defaults: Any) -> Parameters:
    """Parameters that are given by name only: first those without a default."""
    given = dict.fromkeys(names, REQUIRED) | defaults
    return {name: ("KEYWORD_ONLY", default) for name, default in given.items()}


def parameters_of(function: Callable[..., Any]) -> Parameters:
    return {
        name: (parameter.kind.name, parameter.default)
        for name, parameter in inspect.signature(function).parameters.items()
    }


RUN = positional("config") | keywords(resume=False, device=None, max_steps=None)

# (function, the contract's parameters, ours beyond it)
CONTRACT: dict[str, tuple[Callable[..., Any], Parameters, Parameters]] = {
    "seed_everything": (speedtronic.seed_everything, positional("seed"), {}),
    "build_optimizer": (
        speedtronic.build_optimizer,
        positional("model", "config", "device"),
        {},
    ),
    "build_scheduler": (speedtronic.build_scheduler, positional("optimizer", "config"), {}),
    "build_logger": (speedtronic.build_logger, positional("config"), keywords(folder=None)),
    "build_runtime": (speedtronic.build_runtime, RUN, {}),
    "train_from_config": (speedtronic.train_from_config, RUN, {}),
    "resolve_precision": (speedtronic.resolve_precision, positional("settings", "device"), {}),
    "supports_fused_adamw": (speedtronic.supports_fused_adamw, positional("device"), {}),
    "Trainer.fit": (speedtronic.Trainer.fit, positional("self", max_steps=None), {}),
    "Trainer.resume": (speedtronic.Trainer.resume, positional("self", "state"), {}),
    "Trainer._move_batch": (
        vars(speedtronic.Trainer)["_move_batch"],
        positional("self", "batch"),
        {},
    ),
    "Trainer._batch_size_and_tokens": (
        vars(speedtronic.Trainer)["_batch_size_and_tokens"],
        positional("self", "batch"),
        {},
    ),
    "SyncCoordinator.start": (speedtronic.SyncCoordinator.start, positional("self"), {}),
    "SyncCoordinator.after_optimizer_step": (
        speedtronic.SyncCoordinator.after_optimizer_step,
        positional("self", "model", "step"),
        {},
    ),
    "SyncCoordinator.stop": (speedtronic.SyncCoordinator.stop, positional("self"), {}),
    "SyncCoordinator.state_dict": (
        speedtronic.SyncCoordinator.state_dict,
        positional("self"),
        {},
    ),
    "SyncCoordinator.load_state_dict": (
        speedtronic.SyncCoordinator.load_state_dict,
        positional("self", "state"),
        {},
    ),
    "TrainResult": (
        speedtronic.TrainResult,
        positional("steps", "samples", "tokens", "final_loss", "elapsed_s", "metrics"),
        {},
    ),
}

TRAINER = positional("self", "model", "optimizer", "dataloader") | keywords(
    "device",
    config=None,
    scheduler=None,
    precision=None,
    logger=None,
    checkpoint_manager=None,
    coordinator=None,
    max_steps=None,
    start_step=0,
)
MANAGER = positional("self", "directory") | keywords(every_steps=500, keep_last=3, enabled=True)


@pytest.mark.parametrize("name", CONTRACT)
def test_a_signature_is_the_contracts(name: str) -> None:
    function, contract, ours = CONTRACT[name]
    # As lists: the order counts too.
    assert list(parameters_of(function).items()) == list((contract | ours).items())


@pytest.mark.parametrize(
    ("function", "contract"),
    [
        (speedtronic.Trainer.__init__, TRAINER),
        (speedtronic.CheckpointManager.__init__, MANAGER),
    ],
    ids=["Trainer", "CheckpointManager"],
)
def test_a_constructor_begins_as_the_contract_says_and_the_rest_is_optional(
    function: Callable[..., Any], contract: Parameters
) -> None:
    found = list(parameters_of(function).items())
    assert found[: len(contract)] == list(contract.items())
    further = dict(found[len(contract) :])
    assert {kind for kind, _ in further.values()} <= {"KEYWORD_ONLY"}
    assert [name for name, (_, default) in further.items() if default is REQUIRED] == []


def test_a_train_result_has_the_contracts_fields_in_order() -> None:
    names = [field.name for field in dataclasses.fields(speedtronic.TrainResult)]
    assert names == ["steps", "samples", "tokens", "final_loss", "elapsed_s", "metrics"]
    result = speedtronic.TrainResult(1, 2, 3, None, 0.5, [{"step": 1}])
    assert dataclasses.astuple(result) == (1, 2, 3, None, 0.5, [{"step": 1}])
    result.steps = 4  # the contract's @dataclass is not frozen
    assert result.steps == 4


def test_a_precision_plan_has_the_fields_that_the_trainer_follows() -> None:
    names = [field.name for field in dataclasses.fields(PrecisionPlan)]
    assert names == ["mode", "dtype", "use_scaler", "autocast_enabled", "device_type"]


@pytest.mark.parametrize("module", [speedtronic, speedtronic.runtime], ids=lambda m: m.__name__)
def test_run_and_train_are_train_from_config(module: Any) -> None:
    assert module.run is module.train_from_config
    assert module.train is module.train_from_config


@pytest.mark.parametrize("module", [speedtronic, speedtronic.trainer], ids=lambda m: m.__name__)
def test_the_old_names_of_the_trainer_are_the_trainer(module: Any) -> None:
    assert module.TrainingEngine is module.Trainer
    assert module.SpeedtronicTrainer is module.Trainer
    assert module.Trainer.train is module.Trainer.fit


@pytest.mark.parametrize("module", [speedtronic, speedtronic.trainer], ids=lambda m: m.__name__)
def test_a_coordinator_is_known_by_its_methods_at_run_time(module: Any) -> None:
    methods = {
        name: lambda self: None
        for name in ("start", "after_optimizer_step", "stop", "state_dict", "load_state_dict")
    }
    assert isinstance(type("Whole", (), methods)(), module.SyncCoordinator)
    assert isinstance(NoCoordinator(), module.SyncCoordinator)
    for name in methods:
        lacking = {other: method for other, method in methods.items() if other != name}
        assert not isinstance(type("Lacking", (), lacking)(), module.SyncCoordinator), name
