"""Gradient checkpointing and compilation: used where they work, visible where they do not."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from speedtronic.trainer.features import enable_gradient_checkpointing, plain_name, unwrap
from tests.unit.trainer.builders import (
    Recorder,
    Regression,
    assert_same_tensors,
    make_regression,
    make_trainer,
    parameters_of,
)
from tests.unit.trainer.test_loop import Checkpoints

COMPILE = {"compile": True, "optimizer": {"grad_clip": None}}


class Messages:
    """A logger hook is no place for text: this stands for the console."""

    def __init__(self, trainer) -> None:
        self.lines: list[str] = []
        trainer.logger.warning = self.lines.append


# ---------------------------------------------------------------- gradient checkpointing


class Hooked(Regression):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list = []

    def set_gradient_checkpointing(self, enabled, every_n_layers=1) -> None:
        self.calls.append((enabled, every_n_layers))


class Plain(Regression):
    def set_gradient_checkpointing(self, enabled) -> None:
        self.enabled = enabled


class Broken(Regression):
    def set_gradient_checkpointing(self, enabled) -> None:
        raise ValueError("no blocks\nhere")


@pytest.mark.parametrize(
    ("setting", "calls"), [(False, []), (True, [(True, 1)]), (1, [(True, 1)]), (3, [(True, 3)])]
)
def test_the_hook_is_called_with_what_was_asked(setting, calls) -> None:
    model = Hooked()
    make_trainer(model, options={"gradient_checkpointing": setting})
    assert model.calls == calls


def test_a_hook_without_distance_checkpoints_every_layer_and_says_so() -> None:
    model = Plain()
    reason = enable_gradient_checkpointing(model, setting=2)
    assert model.enabled
    assert reason == "every layer is checkpointed: Plain takes no every_n_layers=2"


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (
            Regression(),
            "AttributeError: 'Regression' object has no attribute 'set_gradient_checkpointing'",
        ),
        (Broken(), "ValueError: no blocks"),
    ],
)
def test_a_missing_or_broken_hook_is_one_warning_one_event_and_one_field(model, reason) -> None:
    recorder = Recorder()
    trainer = make_trainer(model, options={"gradient_checkpointing": True}, recorder=recorder)
    messages = Messages(trainer)
    assert recorder.events == []  # nothing is written before the folder is claimed
    trainer.fit(1)
    trainer.fit(2)
    line = f"training without gradient checkpointing: {reason}"
    assert messages.lines == [f"gradient_checkpointing: {line}"]
    fallback = {"kind": "gradient_checkpointing", "reason": line, "step": 0}
    assert recorder.of("fallback") == [{**fallback, "fallback": True}]
    assert trainer.outcome.fallbacks == (fallback,)
    assert trainer.outcome.exact


def test_fallbacks_of_the_builder_are_announced_too() -> None:
    recorder = Recorder()
    trainer = make_trainer(recorder=recorder)
    trainer.add_fallback("precision", "precision.mode=fp16 needs a CUDA device")
    trainer.add_fallback("precision", "precision.mode=fp16 needs a CUDA device")
    trainer.fit(1)
    assert recorder.names()[:2] == ["train_start", "fallback"]
    assert recorder.of("fallback")[0]["kind"] == "precision"
    assert len(trainer.outcome.fallbacks) == 1


def test_fallbacks_of_earlier_segments_stay_in_the_outcome() -> None:
    first = make_trainer()
    first.add_fallback("precision", "fp32 instead")
    first.fit(1)
    recorder = Recorder()
    second = make_trainer(recorder=recorder)
    second.resume(first.state_dict())
    second.fit(2)
    assert second.outcome.fallbacks == first.outcome.fallbacks
    assert recorder.of("fallback") == []


# ---------------------------------------------------------------- compilation


def fake_compile(monkeypatch, wrapper) -> list[str]:
    """Replace torch.compile; returns the modes it was called with."""
    modes = []

    def compile_model(model, *, mode):
        modes.append(mode)
        return wrapper(model)

    monkeypatch.setattr(torch, "compile", compile_model)
    return modes


class FailsAt:
    """Calls the model, after drawing a random number, until a given call fails half-way."""

    def __init__(self, model, at: int) -> None:
        self.model = model
        self.at = at
        self.calls = 0

    def __call__(self, *args, **kwargs):
        self.calls += 1
        output = self.model(*args, **kwargs)
        if self.calls == self.at:
            torch.rand(100)
            raise RuntimeError("backend compiler failed\nlong text")
        return output


def test_the_compiler_is_not_called_before_the_first_update(monkeypatch) -> None:
    modes = fake_compile(monkeypatch, lambda model: model)
    trainer = make_trainer(options={**COMPILE, "trainer": {"compile_mode": "reduce-overhead"}})
    assert modes == []
    trainer.fit(2)
    assert modes == ["reduce-overhead"]


def test_a_compiled_model_is_announced_once(monkeypatch) -> None:
    recorder = Recorder()
    fake_compile(monkeypatch, lambda model: model)
    trainer = make_trainer(options=COMPILE, recorder=recorder)
    trainer.fit(3)
    (event,) = recorder.of("compile")
    assert event["step"] == 0
    assert event["mode"] == "default"
    assert event["seconds"] > 0
    assert trainer.outcome.exact
    assert trainer.outcome.fallbacks == ()


@pytest.mark.parametrize("at", [1, 3])
def test_a_forward_that_fails_half_way_runs_again_eagerly_with_the_same_random_numbers(
    monkeypatch, at
) -> None:
    torch.manual_seed(1)
    eager = make_trainer(make_regression(0.5), options={"optimizer": {"grad_clip": None}})
    torch.manual_seed(4)
    expected = eager.fit(5)

    wrappers = []

    def wrap(model):
        wrappers.append(FailsAt(model, at))
        return wrappers[-1]

    fake_compile(monkeypatch, wrap)
    recorder = Recorder()
    trainer = make_trainer(make_regression(0.5), options=COMPILE, recorder=recorder)
    messages = Messages(trainer)
    torch.manual_seed(4)
    result = trainer.fit(5)
    assert [r["loss"] for r in result.metrics] == [r["loss"] for r in expected.metrics]
    assert_same_tensors(parameters_of(eager.model), parameters_of(trainer.model))
    assert wrappers[0].calls == at  # never again
    reason = "the compiled model failed, eager from here: RuntimeError: backend compiler failed"
    assert messages.lines == [f"compile: {reason}"]
    fallback = {"kind": "compile", "reason": reason, "step": at - 1}
    assert recorder.of("compile")[-1] == {**fallback, "fallback": True}
    assert len(recorder.of("compile")) == (1 if at == 1 else 2)
    assert trainer.outcome.fallbacks == (fallback,)
    assert trainer.outcome.exact is False


def test_a_construction_that_fails_leaves_the_eager_model(monkeypatch) -> None:
    def refuse(model):
        raise OSError("no compiler found")

    fake_compile(monkeypatch, refuse)
    trainer = make_trainer(options=COMPILE)
    assert trainer.fit(2).steps == 2
    assert trainer.outcome.fallbacks[0]["reason"].endswith("OSError: no compiler found")
    assert trainer.outcome.exact is False


def test_a_fault_of_the_model_itself_is_raised(monkeypatch) -> None:
    class Faulty(Regression):
        def forward(self, inputs, targets):
            raise ZeroDivisionError("of the model")

    fake_compile(monkeypatch, lambda model: model)
    trainer = make_trainer(Faulty(), options=COMPILE)
    with pytest.raises(ZeroDivisionError, match="of the model"):
        trainer.fit(1)
    assert trainer.outcome.fallbacks == ()


def test_inexactness_survives_a_resume(monkeypatch) -> None:
    fake_compile(monkeypatch, lambda model: FailsAt(model, 1))
    first = make_trainer(options=COMPILE)
    first.fit(1)
    second = make_trainer()
    second.resume(first.state_dict())
    second.fit(2)
    assert second.outcome.exact is False


def test_a_really_compiled_model_trains_and_saves_the_names_of_the_eager_one(monkeypatch) -> None:
    model = make_regression()
    names = list(model.state_dict())
    manager = Checkpoints([], every=1)
    trainer = make_trainer(
        model,
        # The eager backend traces the model without a C compiler.
        options=COMPILE,
        checkpoint_manager=manager,
    )
    original = torch.compile
    monkeypatch.setattr(torch, "compile", lambda module, mode: original(module, backend="eager"))
    trainer.fit(2)
    torch.compiler.reset()
    assert trainer.outcome.exact
    assert list(manager.saved[2]["model"]) == names
    reference = make_trainer(options={"optimizer": {"grad_clip": None}})
    reference.fit(2)
    assert_same_tensors(parameters_of(reference.model), parameters_of(model))


def test_a_model_compiled_by_its_owner_saves_and_loads_plain_names() -> None:
    model = make_regression()
    compiled = torch.compile(model, backend="eager")
    assert unwrap(compiled) is model
    trainer = make_trainer(compiled)
    state = trainer.state_dict()
    assert list(state["model"]) == list(model.state_dict())
    other = make_trainer(make_regression(seed=5))
    other.resume(state)
    assert_same_tensors(parameters_of(other.model), parameters_of(model))
    trainer.resume(other.state_dict())  # and back, into the compiled one
    torch.compiler.reset()


def test_a_compiled_layer_inside_a_model_saves_and_loads_plain_names() -> None:
    model = nn.Sequential(nn.Linear(4, 8), torch.compile(nn.Linear(8, 1), backend="eager"))
    assert "1._orig_mod.weight" in model.state_dict()
    trainer = make_trainer(model, batches=[torch.zeros(2, 4)])
    state = trainer.state_dict()
    assert list(state["model"]) == ["0.weight", "0.bias", "1.weight", "1.bias"]
    eager = make_trainer(nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1)))
    eager.resume({**state, "optimizer": eager.optimizer.state_dict()})
    trainer.resume(state)
    torch.compiler.reset()


def test_plain_names_lose_the_prefix_wherever_it_is() -> None:
    assert plain_name("_orig_mod.layers.0._orig_mod.weight") == "layers.0.weight"


def test_a_precision_the_device_cannot_run_is_a_visible_fallback_to_fp32() -> None:
    recorder = Recorder()
    trainer = make_trainer(options={"precision": "fp16"}, precision=None, recorder=recorder)
    assert trainer.precision.mode == "fp32"
    trainer.fit(1)
    (fallback,) = trainer.outcome.fallbacks
    assert fallback["kind"] == "precision"
    assert "precision.mode=fp16 needs a CUDA device" in fallback["reason"]
    assert [event["kind"] for event in recorder.of("fallback")] == ["precision"]
