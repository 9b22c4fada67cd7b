"""The hybrid of Muon and AdamW: what it holds, how its groups are checked, and that it is one."""

from __future__ import annotations

import copy
import pickle
import re
import warnings
from typing import Any

import pytest
import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import AdamW, Optimizer

from speedtronic import build_optimizer
from speedtronic.config.groups import GROUPS
from speedtronic.core.errors import ConfigError, FallbackWarning
from speedtronic.models.gpt import GPT
from speedtronic.optim.hybrid import HybridOptimizer
from speedtronic.optim.muon import Muon
from speedtronic.schedule.build import build_schedule
from tests.unit.trainer.builders import assert_same_tensors

OPTIONS = list(GROUPS["optimizer"].options())
WITH_MUON = [option for option in OPTIONS if "muon" in option]
ONLY_MATRICES = {"routing": [{"match": "weight", "algorithm": "muon"}]}


class Attention(nn.Module):
    """A fused input projection with its own bias, and a frozen embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(11, 16)
        self.tokens.requires_grad_(False)
        self.attention = nn.MultiheadAttention(16, 2)
        self.head = nn.Linear(16, 11)


def small_gpt(*, tie_weights: bool) -> GPT:
    return GPT(
        vocab_size=19, max_seq_len=8, n_layer=2, n_head=2, d_model=16, tie_weights=tie_weights
    )


def convnet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.BatchNorm2d(8),
        nn.Conv2d(8, 16, 3),
        nn.Flatten(),
        nn.Linear(64, 10),
    )


MODELS = {
    "GPT, tied": lambda: small_gpt(tie_weights=True),
    "GPT, untied": lambda: small_gpt(tie_weights=False),
    "MLP": lambda: nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16), nn.Linear(16, 4)),
    "convolutions": convnet,
    "attention, partly frozen": Attention,
    "vectors only": lambda: nn.LayerNorm(16),
    "matrices only": lambda: nn.Sequential(
        nn.Linear(16, 16, bias=False), nn.Linear(16, 8, bias=False)
    ),
}


def make_mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.LayerNorm(16), nn.Linear(16, 8))


def build(model: nn.Module, option: str = "muon", **values: Any) -> Optimizer:
    return build_optimizer(model, {"optimizer": {"name": option, **values}}, "cpu")


def give_gradients(model: nn.Module, seed: int = 1) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.randn(parameter.shape, generator=generator)


def step(model: nn.Module, optimizer: Optimizer, *seeds: int) -> None:
    for seed in seeds:
        give_gradients(model, seed)
        optimizer.step()


def tensors(model: nn.Module) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


def held(optimizer: Optimizer) -> list[nn.Parameter]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


# What it holds ------------------------------------------------------------------------------------


# optimizers.md (19): coverage
@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("kind", MODELS)
def test_every_optimizer_holds_the_trainable_parameters_of_every_model_once_each(
    kind: str, option: str
) -> None:
    model = MODELS[kind]()
    rules = ONLY_MATRICES if kind == "matrices only" and option in WITH_MUON else {}
    optimizer = build(model, option, **rules)

    trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
    found = [id(p) for p in held(optimizer)]
    assert len(found) == len(set(found))
    assert set(found) == {id(p) for p in trainable.values()}
    names = [name for group in optimizer.param_groups for name in group["param_names"]]
    assert sorted(names) == sorted(trainable)
    assert all(id(trainable[name]) == at for name, at in zip(names, found, strict=True))


# optimizers.md (19); seen elsewhere: a replica of the tied embedding went to Muon
@pytest.mark.parametrize("option", WITH_MUON)
def test_a_tied_weight_is_held_once_and_by_adamw(option: str) -> None:
    model = small_gpt(tie_weights=True)
    (group,) = [
        group
        for group in build(model, option).param_groups
        if any(parameter is model.embedding.weight for parameter in group["params"])
    ]
    assert (group["name"], group["weight_decay"]) == ("adamw_no_decay", 0.0)


# optimizers.md (19): either half may be empty
@pytest.mark.parametrize(
    ("kind", "values", "algorithms"),
    [
        ("vectors only", {}, {"adamw"}),
        ("matrices only", ONLY_MATRICES, {"muon"}),
        ("MLP", {}, {"muon", "adamw"}),
    ],
)
def test_a_half_without_parameters_has_no_group_and_the_other_steps(
    kind: str, values: dict[str, Any], algorithms: set[str]
) -> None:
    model = MODELS[kind]()
    optimizer = build(model, **values)
    assert {group["algorithm"] for group in optimizer.param_groups} == algorithms
    before = tensors(model)
    step(model, optimizer, 1)
    assert all(
        not torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True)
    )


@pytest.mark.parametrize("option", WITH_MUON)
def test_a_model_without_trainable_parameter_is_refused(option: str) -> None:
    with pytest.raises(ConfigError, match="model must have a trainable parameter, got ReLU"):
        build(nn.ReLU(), option)


def test_groups_say_how_they_are_trained() -> None:
    model = small_gpt(tie_weights=False)
    groups = {group["name"]: group for group in build(model, muon_lr=0.05, lr=0.02).param_groups}
    assert list(groups) == ["muon", "adamw_decay", "adamw_no_decay"]
    assert {name: group["algorithm"] for name, group in groups.items()} == {
        "muon": "muon",
        "adamw_decay": "adamw",
        "adamw_no_decay": "adamw",
    }
    shown = {name: (group["lr"], group["weight_decay"]) for name, group in groups.items()}
    assert shown == {
        "muon": (0.05, 0.1),
        "adamw_decay": (0.02, 0.1),
        "adamw_no_decay": (0.02, 0.0),
    }
    assert groups["muon"]["momentum"] == 0.95
    assert "momentum" not in groups["adamw_decay"]
    assert groups["adamw_decay"]["betas"] == (0.9, 0.95)
    assert "betas" not in groups["muon"]


# seen elsewhere: matrices moved off Muon and then trained with the other half's rate
def test_a_rule_gives_excluded_matrices_a_rate_and_a_decay_of_their_own() -> None:
    model = make_mlp()
    rules = [
        {"match": r"^0\.weight", "algorithm": "adamw", "lr": 0.004, "weight_decay": 0.3},
        {"match": r"^3\.weight", "algorithm": "muon", "lr": 0.01, "weight_decay": 0.0},
    ]
    optimizer = build(model, routing=rules)
    found = {
        group["name"]: (group["param_names"], group["lr"], group["weight_decay"])
        for group in optimizer.param_groups
    }
    assert found == {
        "muon_rule_1": (["3.weight"], 0.01, 0.0),
        "adamw_decay_rule_0": (["0.weight"], 0.004, 0.3),
        "adamw_no_decay": (["0.bias", "2.weight", "2.bias", "3.bias"], 0.008, 0.0),
    }
    before = model[0].weight.detach().clone()
    step(model, optimizer, 1)
    # AdamW's first step: shrink by lr * decay, then move by lr against the sign.
    expected = before * (1 - 0.004 * 0.3) - 0.004 * model[0].weight.grad.sign()
    torch.testing.assert_close(model[0].weight.detach(), expected, rtol=0, atol=1e-6)


def test_rules_for_one_algorithm_keep_groups_of_their_own() -> None:
    model = nn.Sequential(*[nn.Linear(16, 16, bias=False) for _ in range(4)], nn.Linear(16, 9))
    rules = [
        {"match": r"^0\.", "algorithm": "muon"},
        {"match": r"^1\.", "algorithm": "muon", "lr": 0.5},
        {"match": r"^4\.", "algorithm": "adamw", "lr": 0.25},
    ]
    groups = build(model, routing=rules).param_groups
    assert [(group["name"], group["param_names"], group["lr"]) for group in groups] == [
        ("muon", ["2.weight", "3.weight"], 0.03),
        ("muon_rule_0", ["0.weight"], 0.03),
        ("muon_rule_1", ["1.weight"], 0.5),
        ("adamw_decay_rule_2", ["4.weight"], 0.25),
        ("adamw_no_decay_rule_2", ["4.bias"], 0.25),
    ]


# seen elsewhere: decay on norms that a test by name misses
@pytest.mark.parametrize("option", WITH_MUON)
@pytest.mark.parametrize("norm", [nn.LayerNorm, nn.RMSNorm])
def test_norms_and_biases_do_not_decay_whatever_they_are_called(
    option: str, norm: type[nn.Module]
) -> None:
    model = nn.ModuleDict({"a": nn.Linear(16, 16), "b": norm(16), "c": norm((4, 16))})
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer = build(model, option, weight_decay=0.5, lr=0.1, muon_lr=0.1)
    optimizer.step()
    changed = {
        name for name, value in model.named_parameters() if not torch.equal(value, before[name])
    }
    assert changed == {"a.weight"}


# How groups are checked ---------------------------------------------------------------------------


# seen elsewhere: a parameter twice in one group was updated twice
def test_a_parameter_that_appears_twice_is_refused() -> None:
    weight = nn.Parameter(torch.zeros(8, 8))
    with pytest.raises(ConfigError, match="a parameter appears twice in one group; give each once"):
        _quietly_build([{"params": [("a", weight), ("b", weight)], "algorithm": "adamw"}])
    with pytest.raises(ValueError, match="appear in more than one parameter group"):
        HybridOptimizer([{"params": [weight]}, {"params": [weight], "algorithm": "adamw"}])


def _quietly_build(groups: list[dict[str, Any]]) -> HybridOptimizer:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch says that it will be an error
        return HybridOptimizer(groups)


def group_of(parameter: Any, **values: Any) -> dict[str, Any]:
    return {"params": [parameter], "algorithm": "adamw", **values}


INTEGERS = nn.Parameter(torch.zeros(2, dtype=torch.int64), requires_grad=False)


@pytest.mark.parametrize(
    ("group", "message"),
    [
        (
            {"algorithm": "adam"},
            "algorithm must be one of muon, adamw, muon_torch, got 'adam'; correct the parameter",
        ),
        ({"lr": -0.1}, "lr must be at least 0 and below inf, got -0.1"),
        ({"eps": -1e-8}, "eps must be at least 0 and below inf, got -1e-08"),
        ({"weight_decay": float("nan")}, "weight_decay must be at least 0 and below inf, got nan"),
        ({"betas": (0.9, 1.0)}, "betas must be two numbers in [0, 1), got (0.9, 1.0)"),
        ({"betas": (0.9,)}, "betas must be two numbers in [0, 1), got (0.9,)"),
        ({"cautious": "yes"}, "cautious must be None, wd or update, got 'yes'"),
        (
            {"cautious": "wd", "fused": True},
            "fused must be False with cautious: torch's kernel has no mask",
        ),
        (
            {
                "params": [nn.Parameter(torch.zeros(2, dtype=torch.complex64))],
                "cautious": "update",
            },
            "parameter number 0 of shape (2,) is complex64, not real floating point;"
            " freeze it or train it with another optimizer",
        ),
        (
            {"params": [("count", INTEGERS)]},
            "parameter count of shape (2,) is int64, not real floating point;"
            " freeze it or train it with another optimizer",
        ),
        (
            {"params": [nn.Parameter(torch.eye(3).to_sparse())]},
            "parameter number 0 of shape (3, 3) is sparse; train it with SparseAdam",
        ),
        (
            {"algorithm": "muon_torch", "params": [("v", nn.Parameter(torch.zeros(8)))]},
            "parameter v of shape (8,) is not 2-D, as torch's Muon wants it",
        ),
        (
            {
                "algorithm": "muon_torch",
                "params": [nn.Parameter(torch.zeros(8, 8))],
                "scale": "spectral_unclamped",
            },
            "scale must be one of original, match_rms_adamw, got 'spectral_unclamped'",
        ),
        (
            {"algorithm": "muon", "params": [nn.Parameter(torch.zeros(8, 8))], "momentum": 1.0},
            "momentum must be at least 0 and below 1, got 1.0",
        ),
    ],
)
def test_a_group_that_cannot_be_trained_is_refused_and_not_added(
    group: dict[str, Any], message: str
) -> None:
    wrong = group_of(nn.Parameter(torch.zeros(2)))
    wrong.update(group)
    with pytest.raises(ConfigError, match=re.escape(message)):
        HybridOptimizer([copy.copy(wrong)])
    first: Any = nn.Parameter(torch.zeros(2))
    is_named = isinstance(wrong["params"][0], tuple)
    optimizer = HybridOptimizer([group_of(("first", first) if is_named else first)])
    with pytest.raises(ConfigError, match=re.escape(message)):
        optimizer.add_param_group(copy.copy(wrong))
    assert len(optimizer.param_groups) == 1


def test_a_group_of_vectors_is_no_group_of_muons() -> None:
    optimizer = HybridOptimizer([group_of(nn.Parameter(torch.zeros(2)))])
    with pytest.raises(ConfigError, match=r"is no matrix; give it to AdamW"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(9))], "algorithm": "muon"})


def test_sparse_gradients_are_refused_where_they_appear() -> None:
    embedding = nn.Embedding(9, 4, sparse=True)
    optimizer = HybridOptimizer([group_of(embedding.weight)])
    embedding(torch.tensor([1, 2])).sum().backward()
    with pytest.raises(RuntimeError, match=r"adamw takes no sparse gradients, .* shape \(9, 4\)"):
        optimizer.step()


# One optimizer ------------------------------------------------------------------------------------


# optimizers.md (20): one schedule for both halves
def test_a_schedule_scales_the_rates_of_both_halves_by_one_factor() -> None:
    model = make_mlp()
    optimizer = build(model, muon_lr=0.3, lr=0.02)
    schedule = build_schedule(optimizer, kind="linear", warmup_steps=2, horizon=6, min_ratio=0.0)
    rates = []
    for _ in range(6):
        rates.append([group["lr"] for group in optimizer.param_groups])
        step(model, optimizer, 1)
        schedule.step()
    # Warm-up 1/2 and 1, then the line from 1 at position 2 to 0 at position 6.
    factors = [1 / 2, 1.0, 1.0, 3 / 4, 1 / 2, 1 / 4]
    for found, factor in zip(rates, factors, strict=True):
        assert found == pytest.approx([0.3 * factor, 0.02 * factor, 0.02 * factor], rel=1e-12)


# optimizers.md (24): one scaler, one flag for both halves
@pytest.mark.parametrize("spoiled", ["0.weight", "2.weight"])
def test_torchs_scaler_skips_both_halves_for_one_infinite_gradient(spoiled: str) -> None:
    model = make_mlp()
    optimizer = build(model)
    schedule = build_schedule(optimizer, kind="constant", warmup_steps=4, horizon=8)
    scaler = GradScaler("cpu", init_scale=4.0)
    scaler.scale(torch.zeros(()))  # makes the scale a tensor
    give_gradients(model)
    model.get_parameter(spoiled).grad[0] = torch.inf
    before, rates = tensors(model), [group["lr"] for group in optimizer.param_groups]

    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()

    assert_same_tensors(tensors(model), before)
    assert dict(optimizer.state) == {}
    assert scaler.get_scale() == 2.0
    assert [group["lr"] for group in optimizer.param_groups] == rates
    assert schedule.last_epoch == 0

    give_gradients(model)
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    assert all(not torch.equal(o, n) for o, n in zip(before, model.parameters(), strict=True))


# optimizers.md (25): closure
@pytest.mark.parametrize("option", WITH_MUON)
def test_a_closure_is_called_once_with_gradients_on_and_its_value_returned(option: str) -> None:
    model = make_mlp()
    optimizer = build(model, option)
    calls = []

    def closure() -> torch.Tensor:
        calls.append(torch.is_grad_enabled())
        optimizer.zero_grad()
        loss = model(torch.ones(2, 16)).square().mean()
        loss.backward()
        return loss

    before = tensors(model)
    expected = model(torch.ones(2, 16)).square().mean().item()
    with torch.no_grad():
        returned = optimizer.step(closure)
    assert calls == [True]
    assert returned.item() == expected
    assert not torch.equal(model[0].weight, before[0])
    assert optimizer.step() is None


# optimizers.md (25): zero_grad
def test_gradients_of_both_halves_are_cleared() -> None:
    model = make_mlp()
    optimizer = build(model)
    give_gradients(model)
    optimizer.zero_grad()
    assert [parameter.grad for parameter in model.parameters()] == [None] * 6
    give_gradients(model)
    optimizer.zero_grad(set_to_none=False)
    assert all(not parameter.grad.any() for parameter in model.parameters())


# optimizers.md (25): deepcopy and pickle
@pytest.mark.parametrize("option", WITH_MUON)
@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))], ids=["copy", "pickle"]
)
def test_a_copy_goes_on_like_the_original(option: str, copied: Any) -> None:
    model = make_mlp()
    optimizer = build(model, option)
    step(model, optimizer, 1, 2)
    twin, twin_optimizer = copied((model, optimizer))
    assert type(twin_optimizer) is HybridOptimizer
    step(model, optimizer, 3, 4)
    step(twin, twin_optimizer, 3, 4)
    assert_same_tensors(tensors(twin), tensors(model))
    assert_same_tensors(twin_optimizer.state_dict(), optimizer.state_dict())


# optimizers.md (25); seen elsewhere: flags that lay in the state went with it when it was cleared
@pytest.mark.parametrize("option", WITH_MUON)
def test_a_cleared_state_makes_the_optimizer_a_new_one_with_the_same_routing(option: str) -> None:
    model = make_mlp()
    optimizer = build(model, option)
    step(model, optimizer, 1, 2)
    fresh_model = copy.deepcopy(model)
    fresh = build(fresh_model, option)

    optimizer.state.clear()

    step(model, optimizer, 3, 4)
    step(fresh_model, fresh, 3, 4)
    assert_same_tensors(tensors(model), tensors(fresh_model))
    assert_same_tensors(optimizer.state_dict(), fresh.state_dict())


@pytest.mark.parametrize("option", WITH_MUON)
def test_a_parameter_without_gradient_is_left_alone_decay_and_state_included(option: str) -> None:
    model = make_mlp()
    optimizer = build(model, option, weight_decay=0.5)
    give_gradients(model)
    left = [model[0].weight, model[2].weight]  # one of Muon's, one of AdamW's
    for parameter in left:
        parameter.grad = None
    before = [parameter.detach().clone() for parameter in left]
    optimizer.step()
    assert_same_tensors([parameter.detach() for parameter in left], before)
    assert all(not optimizer.state[parameter] for parameter in left)


# The two halves -----------------------------------------------------------------------------------


def make_wide_mlp() -> nn.Module:
    """Return the network with a head of 9,600 entries, enough for two kernels to differ in some."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.LayerNorm(16), nn.Linear(16, 600))


def halves(**values: Any) -> tuple[nn.Module, Optimizer]:
    model = make_wide_mlp()
    return model, build(model, lr=0.01, weight_decay=0.2, muon_lr=0.05, **values)


ADAMW_NAMES = ("0.bias", "2.weight", "2.bias", "3.weight", "3.bias")


def adamw_beside(model: nn.Module, *, fused: bool) -> AdamW:
    """Build torch's AdamW over what the hybrid trains with its AdamW."""
    named = dict(model.named_parameters())
    rest = [named[name] for name in ADAMW_NAMES if name != "3.weight"]
    return AdamW(
        [
            {"params": [named["3.weight"]], "weight_decay": 0.2},
            {"params": rest, "weight_decay": 0.0},
        ],
        lr=0.01,
        betas=(0.9, 0.95),
        fused=fused,
    )


# optimizers.md (26): torch's fused kernel, and its loop
@pytest.mark.parametrize("fused", [None, False])
def test_the_adamw_half_equals_torchs_adamw_bit_for_bit(fused: bool | None) -> None:
    model, optimizer = halves(fused=fused)
    assert {group.get("fused") for group in optimizer.param_groups[1:]} == {fused is None}
    twin = make_wide_mlp()
    reference = adamw_beside(twin, fused=fused is None)
    step(model, optimizer, *range(20))
    step(twin, reference, *range(20))
    found, expected = dict(model.named_parameters()), dict(twin.named_parameters())
    for name in ADAMW_NAMES:
        assert torch.equal(found[name], expected[name]), name
    for name in ("exp_avg", "exp_avg_sq", "step"):
        moments = optimizer.state[found["3.weight"]], reference.state[expected["3.weight"]]
        assert torch.equal(moments[0][name], moments[1][name]), name


# optimizers.md (26): fused against the loop
def test_the_fused_adamw_half_equals_torchs_loop_to_a_millionth() -> None:
    model, optimizer = halves()
    twin = make_wide_mlp()
    reference = adamw_beside(twin, fused=False)
    step(model, optimizer, *range(20))
    step(twin, reference, *range(20))
    found, expected = dict(model.named_parameters()), dict(twin.named_parameters())
    for name in ADAMW_NAMES:  # fp32 rounding of 20 steps
        assert (found[name] - expected[name]).abs().max() <= 1e-6, name


def test_the_muon_half_equals_muon_alone_bit_for_bit() -> None:
    model, optimizer = halves()
    twin = make_wide_mlp()
    reference = Muon([twin[0].weight], lr=0.05, weight_decay=0.2)
    step(model, optimizer, *range(5))
    step(twin, reference, *range(5))
    assert torch.equal(model[0].weight, twin[0].weight)


def test_torchs_muon_in_the_hybrid_equals_torchs_own_optimizer_bit_for_bit() -> None:
    model = make_mlp()
    optimizer = build(model, "muon_torch", weight_decay=0.2, muon_lr=0.05)
    twin = make_mlp()
    reference = torch.optim.Muon([twin[0].weight], lr=0.05, weight_decay=0.2)
    step(model, optimizer, *range(5))
    step(twin, reference, *range(5))
    assert torch.equal(model[0].weight, twin[0].weight)
    state, expected = optimizer.state[model[0].weight], reference.state[twin[0].weight]
    assert torch.equal(state["momentum_buffer"], expected["momentum_buffer"])


def test_a_forced_fused_half_without_a_kernel_becomes_the_ordinary_one_with_a_warning() -> None:
    model = nn.Linear(16, 16, device="meta")
    with pytest.warns(FallbackWarning, match=r"it does not run on meta\); using the ordinary"):
        optimizer = build_optimizer(model, {"optimizer": {"name": "muon", "fused": True}}, "meta")
    assert [group["fused"] for group in optimizer.param_groups if "fused" in group] == [False] * (
        len(optimizer.param_groups)
    )


def test_building_and_stepping_draw_no_random_number() -> None:
    model = make_mlp()
    give_gradients(model)
    before = torch.get_rng_state()
    build(model).step()
    assert torch.equal(torch.get_rng_state(), before)
