"""Settings of the optimizers with Muon: what they build, derive, say and refuse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from torch import nn

from speedtronic import build_optimizer, build_scheduler
from speedtronic.config import ConfigError, load_config
from speedtronic.config.describe import derived_values, describe_config
from speedtronic.config.groups import conf_folder
from speedtronic.config.muon import HybridSettings, MuonSettings, TorchMuonSettings
from speedtronic.config.optimizer import resolve_caution
from speedtronic.config.resume import changes_between, check_compatible
from speedtronic.models.gpt import GPT

RULE = {"match": "embedding", "algorithm": "muon"}


def optimizer(name: str = "muon", **values: Any) -> dict[str, Any]:
    return {"optimizer": {"name": name, **values}}


def composed(*overrides: str) -> Any:
    with initialize_config_dir(str(conf_folder()), version_base="1.3"):
        return compose("config", overrides=list(overrides))


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Embedding(11, 16), nn.Linear(16, 16), nn.LayerNorm(16), nn.Linear(16, 9)
    )


def first_group(name: str = "muon", **values: Any) -> dict[str, Any]:
    group: dict[str, Any] = build_optimizer(model(), optimizer(name, **values), "cpu").param_groups[
        0
    ]
    return group


# What they build ----------------------------------------------------------------------------------


def test_every_value_reaches_the_group_of_muon() -> None:
    group = first_group(
        muon_lr=0.2,
        muon_momentum=0.8,
        muon_nesterov=False,
        muon_weight_decay=0.3,
        scale="match_rms_adamw",
        orthogonalization="quintic5",
        muon_plus="row",
        normuon=True,
        normuon_beta2=0.9,
        cautious="update",
    )
    assert group.pop("params")[0].shape == (16, 16)
    assert group == {
        "name": "muon",
        "algorithm": "muon",
        "param_names": ["1.weight"],
        "layouts": {"1.weight": "matrix"},
        "row_splits": {"1.weight": []},
        "lr": 0.2,
        "momentum": 0.8,
        "nesterov": False,
        "weight_decay": 0.3,
        "scale": "match_rms_adamw",
        "orthogonalization": "quintic5",
        "ns_steps": None,
        "muon_plus": "row",
        "normuon_beta2": 0.9,
        "cautious": "update",
        "eps": 1e-7,
    }


def test_every_value_reaches_the_groups_of_adamw() -> None:
    values = {"lr": 0.2, "betas": [0.8, 0.9], "eps": 1e-6, "weight_decay": 0.3}
    _, decayed, rest = build_optimizer(model(), optimizer(**values), "cpu").param_groups
    for group, decay in ((decayed, 0.3), (rest, 0.0)):
        shown = {key: group[key] for key in ("lr", "betas", "eps", "weight_decay", "fused")}
        assert shown == {
            "lr": 0.2,
            "betas": (0.8, 0.9),
            "eps": 1e-6,
            "weight_decay": decay,
            "fused": True,
        }
    assert decayed["param_names"] == ["3.weight"]


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("muon", {"muon_plus": None, "normuon_beta2": None, "cautious": None}),
        ("muon_plus", {"muon_plus": "col_row", "normuon_beta2": None}),
        ("normuon", {"muon_plus": None, "normuon_beta2": 0.95}),
    ],
)
def test_options_differ_in_what_their_names_say(name: str, values: dict[str, Any]) -> None:
    group = first_group(name)
    assert {key: group[key] for key in values} == values
    assert (group["lr"], group["momentum"], group["nesterov"]) == (0.03, 0.95, True)
    assert (group["scale"], group["orthogonalization"], group["ns_steps"]) == ("original", "kj5", 5)


def test_steps_count_for_kj5_alone() -> None:
    assert first_group(muon_ns_steps=7)["ns_steps"] == 7
    assert first_group("muon_torch", muon_ns_steps=7)["ns_steps"] == 7
    for method in ("quintic5", "polar_express", "exact12"):
        assert first_group(orthogonalization=method)["ns_steps"] is None


def test_the_group_of_torchs_muon_has_its_values() -> None:
    group = first_group("muon_torch", muon_lr=0.2, muon_momentum=0.8, scale="match_rms_adamw")
    del group["params"]
    assert group == {
        "name": "muon",
        "algorithm": "muon_torch",
        "param_names": ["1.weight"],
        "lr": 0.2,
        "momentum": 0.8,
        "nesterov": True,
        "weight_decay": 0.1,
        "scale": "match_rms_adamw",
        "ns_steps": 5,
        "eps": 1e-7,
    }


def test_torchs_muon_leaves_what_is_not_2_d_to_adamw_and_says_so() -> None:
    convolutions = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.Conv2d(8, 16, 3), nn.Flatten(), nn.Linear(16, 32), nn.Linear(32, 9)
    )
    settings = load_config(optimizer("muon_torch")).optimizer
    assert isinstance(settings, TorchMuonSettings)
    routes = {route.name: route for route in settings.route(model=convolutions)}
    assert (routes["1.weight"].algorithm, routes["1.weight"].reason) == (
        "adamw",
        "not 2-D, as torch's Muon wants it",
    )
    assert routes["3.weight"].algorithm == "muon"
    built = settings.build(model=convolutions, device=torch.device("cpu"))
    assert built.param_groups[0]["param_names"] == ["3.weight"]
    ours = {route.name: route for route in MuonSettings().route(model=convolutions)}
    assert (ours["1.weight"].algorithm, ours["1.weight"].layout) == ("muon", "flatten")


def test_torchs_muon_counts_a_fused_projection_as_one_matrix() -> None:
    attention = nn.MultiheadAttention(16, 2)
    ours, torchs = (
        settings.route(model=attention)[0] for settings in (MuonSettings(), TorchMuonSettings())
    )
    assert ours.row_splits == (16, 16, 16)
    assert (torchs.algorithm, torchs.row_splits) == ("muon", ())


# Caution ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "default", "expected"),
    [
        (False, "update", None),
        (True, "update", "update"),
        (True, "wd", "wd"),
        ("wd", "update", "wd"),
        ("update", "wd", "update"),
    ],
)
def test_true_is_the_caution_that_suits_an_algorithm(
    setting: Any, default: Any, expected: str | None
) -> None:
    assert resolve_caution(setting, default=default) == expected


# A mask on the polar factor lost 0.04 there, so true masks Muon's decay alone
@pytest.mark.parametrize(
    ("setting", "muon", "adamw"),
    [
        (False, None, None),
        (True, "wd", "update"),
        ("wd", "wd", "wd"),
        ("update", "update", "update"),
    ],
)
def test_true_masks_the_decay_of_muon_and_the_update_of_adamw(
    setting: Any, muon: str | None, adamw: str | None
) -> None:
    groups = build_optimizer(model(), optimizer(cautious=setting), "cpu").param_groups
    assert [group["cautious"] for group in groups] == [muon, adamw, adamw]
    assert [group.get("fused") for group in groups[1:]] == [setting is False] * 2


# Rules of routing ---------------------------------------------------------------------------------

RULES = [
    {"match": r"^1\.weight", "algorithm": "adamw", "lr": 0.5, "weight_decay": 0.0},
    {"match": "weight$", "algorithm": "adamw"},
]


def test_rules_say_the_same_in_yaml_a_dict_and_on_the_command_line(tmp_path: Path) -> None:
    expected = load_config(optimizer(routing=RULES))
    assert isinstance(expected.optimizer, HybridSettings)
    first = expected.optimizer.routing[0]
    assert (first.match, first.algorithm, first.lr, first.weight_decay, first.row_splits) == (
        r"^1\.weight",
        "adamw",
        0.5,
        0.0,
        None,
    )
    path = tmp_path / "c.yaml"
    path.write_text(
        "optimizer:\n  name: muon\n  routing:\n"
        "    - {match: '^1\\.weight', algorithm: adamw, lr: 0.5, weight_decay: 0.0}\n"
        "    - match: weight$\n      algorithm: adamw\n"
    )
    assert load_config(path) == expected
    line = (
        r"optimizer.routing=[{match: '^1\.weight', algorithm: adamw, lr: 0.5, weight_decay: 0.0},"
        " {match: 'weight$', algorithm: adamw}]"
    )
    assert load_config(composed("optimizer=muon", line)) == expected
    assert load_config(expected.to_dict()) == expected
    saved = tmp_path / "saved.yaml"
    expected.save(saved)
    assert load_config(saved) == expected
    assert load_config(OmegaConf.create(optimizer(routing=RULES))) == expected


def test_the_example_of_the_help_gives_the_embedding_to_muon() -> None:
    config = load_config(
        composed("optimizer=muon", "optimizer.routing=[{match: embedding, algorithm: muon}]")
    )
    gpt = GPT(vocab_size=19, max_seq_len=8, n_layer=1, n_head=2, d_model=16)
    built = config.optimizer.build(model=gpt, device=torch.device("cpu"))
    names = {group["name"]: group["param_names"] for group in built.param_groups}
    assert names["muon_rule_0"] == ["embedding.weight"]


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({"routing": {"match": "x"}}, "optimizer.routing: must be a list, got {'match': 'x'}"),
        ({"routing": "x"}, "optimizer.routing: must be a list, got 'x'"),
        ({"routing": [{"match": "x"}]}, "optimizer.routing[0].algorithm: must be given"),
        ({"routing": [{"algorithm": "muon"}]}, "optimizer.routing[0].match: must be given"),
        (
            {"routing": [{**RULE, "algorithm": "sgd"}]},
            "optimizer.routing[0].algorithm: must be one of 'muon' or 'adamw', got 'sgd'",
        ),
        (
            {"routing": [{**RULE, "match": ""}]},
            "optimizer.routing[0].match: must be text of at least 1 character, got ''",
        ),
        (
            {"routing": [{**RULE, "lr": 0}]},
            "optimizer.routing[0].lr: must be greater than 0 or null, got 0",
        ),
        (
            {"routing": [{**RULE, "lrr": 3}]},
            "optimizer.routing[0].lrr: unknown key, got 3; did you mean 'optimizer.routing[0].lr'?",
        ),
        (
            {"muon_plus": True},
            "optimizer.muon_plus: must be one of false, 'row', 'col', 'row_col' or 'col_row',"
            " got true",
        ),
        # Two authors mean opposite things by a bare "spectral"
        (
            {"scale": "spectral"},
            "optimizer.scale: must be one of 'original', 'match_rms_adamw' or"
            " 'spectral_unclamped', got 'spectral'",
        ),
        ({"muon_momentum": 1.0}, "optimizer.muon_momentum: must be less than 1, got 1.0"),
        ({"muon_lr": 0}, "optimizer.muon_lr: must be greater than 0, got 0"),
        (
            {"orthogonalization": "svd"},
            "optimizer.orthogonalization: must be one of 'kj5', 'quintic5', 'polar_express' or"
            " 'exact12', got 'svd'",
        ),
        (
            {"orthogonalization": "quintic5", "muon_ns_steps": 4},
            "optimizer.muon_ns_steps must be left at 5 with optimizer.orthogonalization=quintic5,"
            " which has its own number of steps, got 4; use orthogonalization=kj5 to choose it",
        ),
        (
            {"cautious": True, "fused": True},
            "optimizer.fused must be null or false with optimizer.cautious, got true; torch's"
            " kernel has no mask: leave it out",
        ),
        (
            {"name": "muon_torch", "cautious": "wd"},
            "optimizer.cautious must be false with torch's Muon, which has no mask, got 'wd';"
            " use optimizer=muon",
        ),
        (
            {"name": "muon_torch", "scale": "spectral_unclamped"},
            "optimizer.scale: must be one of 'original' or 'match_rms_adamw',"
            " got 'spectral_unclamped'",
        ),
        ({"name": "muon_torch", "normuon": True}, "optimizer.normuon: unknown key, got true"),
        (
            {
                "name": "muon_torch",
                "routing": [{"match": "qkv", "algorithm": "muon", "row_splits": [8, 8]}],
            },
            "optimizer.routing[0].row_splits must be null with torch's Muon, which takes a matrix"
            " in one piece, got [8, 8]; use optimizer=muon",
        ),
        ({"name": "adamw", "muon_lr": 0.1}, "optimizer.muon_lr: unknown key, got 0.1"),
        (
            {"name": "cautious_adamw", "cautious": "yes"},
            "optimizer.cautious: must be true or false or one of 'wd' or 'update', got 'yes'",
        ),
    ],
)
def test_a_mistake_is_one_line(values: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(optimizer(**values))
    message = str(caught.value)
    assert message.startswith(line)
    assert "\n" not in message


# Derived values -----------------------------------------------------------------------------------


def test_the_decay_of_muon_is_that_of_adamw_unless_given_and_is_shown() -> None:
    config = load_config(optimizer(weight_decay=0.25))
    assert derived_values(config)["optimizer.muon_weight_decay"] == 0.25
    assert "\n  muon_weight_decay: null # 0.25\n" in describe_config(config)
    assert first_group(weight_decay=0.25)["weight_decay"] == 0.25
    assert first_group(weight_decay=0.25, muon_weight_decay=0.0)["weight_decay"] == 0.0
    given = describe_config(load_config(optimizer(weight_decay=0.25, muon_weight_decay=0.5)))
    assert "\n  muon_weight_decay: 0.5\n" in given
    assert "optimizer.muon_weight_decay" not in derived_values(load_config({}))


def test_a_described_configuration_with_rules_loads_as_the_same_one(tmp_path: Path) -> None:
    config = load_config(optimizer(routing=RULES))
    path = tmp_path / "printed.yaml"
    path.write_text(describe_config(config))
    assert load_config(path) == config


def test_the_table_has_the_rates_and_decays_in_force() -> None:
    rules = [{"match": r"^3\.weight", "algorithm": "muon", "lr": 0.5}]
    settings = load_config(optimizer(muon_lr=0.2, weight_decay=0.3, routing=rules)).optimizer
    assert isinstance(settings, HybridSettings)
    records = settings.routing_records(settings.route(model=model()))
    shown = {
        record["name"]: (record["algorithm"], record["lr"], record["weight_decay"])
        for record in records
    }
    assert shown == {
        "0.weight": ("adamw", 0.008, 0.0),
        "1.weight": ("muon", 0.2, 0.3),
        "1.bias": ("adamw", 0.008, 0.0),
        "2.weight": ("adamw", 0.008, 0.0),
        "2.bias": ("adamw", 0.008, 0.0),
        "3.weight": ("muon", 0.5, 0.3),
        "3.bias": ("adamw", 0.008, 0.0),
    }
    built = settings.build(model=model(), device=torch.device("cpu"))
    in_force = {
        name: (group["algorithm"], group["lr"], group["weight_decay"])
        for group in built.param_groups
        for name in group["param_names"]
    }
    assert in_force == shown


def test_a_schedule_moves_muons_momentum_and_leaves_adamw_without_one() -> None:
    values: dict[str, Any] = {
        **optimizer(),
        "max_steps": 10,
        "scheduler": {"name": "wsd", "momentum_start": 0.85, "momentum_warmup_steps": 2},
    }
    built = build_optimizer(model(), values, "cpu")
    schedule = build_scheduler(built, values)
    momenta = []
    for _ in range(4):
        momenta.append(built.param_groups[0]["momentum"])
        assert all("momentum" not in group for group in built.param_groups[1:])
        built.step()
        schedule.step()
    assert momenta == pytest.approx([0.85, 0.9, 0.95, 0.95])


# Resume -------------------------------------------------------------------------------------------


# optimizers.md (23): what would make the saved state mean something else is locked
@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({"scale": "match_rms_adamw"}, "optimizer.scale: original -> match_rms_adamw"),
        ({"cautious": True}, "optimizer.cautious: false -> true"),
        ({"decay": "all"}, "optimizer.decay: matrices -> all"),
        ({"muon_plus": "row"}, "optimizer.muon_plus: false -> row"),
        ({"normuon": True}, "optimizer.normuon: false -> true"),
        ({"normuon_beta2": 0.9}, "optimizer.normuon_beta2: 0.95 -> 0.9"),
        ({"muon_nesterov": False}, "optimizer.muon_nesterov: true -> false"),
        ({"muon_ns_steps": 6}, "optimizer.muon_ns_steps: 5 -> 6"),
        ({"orthogonalization": "exact12"}, "optimizer.orthogonalization: kj5 -> exact12"),
        ({"routing": [RULE]}, "optimizer.routing: [] -> [{'match': 'embedding', "),
        ({"name": "muon_torch"}, "optimizer._target_: speedtronic.config.MuonSettings -> "),
        ({"name": "muon_plus"}, "optimizer.muon_plus: false -> col_row"),
    ],
)
def test_a_resume_cannot_change_how_updates_are_made(values: dict[str, Any], line: str) -> None:
    saved, present = load_config(optimizer()), load_config(optimizer(**values))
    changes = changes_between(saved.to_dict(), present.to_dict())
    with pytest.raises(ConfigError, match="resume cannot change ") as caught:
        check_compatible(changes, run_dir="R")
    assert line in str(caught.value)


# optimizers.md (23): rates and decays may change
@pytest.mark.parametrize(
    "values",
    [
        {"lr": 0.5},
        {"muon_lr": 0.5},
        {"muon_momentum": 0.9},
        {"muon_weight_decay": 0.5},
        {"weight_decay": 0.5},
        {"betas": [0.8, 0.9]},
        {"eps": 1e-6},
        {"fused": False},
        {"grad_clip": None},
    ],
)
def test_a_resume_may_change_rates_and_decays(values: dict[str, Any]) -> None:
    saved, present = load_config(optimizer()), load_config(optimizer(**values))
    changes = changes_between(saved.to_dict(), present.to_dict())
    assert [change.key for change in changes] == [f"optimizer.{key}" for key in values]
    check_compatible(changes, run_dir="R")


def test_a_run_from_before_caution_resumes_and_does_not_become_cautious() -> None:
    saved = load_config({}).to_dict()
    del saved["optimizer"]["cautious"]
    check_compatible(changes_between(saved, load_config({}).to_dict()), run_dir="R")
    cautious = load_config(optimizer("cautious_adamw")).to_dict()
    with pytest.raises(ConfigError, match=r"cannot change optimizer\.cautious: absent -> true"):
        check_compatible(changes_between(saved, cautious), run_dir="R")
