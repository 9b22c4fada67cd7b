"""Any valid configuration says the same as dict, YAML, saved file and ``DictConfig``."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from speedtronic.config import ConfigError, SpeedtronicConfig, load_config
from speedtronic.config.describe import describe_config
from speedtronic.config.groups import GROUPS

text = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), min_size=1, max_size=12
).filter(lambda value: value not in ("None", "???") and "${" not in value)
names = st.from_regex(r"[a-z][a-z0-9_. -]{0,10}[a-z0-9]", fullmatch=True).filter(
    lambda value: value != "None"
)
fractions = st.floats(0, 1, exclude_max=True)
positive = st.floats(1e-12, 1e6)
counts = st.integers(1, 10**9)


def sections(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Give any subset of the fields."""
    return st.fixed_dictionaries({}, optional=fields)


models = st.one_of(
    st.sampled_from(["gpt", "nano", "tiny", "small", "gpt2_124m"]),
    st.builds(
        lambda heads, pairs, groups, rest: {
            "n_head": heads,
            "d_model": heads * 2 * pairs,
            "n_kv_head": heads if groups else None,
            "max_seq_len": 4096,
            **rest,
        },
        st.integers(1, 16),
        st.integers(1, 16),
        st.booleans(),
        sections(dropout=fractions, tie_weights=st.booleans(), rope_base=positive, n_layer=counts),
    ),
)
loaders = sections(
    block_size=st.none() | st.integers(1, 128),
    validation_fraction=fractions,
    shuffle=st.booleans(),
    pin_memory=st.none() | st.booleans(),
    seed=st.none() | st.integers(0, 2**32 - 1),
    max_steps=st.none() | counts,
)
data = st.builds(
    lambda source, keys, micro, factor: {
        **source,
        **keys,
        "micro_batch_size": micro,
        "target_batch_size": None if factor is None else micro * factor,
    },
    st.one_of(
        st.just({}),
        st.builds(lambda path: {"name": "text", "path": path}, text | st.lists(text, min_size=1)),
        st.builds(lambda size: {"name": "synthetic", "vocab_size": size}, st.integers(2, 999)),
    ),
    loaders,
    st.integers(1, 64),
    st.none() | st.integers(1, 8),
)
adamw_keys: dict[str, st.SearchStrategy[Any]] = {
    "lr": positive,
    "betas": st.lists(fractions, min_size=2, max_size=2),
    "eps": positive,
    "weight_decay": st.floats(0, 10),
    "fused": st.none() | st.just(False),  # true is refused beside caution
    "grad_clip": st.none() | positive,
    "decay": st.sampled_from(["matrices", "all"]),
}
cautions = st.booleans() | st.sampled_from(["wd", "update"])
rules = st.fixed_dictionaries(
    {"match": text, "algorithm": st.sampled_from(["muon", "adamw"])},
    optional={
        "lr": st.none() | positive,
        "weight_decay": st.none() | st.floats(0, 10),
        "row_splits": st.none() | st.lists(counts, min_size=1, max_size=3),
    },
)
hybrid_keys: dict[str, st.SearchStrategy[Any]] = {
    **adamw_keys,
    "muon_lr": positive,
    "muon_momentum": fractions,
    "muon_nesterov": st.booleans(),
    "muon_weight_decay": st.none() | st.floats(0, 10),
    "routing": st.lists(rules, max_size=3),
}
muon_keys: dict[str, st.SearchStrategy[Any]] = {
    **hybrid_keys,
    "cautious": cautions,
    "scale": st.sampled_from(["original", "match_rms_adamw", "spectral_unclamped"]),
    "orthogonalization": st.sampled_from(["kj5", "quintic5", "polar_express", "exact12"]),
    "muon_plus": st.sampled_from([False, "row", "col", "row_col", "col_row"]),
    "normuon": st.booleans(),
    "normuon_beta2": fractions,
}


def named(option: str, **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Give an option of a group with any subset of the fields."""
    return st.fixed_dictionaries({"name": st.just(option)}, optional=fields)


optimizers = st.one_of(
    st.sampled_from(list(GROUPS["optimizer"].options())),
    sections(**{**adamw_keys, "fused": st.none() | st.booleans()}),
    named("cautious_adamw", cautious=cautions, **adamw_keys),
    *(named(option, **muon_keys) for option in ("muon", "muon_plus", "normuon")),
    named(
        "muon_torch",
        muon_ns_steps=st.integers(1, 100),
        scale=st.sampled_from(["original", "match_rms_adamw"]),
        **hybrid_keys,
    ),
)
schedulers = st.one_of(
    st.sampled_from(["cosine", "constant", "linear", "wsd"]),
    named(
        "wsd",
        warmup_steps=st.none() | st.integers(0, 100),
        decay_ratio=st.floats(0, 1, exclude_min=True),
        decay_shape=st.sampled_from(["linear", "1-sqrt", "cosine"]),
        min_lr_ratio=st.floats(0, 1),
        momentum_start=st.none() | fractions,
        momentum_end=st.none() | fractions,
        weight_decay_shape=st.sampled_from(["constant", "lr", "cosine", "linear"]),
    ),
)
configurations = sections(
    model=models,
    data=data,
    optimizer=optimizers,
    scheduler=schedulers,
    precision=st.sampled_from(["auto", "bf16", {"mode": "fp16"}]),
    run=sections(name=names, max_minutes=st.none() | positive),
    seed=st.none() | st.integers(0, 2**32 - 1),
    max_steps=st.none() | counts,
    logging=sections(level=st.sampled_from(["DEBUG", "ERROR"]), file=st.none() | text),
    gradient_checkpointing=st.booleans() | counts,
    tags=st.lists(text, max_size=3),
    compile=st.booleans(),
)


@settings(max_examples=40, deadline=None)
@given(configurations)
def test_every_way_in_and_out_gives_equal_configurations(values: dict[str, Any]) -> None:
    config = load_config(values)
    with tempfile.TemporaryDirectory() as folder:
        given_path, saved_path = Path(folder) / "given.yaml", Path(folder) / "saved.yaml"
        given_path.write_text(OmegaConf.to_yaml(OmegaConf.create(values)), encoding="utf-8")
        config.save(saved_path)
        printed_path = Path(folder) / "printed.yaml"
        printed_path.write_text(describe_config(config), encoding="utf-8")

        assert load_config(given_path) == config
        assert load_config(saved_path) == config
        assert load_config(printed_path) == config
    assert load_config(OmegaConf.create(values)) == config
    assert load_config(config.to_dict()) == config
    assert SpeedtronicConfig.from_dict(config.to_dict()).to_dict() == config.to_dict()


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["run", "model", "data", "optimizer", "scheduler", "evaluation", "extras"]),
    st.from_regex(r"[a-z_]{1,12}", fullmatch=True),
    st.none() | st.booleans() | st.integers() | text,
)
def test_a_key_that_no_class_has_is_always_refused_in_one_line(
    section: str, key: str, value: Any
) -> None:
    fields = type(getattr(SpeedtronicConfig(), section)).model_fields
    if key in fields or key in ("name", "_target_"):
        return
    with pytest.raises(ConfigError) as caught:
        load_config({section: {key: value}})
    message = str(caught.value)
    assert message.startswith(f"{section}.{key}: unknown key, got ")
    assert "\n" not in message


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 64), st.integers(1, 1024))
def test_the_try_of_a_head_message_is_always_right(n_head: int, d_model: int) -> None:
    try:
        load_config({"model": {"n_head": n_head, "d_model": d_model}})
    except ConfigError as error:
        tries = str(error).partition("; try ")[2].split(" or ")
        assert tries
        for attempt in tries:
            key, _, value = attempt.removeprefix("model.").partition("=")
            fixed = {"n_head": n_head, "d_model": d_model, key: int(value)}
            assert load_config({"model": fixed})
    else:
        assert d_model % (2 * n_head) == 0
