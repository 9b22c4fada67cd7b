"""Values derived from settings, and the components that sections build."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from torch import nn

from speedtronic.config import (
    AdamWSettings,
    CheckpointSettings,
    ConfigError,
    ConstantSettings,
    CosineSettings,
    GPTSettings,
    LinearSettings,
    LoggingSettings,
    PrecisionSettings,
    SoloSettings,
    SpeedtronicConfig,
    load_config,
    resolve_precision,
)
from speedtronic.config.describe import derived_values, describe_config
from speedtronic.config.scheduler import FactorScheduleSettings
from speedtronic.data.loaded import LoadedData

CPU = torch.device("cpu")


# Derived ------------------------------------------------------------------------------------------


def test_one_microbatch_an_update_is_the_default() -> None:
    data = load_config({}).data
    assert (data.micro_batch_size, data.update_batch_size, data.accumulation_steps) == (16, 16, 1)


def test_accumulation_is_target_over_micro() -> None:
    data = load_config({"data": {"micro_batch_size": 4, "target_batch_size": 20}}).data
    assert (data.update_batch_size, data.accumulation_steps) == (20, 5)


def test_the_block_is_the_longest_sequence_unless_given() -> None:
    assert load_config({"model": {"max_seq_len": 64}}).effective_block_size == 64
    shorter = load_config({"model": {"max_seq_len": 64}, "data": {"block_size": 32}})
    assert shorter.effective_block_size == 32


def test_the_data_seed_is_the_runs_unless_given_and_zero_is_a_seed() -> None:
    assert load_config({"seed": 9}).effective_data_seed == 9
    assert load_config({"seed": 9, "data": {"seed": 0}}).effective_data_seed == 0
    assert load_config({"seed": 0}).effective_data_seed == 0


def test_the_target_of_the_data_goes_before_the_runs() -> None:
    assert load_config({}).effective_max_steps == 1000
    assert load_config({"max_steps": 5}).effective_max_steps == 5
    assert load_config({"max_steps": 5, "data": {"max_steps": 7}}).effective_max_steps == 7


@pytest.mark.parametrize("values", [{"max_steps": 5}, {"max_steps": 5, "data": {"max_steps": 7}}])
def test_a_copy_with_another_target_has_it_in_force_and_nothing_else_changed(
    values: dict[str, Any],
) -> None:
    config = load_config(values)
    longer = config.with_target(60)
    assert longer.effective_max_steps == 60
    assert longer.run.max_steps == 60
    assert longer.data.max_steps == (60 if "data" in values else None)
    assert longer.replace(run=config.run, data=config.data) == config
    assert config.effective_max_steps != 60
    assert config.with_target(None) is config


@pytest.mark.parametrize("target", [0, -3])
def test_a_target_below_one_is_refused_by_name(target: int) -> None:
    with pytest.raises(ConfigError, match=rf"max_steps: must be at least 1.*, got {target}"):
        load_config({}).with_target(target)


def test_four_heads_of_a_64_wide_model_derive_the_rest() -> None:
    model = load_config({"model": {"n_head": 4, "d_model": 64}}).model
    assert isinstance(model, GPTSettings)
    # 8/3 of 64 is 170.7, rounded up to a multiple of 64.
    assert (model.num_kv_heads, model.feedforward_width, model.head_width) == (4, 192, 16)


@pytest.mark.parametrize(("d_model", "width"), [(24, 64), (64, 192), (256, 704), (768, 2048)])
def test_the_feed_forward_width_is_eight_thirds_rounded_up_to_64(d_model: int, width: int) -> None:
    assert GPTSettings(d_model=d_model, n_head=4).feedforward_width == width
    assert GPTSettings(d_model=d_model, n_head=4, d_ff=10).feedforward_width == 10


@pytest.mark.parametrize(
    ("target", "warmup"), [(1, 0), (9, 0), (10, 1), (300, 30), (1000, 100), (50_000, 100)]
)
def test_warm_up_is_a_tenth_of_the_horizon_and_at_most_100(target: int, warmup: int) -> None:
    assert CosineSettings().resolve_warmup(target) == warmup


def test_an_explicit_horizon_does_not_follow_the_target() -> None:
    schedule = CosineSettings(max_steps=40)
    assert (schedule.resolve_horizon(20), schedule.resolve_warmup(20)) == (40, 4)


# The printed configuration ------------------------------------------------------------------------


def test_the_printed_configuration_shows_null_and_what_it_stands_for() -> None:
    text = describe_config(load_config({"model": "tiny", "max_steps": 55}))
    for line in (
        "  n_kv_head: null # 4",
        "  d_ff: null # 384",
        "  block_size: null # 128",
        "  seed: null # 1234",
        "  max_steps: null # 55",
        "  warmup_steps: null # 5",
        "  # accumulation_steps: 1",
        "  # head_width: 32",
    ):
        assert line in text.splitlines()


def test_the_printed_configuration_loads_as_the_same_one(tmp_path: Path) -> None:
    config = load_config({"model": "tiny", "data": {"name": "text", "path": ["a", "b: c"]}})
    path = tmp_path / "printed.yaml"
    path.write_text(describe_config(config))
    assert load_config(path) == config


def test_no_secret_is_printed() -> None:
    linear = {"_target_": "torch.nn.Linear", "in_features": 1, "out_features": 1}
    config = load_config({"model": {**linear, "device": {"token": "open sesame"}}})
    assert "sesame" not in describe_config(config)
    assert "***" in describe_config(config)


def test_derived_values_are_named_by_their_keys() -> None:
    values = derived_values(load_config({"data": {"max_steps": 30}}))
    assert values["scheduler.max_steps"] == 30
    assert values["scheduler.warmup_steps"] == 3
    assert values["data.max_steps"] == 30


def test_settings_say_their_type_in_the_saved_form_only_where_there_is_a_choice() -> None:
    tree = SpeedtronicConfig().to_dict()
    assert {
        key for key, value in tree.items() if isinstance(value, dict) and "_target_" in value
    } == {
        "model",
        "data",
        "optimizer",
        "scheduler",
        "distributed",
    }
    assert json.loads(json.dumps(tree)) == tree
    assert OmegaConf.to_container(OmegaConf.create(tree)) == tree


# Building -----------------------------------------------------------------------------------------


def test_the_gpt_is_built_with_the_values_in_force() -> None:
    settings = GPTSettings(max_seq_len=8, n_layer=2, n_head=2, d_model=16)
    model: Any = settings.build(vocab_size=11)
    torch.manual_seed(0)
    out = model(torch.zeros(1, 8, dtype=torch.int64))
    assert out["logits"].shape == (1, 8, 11)
    attention = 4 * 16 * 16
    feed_forward = 3 * 16 * settings.feedforward_width
    assert model.num_parameters() == 2 * (attention + feed_forward + 2 * 16) + 11 * 16 + 16


@pytest.mark.parametrize(
    ("preset", "vocab_size", "millions"),
    [("nano", 256, 0.12), ("tiny", 256, 0.89), ("small", 256, 3.28)],
)
def test_presets_have_the_parameter_counts_of_their_comments(
    preset: str, vocab_size: int, millions: float
) -> None:
    model: Any = load_config({"model": preset}).model.build(vocab_size=vocab_size)
    assert round(model.num_parameters() / 1e6, 2) == millions


def test_gpt2_124m_has_the_parameter_counts_of_its_comment() -> None:
    with torch.device("meta"):
        settings = load_config({"model": "gpt2_124m"}).model
        bytes_model: Any = settings.build(vocab_size=256)
        gpt2_model: Any = settings.build(vocab_size=50257)
    assert round(bytes_model.num_parameters() / 1e6, 1) == 85.2
    assert round(gpt2_model.num_parameters() / 1e6, 1) == 123.6


def test_an_explicit_vocabulary_may_be_larger_than_the_data_and_not_smaller() -> None:
    settings = GPTSettings(n_layer=1, n_head=2, d_model=8, max_seq_len=4, vocab_size=12)
    larger: Any = settings.build(vocab_size=10)
    assert larger.vocab_size == 12
    alone: Any = settings.build(vocab_size=None)
    assert alone.vocab_size == 12
    with pytest.raises(ConfigError) as caught:
        settings.build(vocab_size=13)
    assert str(caught.value) == (
        "model.vocab_size must be at least the data's (13), got 12; try model.vocab_size=null"
    )


def test_a_vocabulary_that_nobody_knows_is_asked_for() -> None:
    with pytest.raises(ConfigError, match=r"model\.vocab_size must be given .* got null"):
        GPTSettings().build(vocab_size=None)


def test_adamw_is_built_with_its_values() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.LayerNorm(3))
    settings = AdamWSettings(lr=0.5, betas=(0.1, 0.2), eps=1e-3, weight_decay=0.3, fused=False)
    optimizer = settings.build(model=model, device=CPU)
    decayed, rest = optimizer.param_groups
    assert (decayed["lr"], decayed["betas"], decayed["eps"]) == (0.5, (0.1, 0.2), 1e-3)
    assert (decayed["weight_decay"], rest["weight_decay"]) == (0.3, 0.0)
    assert (len(decayed["params"]), len(rest["params"])) == (1, 3)


@pytest.mark.parametrize(
    ("settings", "factors"),
    [
        # warm-up 2 of horizon 6, floor 0.5: positions 0, 2, 4, 6 and past the end
        (CosineSettings(warmup_steps=2, min_lr_ratio=0.5), [0.5, 1.0, 0.75, 0.5, 0.5]),
        (LinearSettings(warmup_steps=2, min_lr_ratio=0.5), [0.5, 1.0, 0.75, 0.5, 0.5]),
        (ConstantSettings(warmup_steps=2, min_lr_ratio=0.5), [0.5, 1.0, 1.0, 1.0, 1.0]),
    ],
)
def test_schedules_are_built_over_the_target(
    settings: FactorScheduleSettings, factors: list[float]
) -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    schedule = settings.build(optimizer=optimizer, max_steps=6)
    seen = []
    for position in range(9):
        if position in (0, 2, 4, 6, 8):
            seen.append(schedule.get_last_lr()[0])
        optimizer.step()
        schedule.step()
    assert seen == pytest.approx(factors)


def test_a_warm_up_above_the_horizon_warns_and_is_kept() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    with pytest.warns(UserWarning, match=r"scheduler\.warmup_steps.*20.*horizon.*10") as caught:
        schedule = CosineSettings(warmup_steps=20).build(optimizer=optimizer, max_steps=10)
    assert len(caught) == 1
    assert caught[0].category is UserWarning
    assert schedule.get_last_lr() == [0.05]


def test_a_warm_up_within_the_horizon_does_not_warn() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        CosineSettings(warmup_steps=10).build(optimizer=optimizer, max_steps=10)


@pytest.mark.parametrize("device", ["cpu", CPU])
def test_precision_settings_become_a_plan(device: str | torch.device) -> None:
    plan = resolve_precision(PrecisionSettings(mode="fp32"), device)
    assert (plan.mode, plan.use_scaler, plan.autocast_enabled) == ("fp32", False, False)
    assert (plan.dtype, plan.device_type) == (torch.float32, "cpu")


def test_solo_has_no_coordinator() -> None:
    assert SoloSettings().build() is None  # type: ignore[func-returns-value]
    assert SoloSettings().reset_inner_optimizer is None


def test_the_checkpoint_manager_lives_below_the_run_folder(tmp_path: Path) -> None:
    settings = CheckpointSettings(every_steps=3, keep_last=None, async_save=False)
    events: list[str] = []
    manager = settings.build(folder=tmp_path, on_event=lambda name, _payload: events.append(name))
    try:
        assert [manager.should_save(step) for step in (2, 3, 6)] == [False, True, True]
        assert manager.latest_path() is None
        path = manager.save(3, {"step": 3, "model": {"w": torch.ones(2)}})
        assert path is not None
        assert path.parent == tmp_path / "checkpoints"
    finally:
        manager.close()
    assert events == ["checkpoint"]


def test_an_absolute_checkpoint_directory_stays_where_it_is(tmp_path: Path) -> None:
    settings = CheckpointSettings(directory=tmp_path / "elsewhere", async_save=False)
    manager = settings.build(folder=tmp_path / "run")
    try:
        path = manager.save(1, {"step": 1})
        assert path is not None
        assert path.parent == tmp_path / "elsewhere"
    finally:
        manager.close()


def test_the_logger_writes_below_the_run_folder_and_has_no_hook(tmp_path: Path) -> None:
    logger = LoggingSettings(every_steps=5).build(folder=tmp_path)
    try:
        logger.info("hello")
        logger.event("eval", {"step": 1, "loss": 2.0})
        assert [logger.should_log(step) for step in (4, 5)] == [False, True]
    finally:
        logger.close()
    assert "hello" in (tmp_path / "train.log").read_text()
    record = json.loads((tmp_path / "metrics.jsonl").read_text())
    assert (record["event"], record["step"], record["loss"]) == ("eval", 1, 2.0)


def test_files_that_are_off_are_not_written(tmp_path: Path) -> None:
    logger = LoggingSettings(file=None, json_file=None).build(folder=tmp_path)
    try:
        logger.info("hello")
        logger.event("eval", {"step": 1})
    finally:
        logger.close()
    assert list(tmp_path.iterdir()) == []


# Data ---------------------------------------------------------------------------------------------


def built(values: dict[str, Any], *, block_size: int = 4, seed: int = 0) -> LoadedData:
    data = load_config({"data": {"micro_batch_size": 2, **values}}).data
    return data.build(block_size=block_size, seed=seed, max_eval_batches=1, device=CPU)


def first_batch(loaded: LoadedData) -> dict[str, Any]:
    iterator = iter(loaded.train)
    batch: dict[str, Any] = next(iterator)
    iterator.close()  # type: ignore[attr-defined]
    return batch


def test_text_data_is_built_in_order_with_its_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("abcdefghijklmnopqrstuvwxyz" * 20)
    loaded = built({"name": "text", "path": str(tmp_path / "a.txt"), "shuffle": False})
    batch = first_batch(loaded)
    assert bytes(batch["input_ids"].flatten().tolist()) == b"abcdefgh"
    assert bytes(batch["labels"].flatten().tolist()) == b"bcdefghi"
    assert loaded.vocab_size == 256
    assert loaded.evaluation is not None
    assert len(list(loaded.evaluation)) == 1


def test_no_held_out_part_means_no_evaluation(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("abc" * 100)
    path = str(tmp_path / "a.txt")
    assert built({"name": "text", "path": path, "validation_fraction": 0.0}).evaluation is None


def test_the_standard_library_may_lie_elsewhere(tmp_path: Path) -> None:
    for number in range(40):
        (tmp_path / f"m{number:02}.py").write_text(f"value = {number}\n" * 20)
    loaded = built({"name": "stdlib", "path": tmp_path, "tokenizer": "char"})
    assert loaded.tokenizer is not None
    assert loaded.tokenizer.name == "char"
    assert loaded.vocab_size == len(set("value = 0123456789\n"))


def test_token_files_are_mapped(tmp_path: Path) -> None:
    np.save(tmp_path / "t.npy", np.arange(200, dtype=np.uint16))
    loaded = built({"name": "tokens", "path": str(tmp_path / "t.npy"), "shuffle": False})
    assert first_batch(loaded)["input_ids"].tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_synthetic_data_has_a_stream_for_each_seed() -> None:
    values = {"name": "synthetic", "num_tokens": 500, "vocab_size": 32, "shuffle": False}
    one, again, two = (first_batch(built(values, seed=seed))["input_ids"] for seed in (1, 1, 2))
    assert one.tolist() == again.tolist()
    assert one.tolist() != two.tolist()
    assert built(values).vocab_size == 32


@pytest.mark.parametrize(
    ("pin_memory", "device", "pinned"),
    [(None, "cpu", False), (None, "cuda", True), (True, "cpu", True), (False, "cuda", False)],
)
def test_memory_is_pinned_for_cuda_unless_said_otherwise(
    pin_memory: bool | None, device: str, pinned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: dict[str, Any] = {}
    monkeypatch.setattr(
        "speedtronic.data.corpus.build_stdlib_data", lambda **keywords: told.update(keywords)
    )
    data = load_config({"data": {"pin_memory": pin_memory}}).data
    data.build(block_size=8, seed=1, max_eval_batches=None, device=torch.device(device))
    assert told["pin_memory"] is pinned
