"""Optimizers with Muon, resumed from files: 20 + 20 updates equal 40, bit for bit, in any order."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.nn import functional as F
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from speedtronic import build_optimizer
from speedtronic.checkpoint.manager import CheckpointManager
from speedtronic.core.errors import NonFiniteError
from speedtronic.core.seeding import seed_everything
from speedtronic.data.loader import TokenLoader
from speedtronic.models.gpt import GPT
from speedtronic.optim.hybrid import HybridOptimizer
from speedtronic.schedule.build import build_schedule, reimpose_schedule
from speedtronic.schedule.curves import MomentumPlan
from speedtronic.trainer import Trainer
from speedtronic.trainer import update as update_module
from tests.unit.trainer.builders import (
    FP32,
    SCALED,
    Recorder,
    assert_same_tensors,
    make_logger,
    parameters_of,
)

NUM_STEPS = 40
BLOCK = 8
TOKENS = np.random.default_rng(0).integers(0, 32, 30 * BLOCK + 1).astype(np.uint16)
OPTIONS = ["muon", "muon_plus", "normuon", "cautious_adamw", "muon_torch"]


def wsd(optimizer: Optimizer) -> LambdaLR:
    """Return wsd with a momentum that rises from 0.85 and falls again, and a decay that moves."""
    has_momentum = any("momentum" in group for group in optimizer.param_groups)
    return build_schedule(
        optimizer,
        kind="wsd",
        warmup_steps=3,
        horizon=NUM_STEPS,
        min_ratio=0.0,
        momentum=MomentumPlan(start=0.85, warmup_steps=12, end=0.9, cooldown_steps=10)
        if has_momentum
        else MomentumPlan(),
        weight_decay_shape="lr",
    )


def permuted(optimizer: Optimizer) -> Optimizer:
    """Return the same optimizer built with its groups, and the parameters in them, reversed."""
    groups = []
    for group in reversed(optimizer.param_groups):
        values = {
            key: value for key, value in group.items() if key not in ("params", "param_names")
        }
        named = list(zip(group["param_names"], group["params"], strict=True))
        groups.append({**values, "params": named[::-1]})
    return type(optimizer)(groups)


def build(
    option: str, *, is_permuted: bool = False, folder: Path | None = None, seed: int = 5
) -> Trainer:
    seed_everything(seed)
    model = GPT(vocab_size=32, max_seq_len=BLOCK, n_layer=2, n_head=2, d_model=16, dropout=0.1)
    optimizer = build_optimizer(model, {"optimizer": option}, "cpu")
    if is_permuted:
        optimizer = permuted(optimizer)
    manager = None if folder is None else CheckpointManager(folder, every_steps=7)
    return Trainer(
        model,
        optimizer,
        TokenLoader(TOKENS, block_size=BLOCK, micro_batch_size=2, seed=5),
        device="cpu",
        config={"data": {"micro_batch_size": 2, "target_batch_size": 4}},
        scheduler=wsd(optimizer),
        precision=FP32,
        logger=make_logger(),
        checkpoint_manager=manager,
    )


def by_name(optimizer: Optimizer) -> dict[str, dict[str, Any]]:
    """Return state and hyperparameters of every parameter under its name."""
    found = {}
    for group in optimizer.param_groups:
        values = {
            key: value for key, value in group.items() if key not in ("params", "param_names")
        }
        for name, parameter in zip(group["param_names"], group["params"], strict=True):
            found[name] = {"state": dict(optimizer.state[parameter]), "group": values}
    return found


# optimizers.md (21): save, load, continue; seen elsewhere: state that is matched by position
@pytest.mark.parametrize("is_permuted", [False, True], ids=["same order", "another order"])
@pytest.mark.parametrize("option", OPTIONS)
def test_40_updates_equal_20_a_checkpoint_and_20_more_bit_for_bit(
    option: str, is_permuted: bool, tmp_path: Path
) -> None:
    straight = build(option)
    expected = [record["loss"] for record in straight.fit(NUM_STEPS).metrics]

    first = build(option, folder=tmp_path)
    losses = [record["loss"] for record in first.fit(20).metrics]
    second = build(option, is_permuted=is_permuted, folder=tmp_path, seed=99)
    assert isinstance(second.checkpoint_manager, CheckpointManager)
    state = second.checkpoint_manager.load_latest()
    assert state is not None
    second.resume(state)
    losses += [record["loss"] for record in second.fit(NUM_STEPS).metrics]

    assert losses == expected
    assert_same_tensors(parameters_of(second.model), parameters_of(straight.model))
    found, wanted = by_name(second.optimizer), by_name(straight.optimizer)
    assert_same_tensors({name: found[name] for name in wanted}, wanted)
    momenta = {key for entry in found.values() for key in entry["state"]}
    assert "momentum_buffer" in momenta or option == "cautious_adamw"


@pytest.mark.parametrize("is_reimposed", [False, True])
def test_another_order_of_the_groups_keeps_the_rate_of_each(is_reimposed: bool) -> None:
    first = build("muon")
    first.fit(10)
    second = build("muon", is_permuted=True, seed=9)
    second.resume(first.state_dict())
    if is_reimposed:
        assert isinstance(second.scheduler, LambdaLR)
        reimpose_schedule(second.scheduler)
    second.fit(13)
    # Position 13 of 40 is on the plateau of wsd.
    rates = {group["name"]: group["lr"] for group in second.optimizer.param_groups}
    assert rates == {"adamw_no_decay": 0.008, "muon": 0.03}


# optimizers.md (21): the momentum keeps its number format
@pytest.mark.parametrize("option", ["muon", "normuon"])
def test_fp32_averages_of_bf16_weights_come_back_from_files_as_they_were(
    option: str, tmp_path: Path
) -> None:
    def start() -> tuple[nn.Module, Optimizer]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 8)).bfloat16()
        return model, build_optimizer(model, {"optimizer": option}, "cpu")

    def step(model: nn.Module, optimizer: Optimizer, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.grad = noise.to(parameter.dtype)
        optimizer.step()

    model, optimizer = start()
    step(model, optimizer, 1)
    manager = CheckpointManager(tmp_path, every_steps=1)
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 1}
    manager.save(1, state)
    manager.close()
    loaded = manager.load_latest()
    assert loaded is not None
    twin, resumed = start()
    twin.load_state_dict(loaded["model"])
    resumed.load_state_dict(loaded["optimizer"])
    buffer = resumed.state[twin[0].weight]["momentum_buffer"]  # type: ignore[index]
    assert buffer.dtype == torch.float32
    for seed in (2, 3):
        step(model, optimizer, seed)
        step(twin, resumed, seed)
    assert_same_tensors(parameters_of(twin), parameters_of(model))
    assert_same_tensors(resumed.state_dict(), optimizer.state_dict())


# Safety of a step ---------------------------------------------------------------------------------


class Network(nn.Module):
    """Two hidden matrices and a norm; spoils the gradient of one parameter in chosen forwards."""

    def __init__(self, *, spoiled: str = "", at: set[int] | None = None, how: str = "inf") -> None:
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.norm = nn.LayerNorm(16)
        self.second = nn.Linear(16, 16)
        self.head = nn.Linear(16, 1)
        self._spoiled, self._at, self._how = spoiled, at or set(), how
        self.num_forwards = 0

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        self.num_forwards += 1
        hidden = torch.tanh(self.second(torch.tanh(self.norm(self.first(inputs)))))
        loss = F.mse_loss(self.head(hidden), targets)
        if self.num_forwards not in self._at:
            return loss
        if self._how == "loss":
            return loss * math.nan
        # Finite, and its gradient with respect to one parameter is infinite or NaN.
        value = self.get_parameter(self._spoiled).flatten()[:1] * 0
        return loss + (torch.sqrt(value) if self._how == "inf" else torch.acos(1 + value)).sum()


def batches(num: int = 6) -> list[Any]:
    generator = torch.Generator().manual_seed(7)
    return [
        (torch.randn(3, 8, generator=generator), torch.randn(3, 1, generator=generator))
        for _ in range(num)
    ]


def train(
    model: Network, data: list[Any], *, precision: Any = FP32, **arguments: Any
) -> tuple[Trainer, Recorder]:
    recorder = Recorder()
    optimizer = build_optimizer(model, {"optimizer": "muon"}, "cpu")
    trainer = Trainer(
        model,
        optimizer,
        data,
        device="cpu",
        config={"optimizer": {"name": "muon", "grad_clip": 1.0}},
        scheduler=wsd(optimizer),
        precision=precision,
        logger=make_logger(recorder),
        **arguments,
    )
    return trainer, recorder


def make_network(**arguments: Any) -> Network:
    torch.manual_seed(0)
    return Network(**arguments)


# optimizers.md (24); seen elsewhere: one half stepped while the other did not
@pytest.mark.parametrize("plan", [FP32, SCALED], ids=["fp32", "scaled"])
@pytest.mark.parametrize("spoiled", ["second.weight", "norm.weight"])
def test_an_infinite_gradient_in_one_half_skips_both_and_the_schedule(
    spoiled: str, plan: Any
) -> None:
    data = batches()
    trainer, recorder = train(make_network(spoiled=spoiled, at={3}), data, precision=plan)
    assert isinstance(trainer.optimizer, HybridOptimizer)
    trainer.fit(2)
    before = trainer.state_dict()
    assert before["scheduler"]["last_epoch"] == 2

    result = trainer.fit(4)

    (skip,) = recorder.of("optimizer_step_skipped")
    assert skip["step"] == 3
    assert (result.steps, trainer.attempts) == (4, 5)
    assert trainer.state_dict()["scheduler"]["last_epoch"] == 4
    # As if the third batch had not been there.
    clean, _ = train(make_network(), [*data[:2], *data[3:]], precision=plan)
    clean.fit(4)
    assert_same_tensors(parameters_of(trainer.model), parameters_of(clean.model))
    assert_same_tensors(trainer.optimizer.state_dict(), clean.optimizer.state_dict())


# seen elsewhere: clipping with inf made NaN weights, and healthy checkpoints were rotated away
@pytest.mark.parametrize("how", ["inf", "nan", "loss"])
def test_a_run_of_bad_gradients_stops_with_weights_and_checkpoints_as_they_were(
    how: str, tmp_path: Path
) -> None:
    manager = CheckpointManager(tmp_path, every_steps=1, keep_last=2)
    model = make_network(spoiled="second.weight", at=set(range(4, 99)), how=how)
    trainer, recorder = train(model, batches(), checkpoint_manager=manager)
    with pytest.raises(NonFiniteError, match="the last good step is 3"):
        trainer.fit(NUM_STEPS)
    assert len(recorder.of("optimizer_step_skipped")) == 20
    assert all(torch.isfinite(tensor).all() for tensor in parameters_of(model))
    clean, _ = train(make_network(), batches())
    clean.fit(3)
    assert_same_tensors(parameters_of(model), parameters_of(clean.model))
    assert_same_tensors(trainer.optimizer.state_dict(), clean.optimizer.state_dict())
    assert [path.name for path in manager.paths()] == ["step_000000000002", "step_000000000003"]


def test_the_norm_of_the_gradient_is_computed_once_an_update(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[int] = []
    clip = update_module.clip_grad_norm_

    def spy(parameters: Any, max_norm: float) -> torch.Tensor:
        parameters = list(parameters)
        calls.append(len(parameters))
        return clip(parameters, max_norm)

    total = torch.nn.utils.get_total_norm
    num_totals: list[int] = []

    def spy_total(*arguments: Any, **keywords: Any) -> torch.Tensor:
        num_totals.append(1)
        return total(*arguments, **keywords)

    monkeypatch.setattr(update_module, "clip_grad_norm_", spy)
    monkeypatch.setattr(update_module, "get_total_norm", spy_total)
    monkeypatch.setattr("torch.nn.utils.clip_grad._get_total_norm", spy_total)
    trainer, recorder = train(make_network(spoiled="first.weight", at={2}), batches())
    trainer.fit(3)
    assert calls == [8] * 4  # all eight parameters, in three updates and a skipped attempt
    assert len(num_totals) == 4
    assert len(recorder.of("optimizer_step_skipped")) == 1


# seen elsewhere: clipped before unscaled; skipped without renewing the scale
def test_an_attempt_unscales_clips_steps_and_renews_the_scale_in_this_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[str] = []

    def noted(name: str, original: Any) -> Any:
        def call(*arguments: Any, **keywords: Any) -> Any:
            calls.append(name)
            return original(*arguments, **keywords)

        return call

    for name in ("unscale_", "update"):
        monkeypatch.setattr(GradScaler, name, noted(name, getattr(GradScaler, name)))
    clip = noted("clip", update_module.clip_grad_norm_)
    monkeypatch.setattr(update_module, "clip_grad_norm_", clip)
    trainer, _ = train(make_network(spoiled="norm.bias", at={2}), batches(), precision=SCALED)
    trainer.optimizer.register_step_pre_hook(lambda *_: calls.append("step"))
    trainer.fit(2)
    applied = ["unscale_", "clip", "step", "update"]
    assert calls == [*applied, "unscale_", "clip", "update", *applied]


# seen elsewhere: fused kernels under a scaler
def test_a_scaled_run_of_the_hybrid_equals_the_unscaled_one_bit_for_bit() -> None:
    plain, _ = train(make_network(), batches())
    scaled, _ = train(make_network(), batches(), precision=SCALED)
    plain.fit(8)
    scaled.fit(8)
    assert scaled.outcome is not None
    assert scaled.outcome.skipped_steps == 0
    # 65536 is a power of two: nothing is rounded on the way.
    assert_same_tensors(parameters_of(scaled.model), parameters_of(plain.model))
    assert_same_tensors(scaled.optimizer.state_dict(), plain.optimizer.state_dict())
