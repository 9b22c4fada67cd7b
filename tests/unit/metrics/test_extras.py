"""The W&B and MLflow hooks, against small doubles of the packages they talk to."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from speedtronic.core.errors import MissingExtraError
from speedtronic.metrics import extras
from speedtronic.metrics.logger import MetricLogger
from speedtronic.metrics.mlflow import MlflowHook
from speedtronic.metrics.wandb import WandbHook

EVENTS = [
    ("train_start", {"step": 0}),
    ("train_step", {"step": 10, "loss": 2.0, "lr": 0.5}),
    ("train_stats", {"step": 10, "lr/decayed": 0.25}),
    ("eval", {"step": 10, "loss": 1.5, "sample": "text is no number"}),
]


@pytest.mark.parametrize(
    ("hook", "message"),
    [
        (
            WandbHook,
            r"Weights & Biases needs the package wandb.*pip install 'speedtronic\[wandb\]'",
        ),
        (MlflowHook, r"MLflow needs the package mlflow.*pip install 'speedtronic\[mlflow\]'"),
    ],
)
def test_a_missing_package_is_named_with_its_install_command(
    hook: Any, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda name: None)

    with pytest.raises(MissingExtraError, match=message):
        hook()


class FakeRun:
    def __init__(self) -> None:
        self.logged: list[dict[str, float]] = []
        self.axes: list[tuple[str, str | None]] = []
        self.finished = False

    def define_metric(self, name: str, step_metric: str | None = None) -> None:
        self.axes.append((name, step_metric))

    def log(self, values: dict[str, float]) -> None:
        self.logged.append(values)

    def finish(self) -> None:
        self.finished = True


def install(monkeypatch: pytest.MonkeyPatch, name: str, **members: Any) -> None:
    module = ModuleType(name)
    module.__dict__.update(members)
    monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(extras, "find_spec", lambda name: SimpleNamespace())


def test_wandb_gets_the_numbers_at_their_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    run = FakeRun()
    opened: list[dict[str, Any]] = []

    def init(**arguments: Any) -> FakeRun:
        opened.append(arguments)
        return run

    install(monkeypatch, "wandb", init=init)
    hook = WandbHook(project="p", name="n", mode="offline", settings={"lr": 1})
    assert opened == []  # nothing is sent while a run is only being built
    logger = MetricLogger(hooks=[hook])
    for name, payload in EVENTS:
        logger.event(name, payload)
    logger.close()

    assert opened == [
        {
            "project": "p",
            "name": "n",
            "id": None,
            "mode": "offline",
            "dir": None,
            "config": {"lr": 1},
            "resume": "allow",
        }
    ]
    assert run.axes == [("step", None), ("*", "step")]
    assert run.logged == [
        {"train/loss": 2.0, "train/lr": 0.5, "step": 10},
        {"train/lr/decayed": 0.25, "step": 10},
        {"eval/loss": 1.5, "step": 10},
    ]
    assert run.finished


class FakeClient:
    def __init__(self, tracking_uri: str | None) -> None:
        self.tracking_uri = tracking_uri
        self.calls: list[tuple[Any, ...]] = []
        CLIENTS.append(self)

    def get_experiment_by_name(self, name: str) -> None:
        return None

    def create_experiment(self, name: str) -> str:
        self.calls.append(("create_experiment", name))
        return "7"

    def create_run(self, experiment_id: str, *, run_name: str | None) -> SimpleNamespace:
        self.calls.append(("create_run", experiment_id, run_name))
        return SimpleNamespace(info=SimpleNamespace(run_id="r1"))

    def log_param(self, run_id: str, name: str, value: Any) -> None:
        self.calls.append(("log_param", run_id, name, value))

    def log_metric(self, run_id: str, key: str, value: float, *, step: int) -> None:
        self.calls.append(("log_metric", run_id, key, value, step))

    def set_terminated(self, run_id: str) -> None:
        self.calls.append(("set_terminated", run_id))


CLIENTS: list[FakeClient] = []


def test_mlflow_gets_the_numbers_at_their_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    CLIENTS.clear()
    install(monkeypatch, "mlflow", MlflowClient=FakeClient)
    hook = MlflowHook(experiment="e", name="n", tracking_uri="uri", settings={"lr": 1})
    logger = MetricLogger(hooks=[hook])

    for name, payload in EVENTS:
        logger.event(name, payload)
    logger.close()

    (client,) = CLIENTS
    assert client.tracking_uri == "uri"
    assert client.calls == [
        ("create_experiment", "e"),
        ("create_run", "7", "n"),
        ("log_param", "r1", "lr", 1),
        ("log_metric", "r1", "train/loss", 2.0, 10),
        ("log_metric", "r1", "train/lr", 0.5, 10),
        ("log_metric", "r1", "train/lr.decayed", 0.25, 10),
        ("log_metric", "r1", "eval/loss", 1.5, 10),
        ("set_terminated", "r1"),
    ]


def test_mlflow_continues_a_given_run(monkeypatch: pytest.MonkeyPatch) -> None:
    CLIENTS.clear()
    install(monkeypatch, "mlflow", MlflowClient=FakeClient)
    hook = MlflowHook(run_id="old")

    hook.on_event("train_step", {"step": 11, "loss": 1.0})

    assert CLIENTS[0].calls == [("log_metric", "old", "train/loss", 1.0, 11)]
