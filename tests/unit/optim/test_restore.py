"""Restoring optimizers by name: exact, in any order, and refused where the names differ."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import AdamW

from speedtronic import build_optimizer
from speedtronic.core.errors import IncompatibleCheckpointError
from speedtronic.optim.adamw import build_adamw
from speedtronic.optim.adamw_step import CautiousAdamW
from speedtronic.optim.hybrid import HybridOptimizer
from speedtronic.optim.muon import Muon
from speedtronic.optim.restore import load_optimizer_state
from tests.unit.trainer.builders import assert_same_tensors

CPU = torch.device("cpu")


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3), nn.Linear(3, 3))


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int, seed: int = 1) -> None:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        model(torch.randn(4, 3, generator=generator)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def named_state(optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    moments = {}
    for group in optimizer.param_groups:
        for name, parameter in zip(group["param_names"], group["params"], strict=True):
            moments[name] = optimizer.state[parameter]["exp_avg"]
    return moments


def test_a_restored_optimizer_continues_bit_for_bit() -> None:
    straight, other = make_model(), make_model()
    optimizer = build_adamw(straight, lr=0.01, device=CPU)
    train(straight, optimizer, 3)
    model_state, state = copy.deepcopy((straight.state_dict(), optimizer.state_dict()))
    train(straight, optimizer, 3, seed=2)
    other.load_state_dict(model_state)
    resumed = build_adamw(other, lr=0.5, device=CPU)
    load_optimizer_state(resumed, state)
    train(other, resumed, 3, seed=2)
    assert all(
        torch.equal(a, b) for a, b in zip(straight.parameters(), other.parameters(), strict=True)
    )


def test_another_order_is_put_right_by_name() -> None:
    model = make_model()
    saved = AdamW(list(model.named_parameters()), lr=0.1)
    train(model, saved, 2)
    reordered = AdamW(list(reversed(list(model.named_parameters()))), lr=0.1)
    load_optimizer_state(reordered, saved.state_dict())
    assert reordered.param_groups[0]["param_names"] == [
        n for n, _ in reversed(list(model.named_parameters()))
    ]
    expected, found = named_state(saved), named_state(reordered)
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    train(model, reordered, 1)  # every moment has the shape of its parameter


def test_another_grouping_keeps_its_own_hyperparameters_and_gets_the_moments() -> None:
    model = make_model()
    saved = build_adamw(model, lr=0.1, weight_decay=0.3, device=CPU)
    train(model, saved, 2)
    whole = build_adamw(model, lr=0.2, weight_decay=0.4, decay="all", device=CPU)
    load_optimizer_state(whole, saved.state_dict())
    assert [(group["lr"], group["weight_decay"]) for group in whole.param_groups] == [(0.2, 0.4)]
    expected, found = named_state(saved), named_state(whole)
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_saved_hyperparameters_come_back_learning_rate_included() -> None:
    model = make_model()
    saved = build_adamw(model, lr=0.1, weight_decay=0.3, device=CPU)
    saved.param_groups[0]["lr"] = 0.07
    restored = build_adamw(model, lr=0.2, device=CPU)
    load_optimizer_state(restored, saved.state_dict())
    assert [group["lr"] for group in restored.param_groups] == [0.07, 0.1]
    assert [group["weight_decay"] for group in restored.param_groups] == [0.3, 0.0]


def test_how_a_step_is_computed_follows_the_present_machine() -> None:
    model = make_model()
    saved = build_adamw(model, lr=0.1, fused=True, device=CPU)
    ordinary = build_adamw(model, lr=0.1, fused=False, device=CPU)
    load_optimizer_state(ordinary, saved.state_dict())
    assert [group["fused"] for group in ordinary.param_groups] == [None, None]
    unnamed = AdamW(model.parameters(), lr=0.1)
    load_optimizer_state(unnamed, AdamW(model.parameters(), lr=0.1, fused=True).state_dict())
    assert unnamed.param_groups[0]["fused"] is None


def test_later_steps_leave_the_loaded_state_as_it_is() -> None:
    model = make_model()
    optimizer = build_adamw(model, lr=0.1, device=CPU)
    train(model, optimizer, 1)
    state = copy.deepcopy(optimizer.state_dict())
    before = state["state"][0]["exp_avg"].clone()
    load_optimizer_state(optimizer, state)
    train(model, optimizer, 1)
    assert torch.equal(state["state"][0]["exp_avg"], before)
    assert state["state"][0]["step"].item() == 1


def test_other_names_are_refused_and_named() -> None:
    wide = nn.Sequential(*[nn.Linear(1, 1, bias=False) for _ in range(6)])
    saved = build_adamw(wide, lr=0.1, device=CPU).state_dict()
    message = (
        "the optimizer of the checkpoint belongs to another model: it lacks bias, weight; "
        "it has unknown 0.weight, 1.weight, 2.weight ..."
    )
    with pytest.raises(IncompatibleCheckpointError, match=re.escape(message)):
        load_optimizer_state(build_adamw(nn.Linear(1, 1), lr=0.1, device=CPU), saved)


def test_optimizers_without_names_are_compared_by_number() -> None:
    saved = AdamW(make_model().parameters(), lr=0.1).state_dict()
    with pytest.raises(
        IncompatibleCheckpointError, match="does not fit this one: loaded state dict"
    ):
        load_optimizer_state(AdamW(nn.Linear(1, 1).parameters(), lr=0.1), saved)
    two_groups = AdamW([{"params": [p]} for p in nn.Linear(1, 1).parameters()], lr=0.1)
    with pytest.raises(IncompatibleCheckpointError, match="does not fit this one"):
        load_optimizer_state(two_groups, saved)


def test_a_state_before_the_first_step_loads() -> None:
    model = make_model()
    fresh = build_adamw(model, lr=0.1, device=CPU)
    load_optimizer_state(fresh, build_adamw(model, lr=0.1, device=CPU).state_dict())
    assert dict(fresh.state) == {}


# Optimizers with several algorithms ---------------------------------------------------------------


def make_wide(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16), nn.Linear(16, 16), nn.Linear(16, 8))


def build_hybrid(model: nn.Module, **values: Any) -> torch.optim.Optimizer:
    return build_optimizer(model, {"optimizer": {"name": "muon", **values}}, CPU)


def noisy_steps(model: nn.Module, optimizer: torch.optim.Optimizer, *seeds: int) -> None:
    for seed in seeds:
        generator = torch.Generator().manual_seed(seed)
        for parameter in model.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=generator).to(parameter.dtype)
        optimizer.step()


def in_another_order(optimizer: torch.optim.Optimizer) -> HybridOptimizer:
    """Build the optimizer again with its groups, and the parameters in them, reversed."""
    groups = []
    for group in reversed(optimizer.param_groups):
        values = {key: group[key] for key in group if key not in ("params", "param_names")}
        named = list(zip(group["param_names"], group["params"], strict=True))
        groups.append({**values, "params": named[::-1]})
    return HybridOptimizer(groups)


LOADERS = pytest.mark.parametrize(
    "load",
    [load_optimizer_state, lambda optimizer, state: optimizer.load_state_dict(state)],
    ids=["ours", "load_state_dict"],
)


# optimizers.md (22): reordered names are put right; seen elsewhere: state matched by position
@LOADERS
@pytest.mark.parametrize("values", [{}, {"normuon": True}, {"cautious": True}], ids=str)
def test_groups_and_parameters_in_another_order_get_their_own_state(
    load: Callable[..., None], values: dict[str, Any]
) -> None:
    model = make_wide()
    saved = build_hybrid(model, **values)
    saved.param_groups[0]["lr"] = 0.07
    noisy_steps(model, saved, 1, 2)
    twin = copy.deepcopy(model)
    reordered = in_another_order(build_hybrid(twin, **values))

    load(reordered, copy.deepcopy(saved.state_dict()))

    assert [group["name"] for group in reordered.param_groups] == [
        group["name"] for group in reversed(saved.param_groups)
    ]
    assert reordered.param_groups[-1]["param_names"] == ["2.weight", "0.weight"]
    assert reordered.param_groups[-1]["lr"] == 0.07
    noisy_steps(model, saved, 3, 4)
    noisy_steps(twin, reordered, 3, 4)
    for one, other in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(one, other)


# optimizers.md (22): other names are refused
@LOADERS
def test_a_hybrid_of_another_model_is_refused_by_name(load: Callable[..., None]) -> None:
    saved = build_hybrid(make_wide())
    other = nn.ModuleDict({"0": nn.Linear(16, 16), "extra": nn.Linear(16, 16)})
    message = (
        "the optimizer of the checkpoint belongs to another model: it lacks extra.bias,"
        " extra.weight; it has unknown 1.bias, 1.weight, 2.bias ..."
    )
    with pytest.raises(IncompatibleCheckpointError, match=re.escape(message)):
        load(build_hybrid(other), saved.state_dict())


# optimizers.md (22): what Muon trained has no moments for AdamW
@LOADERS
def test_parameters_that_another_algorithm_trains_now_are_refused_by_their_routing(
    load: Callable[..., None],
) -> None:
    model = make_wide()
    saved = build_hybrid(model)
    noisy_steps(model, saved, 1)
    rules = [{"match": r"^2\.weight", "algorithm": "adamw"}]
    message = (
        "optimizer.routing: the checkpoint trained 2.weight (muon -> adamw);"
        " resume with the optimizer and the routing it had"
    )
    with pytest.raises(IncompatibleCheckpointError, match=re.escape(message)):
        load(build_hybrid(model, routing=rules), saved.state_dict())
    with pytest.raises(IncompatibleCheckpointError, match=re.escape("2.weight (adamw -> muon)")):
        load(saved, build_hybrid(model, routing=rules).state_dict())


def test_many_parameters_of_another_algorithm_are_cut_to_three() -> None:
    model = nn.Sequential(*[nn.Linear(16, 16, bias=False) for _ in range(6)])
    saved = build_hybrid(model)
    rules = [{"match": "weight", "algorithm": "adamw"}]
    message = (
        "trained 0.weight (muon -> adamw), 1.weight (muon -> adamw), 2.weight (muon -> adamw) ...;"
    )
    with pytest.raises(IncompatibleCheckpointError, match=re.escape(message)):
        load_optimizer_state(build_hybrid(model, routing=rules), saved.state_dict())


def test_torchs_muon_does_not_take_over_from_ours() -> None:
    model = make_wide()
    saved = build_hybrid(model).state_dict()
    other = build_optimizer(model, {"optimizer": "muon_torch"}, CPU)
    with pytest.raises(IncompatibleCheckpointError, match=r"0\.weight \(muon -> muon_torch\)"):
        load_optimizer_state(other, saved)


# optimizers.md (21): the averages of bf16 weights are fp32 and stay so; torch would cast them
@LOADERS
def test_tensors_of_the_state_keep_their_number_format(load: Callable[..., None]) -> None:
    model = make_wide().bfloat16()
    saved = build_hybrid(model, normuon=True)
    noisy_steps(model, saved, 1, 2)
    twin = copy.deepcopy(model)
    restored = build_hybrid(twin, normuon=True)
    load(restored, copy.deepcopy(saved.state_dict()))
    kept = restored.state[twin[0].weight]  # type: ignore[index]
    assert (kept["momentum_buffer"].dtype, kept["row_second_moment"].dtype) == (torch.float32,) * 2
    assert restored.state[twin[1].weight]["exp_avg"].dtype == torch.bfloat16  # type: ignore[index]
    expected = saved.state[model[0].weight]  # type: ignore[index]
    assert torch.equal(kept["momentum_buffer"], expected["momentum_buffer"])
    noisy_steps(model, saved, 3)
    noisy_steps(twin, restored, 3)
    for one, other in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(one, other)


def test_later_steps_of_a_hybrid_leave_the_loaded_state_as_it_is() -> None:
    model = make_wide()
    optimizer = build_hybrid(model)
    noisy_steps(model, optimizer, 1)
    state = copy.deepcopy(optimizer.state_dict())
    kept = copy.deepcopy(state)
    load_optimizer_state(optimizer, state)
    noisy_steps(model, optimizer, 2)
    assert_same_tensors(state, kept)


@pytest.mark.parametrize(("saved_fused", "fused"), [(True, False), (False, True)])
def test_the_adamw_half_follows_the_present_kernel(saved_fused: bool, fused: bool) -> None:
    model = make_wide()
    saved = build_hybrid(model, fused=saved_fused)
    noisy_steps(model, saved, 1)
    restored = build_hybrid(model, fused=fused)
    load_optimizer_state(restored, saved.state_dict())
    assert [group["fused"] for group in restored.param_groups[1:]] == [fused, fused]
    noisy_steps(model, restored, 2)
    assert restored.state[model[1].weight]["step"].item() == 2  # type: ignore[index]


# Names that stand for several parameters, or for none ---------------------------------------------


def two_models_of_one_kind() -> tuple[nn.Linear, nn.Linear]:
    torch.manual_seed(0)
    return nn.Linear(3, 3), nn.Linear(3, 3)


@pytest.mark.parametrize("cls", [AdamW, CautiousAdamW])
def test_groups_with_equal_names_are_restored_by_position(cls: Any) -> None:
    body, head = two_models_of_one_kind()
    groups = [
        {"params": list(body.named_parameters()), "lr": 1e-2},
        {"params": list(head.named_parameters()), "lr": 1e-3},
    ]
    saved = cls([dict(group) for group in groups])
    for parameter in (*body.parameters(), *head.parameters()):
        parameter.grad = torch.randn_like(parameter)
    saved.step()
    restored = cls([{**group, "lr": 0.5} for group in groups])
    load_optimizer_state(restored, copy.deepcopy(saved.state_dict()))
    assert [group["lr"] for group in restored.param_groups] == [1e-2, 1e-3]
    for parameter in (*body.parameters(), *head.parameters()):
        assert torch.equal(restored.state[parameter]["exp_avg"], saved.state[parameter]["exp_avg"])


def test_groups_with_equal_names_in_another_order_are_refused() -> None:
    body, head = two_models_of_one_kind()
    saved = AdamW([{"params": list(model.named_parameters())} for model in (body, head)])
    other = AdamW(
        [{"params": list(reversed(list(model.named_parameters())))} for model in (body, head)]
    )
    message = (
        "the optimizer has several parameters named bias, and those of the checkpoint come in"
        " another order; give every parameter a name of its own"
    )
    with pytest.raises(IncompatibleCheckpointError, match=re.escape(message)):
        load_optimizer_state(other, saved.state_dict())


def unnamed_hybrid(*algorithms: str) -> HybridOptimizer:
    return HybridOptimizer(
        [
            {"params": [nn.Parameter(torch.ones(4, 4))], "algorithm": algorithm}
            for algorithm in algorithms
        ]
    )


def test_groups_without_names_keep_their_algorithms_or_are_refused() -> None:
    saved = unnamed_hybrid("muon", "adamw").state_dict()
    same = unnamed_hybrid("muon", "adamw")
    load_optimizer_state(same, saved)
    assert [group["algorithm"] for group in same.param_groups] == ["muon", "adamw"]
    message = "the checkpoint trained parameter group 0 by muon, this one by adamw"
    with pytest.raises(IncompatibleCheckpointError, match=message):
        load_optimizer_state(unnamed_hybrid("adamw", "muon"), saved)


def test_the_state_of_another_optimizer_is_refused_without_names_too() -> None:
    weight = nn.Parameter(torch.ones(4, 4))
    message = "trained parameter group 0 by another optimizer, this one by muon"
    with pytest.raises(IncompatibleCheckpointError, match=message):
        load_optimizer_state(Muon([weight]), AdamW([weight]).state_dict())


def test_layouts_and_splits_are_those_of_the_present_model() -> None:
    weight = nn.Parameter(torch.randn(8, 4))
    fused = {"params": [("w", weight)], "row_splits": {"w": [4, 4]}, "layouts": {"w": "matrix"}}
    present = Muon([fused])
    load_optimizer_state(present, Muon([("w", weight)], lr=0.5).state_dict())
    assert present.param_groups[0]["row_splits"] == {"w": [4, 4]}
    assert present.param_groups[0]["layouts"] == {"w": "matrix"}
    assert present.param_groups[0]["lr"] == 0.5


@pytest.mark.parametrize("is_named", [True, False])
def test_a_hyperparameter_younger_than_the_checkpoint_stays_as_it_was_built(is_named: bool) -> None:
    weight = nn.Parameter(torch.ones(4, 4))
    params = [("w", weight)] if is_named else [weight]
    saved = Muon(params, lr=0.5).state_dict()
    del saved["param_groups"][0]["normuon_beta2"]
    present = Muon(params, normuon_beta2=0.5)
    load_optimizer_state(present, saved)
    assert (present.param_groups[0]["lr"], present.param_groups[0]["normuon_beta2"]) == (0.5, 0.5)
    weight.grad = torch.ones_like(weight)
    present.step()
