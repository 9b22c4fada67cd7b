"""The GPT: shapes, initial weights, causality, padding, checkpointing and errors."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from speedtronic.core.errors import ConfigError
from speedtronic.models.gpt import GPT, Block, rotary_tables, rotate


def make(seed: int = 0, **changes: Any) -> GPT:
    torch.manual_seed(seed)
    shape = {
        "vocab_size": 11,
        "max_seq_len": 8,
        "n_layer": 2,
        "n_head": 2,
        "d_model": 16,
        **changes,
    }
    return GPT(**shape)


def draw_ids(length: int = 8, rows: int = 2) -> torch.Tensor:
    return torch.randint(0, 11, (rows, length), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    ("shape", "count"),
    [  # V * C + L * (C * (H + 2K) * D + C * C + 3 * C * F + 2 * C) + C
        ({"vocab_size": 256, "n_layer": 2, "n_head": 8, "d_model": 64}, 123_200),
        ({"vocab_size": 256, "n_layer": 4, "n_head": 4, "d_model": 128}, 885_888),
        ({"vocab_size": 256, "n_layer": 4, "n_head": 8, "d_model": 256}, 3_279_104),
        ({"vocab_size": 256, "n_layer": 12, "n_head": 12, "d_model": 768}, 85_150_464),
        ({"vocab_size": 50257, "n_layer": 12, "n_head": 12, "d_model": 768}, 123_551_232),
        (
            {"n_layer": 1, "d_ff": 10, "n_head": 4, "n_kv_head": 2},
            11 * 16 + 16 * 32 + 256 + 480 + 48,
        ),
        ({"n_layer": 1, "d_ff": 10, "tie_weights": False}, 2 * 11 * 16 + 16 * 48 + 256 + 480 + 48),
    ],
)
def test_parameter_counts_of_the_presets_and_of_each_switch(
    shape: dict[str, int], count: int
) -> None:
    with torch.device("meta"):
        assert make(**shape).num_parameters() == count


@pytest.mark.parametrize(
    ("d_model", "d_ff"), [(24, 64), (26, 128), (64, 192), (256, 704), (768, 2048)]
)
def test_the_feed_forward_is_eight_thirds_rounded_up_to_64(d_model: int, d_ff: int) -> None:
    with torch.device("meta"):
        model = make(d_model=d_model, n_head=1)
    assert model.blocks[0].feed_forward.output.in_features == d_ff


def test_logits_and_loss_have_their_shapes_and_the_loss_is_the_mean_cross_entropy() -> None:
    model, ids = make(), draw_ids()
    labels = draw_ids().roll(-1, dims=1)
    labels[0, :3] = -100
    output = model(ids, labels=labels)
    assert output["logits"].shape == (2, 8, 11)
    expected = F.cross_entropy(output["logits"].flatten(0, 1), labels.flatten(), ignore_index=-100)
    assert output["loss"].item() == pytest.approx(expected.item(), abs=1e-6)
    assert set(model(ids)) == {"logits"}


def test_the_first_loss_is_that_of_equal_odds() -> None:
    ids = draw_ids(rows=16)
    loss = make()(ids, labels=ids.roll(-1, dims=1))["loss"]
    assert loss.item() == pytest.approx(math.log(11), abs=0.05)  # logits of sd 0.02 * 4


def test_the_loss_under_autocast_is_in_fp32_and_close() -> None:
    model, ids = make(), draw_ids()
    exact = model(ids, labels=ids)["loss"]
    with torch.autocast("cpu", torch.bfloat16):
        output = model(ids, labels=ids)
    assert (output["logits"].dtype, output["loss"].dtype) == (torch.bfloat16, torch.float32)
    assert output["loss"].item() == pytest.approx(exact.item(), rel=2**-8)


def test_a_position_does_not_see_what_follows() -> None:
    model, ids = make(), draw_ids()
    changed = ids.clone()
    changed[:, 5] = (changed[:, 5] + 1) % 11
    before, after = model(ids)["logits"], model(changed)["logits"]
    assert torch.allclose(before[:, :5], after[:, :5], rtol=0, atol=1e-6)
    assert not torch.allclose(before[:, 5:], after[:, 5:], rtol=0, atol=1e-6)


def test_equal_seeds_give_equal_bits() -> None:
    first, second = make(), make()
    assert all(
        torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True)
    )
    ids = draw_ids()
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(first(ids)["logits"], second(ids)["logits"])


def test_residual_projections_start_smaller_by_the_depth() -> None:
    model = make(n_layer=8, d_model=128, n_head=4)
    block = model.blocks[3]
    for matrix, std in [
        (block.attention.qkv.weight, 0.02),
        (block.feed_forward.gate_and_value.weight, 0.02),
        (model.embedding.weight, 0.02),
        (block.attention.output.weight, 0.02 / 4),
        (block.feed_forward.output.weight, 0.02 / 4),
    ]:
        assert matrix.std().item() == pytest.approx(std, rel=0.05)  # at least 1408 draws: 1.9 %
    assert block.attention_norm.weight.tolist() == [1.0] * 128


def test_the_head_is_the_embedding_unless_untied() -> None:
    tied, untied = make(), make(tie_weights=False)
    assert tied.head.weight is tied.embedding.weight
    assert "head.weight" not in dict(tied.named_parameters())
    assert not torch.equal(untied.head.weight, untied.embedding.weight)


# --- positions


def test_position_zero_is_not_turned_and_lengths_stay() -> None:
    cos, sin = rotary_tables(8, length=5, base=10000.0)
    heads = torch.randn(1, 2, 5, 8, generator=torch.Generator().manual_seed(0))
    turned = rotate(heads, cos, sin)
    assert torch.equal(turned[:, :, 0], heads[:, :, 0])
    assert torch.allclose(turned.norm(dim=-1), heads.norm(dim=-1), rtol=1e-6)


def test_pairs_turn_by_their_position_over_their_wavelength() -> None:
    cos, sin = rotary_tables(4, length=3, base=100.0)
    heads = torch.zeros(1, 1, 3, 4)
    heads[..., 0] = 1.0  # pair (0, 2) turns by the position
    heads[..., 1] = 1.0  # pair (1, 3) by a tenth of it
    expected = [math.cos(2), math.cos(0.2), math.sin(2), math.sin(0.2)]
    assert rotate(heads, cos, sin)[0, 0, 2].tolist() == pytest.approx(expected, abs=1e-6)


def test_products_of_turned_vectors_depend_on_their_distance_only() -> None:
    cos, sin = rotary_tables(8, length=20, base=10000.0)
    generator = torch.Generator().manual_seed(0)
    query, key = (torch.randn(8, generator=generator).expand(1, 1, 20, 8) for _ in range(2))
    scores = rotate(query, cos, sin)[0, 0] @ rotate(key, cos, sin)[0, 0].T
    assert torch.allclose(scores.diagonal(-3), scores[3, 0].expand(17), rtol=0, atol=1e-5)
    assert not torch.allclose(scores[3, 0], scores[4, 0], rtol=0, atol=1e-3)


# --- padding


def test_padding_on_the_right_changes_nothing_for_the_tokens() -> None:
    model, ids = make(), draw_ids(5)
    padded = F.pad(ids, (0, 3), value=7)
    mask = F.pad(torch.ones_like(ids), (0, 3))
    found = model(padded, attention_mask=mask)["logits"][:, :5]
    assert torch.allclose(found, model(ids)["logits"], rtol=0, atol=1e-6)


def test_padding_on_the_left_changes_nothing_for_the_tokens() -> None:
    model, ids = make(), draw_ids(5)
    found = model(F.pad(ids, (3, 0)), attention_mask=F.pad(torch.ones_like(ids), (3, 0)))["logits"]
    assert torch.allclose(found[:, 3:], model(ids)["logits"], rtol=0, atol=1e-6)


@pytest.mark.parametrize("is_bf16", [False, True])
def test_rows_of_padding_only_give_no_nan(is_bf16: bool) -> None:
    model, ids = make(), draw_ids()
    mask = torch.ones_like(ids)
    mask[0] = 0
    labels = ids.masked_fill(mask == 0, -100)
    with torch.autocast("cpu", torch.bfloat16, enabled=is_bf16):
        output = model(ids, labels=labels, attention_mask=mask)
    output["loss"].backward()
    assert output["logits"].isfinite().all()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


# --- what is made once for all layers

PARAMETERS_AND_AUTOCAST = [
    (torch.float32, None),
    (torch.float32, torch.bfloat16),
    (torch.float32, torch.float16),
    (torch.bfloat16, None),
    (torch.float64, None),
    (torch.float64, torch.bfloat16),
]


@pytest.mark.parametrize(("parameters", "autocast"), PARAMETERS_AND_AUTOCAST)
@pytest.mark.parametrize("kv_heads", [1, 2])
def test_what_is_made_once_changes_no_bit_of_what_each_layer_would_make(
    parameters: torch.dtype, autocast: torch.dtype | None, kv_heads: int
) -> None:
    model, ids = make(n_kv_head=kv_heads).to(parameters), draw_ids()
    with torch.autocast("cpu", autocast, enabled=autocast is not None):
        found = model(ids)["logits"]
        x_BTC = model.embedding(ids)
        for block in model.blocks:  # each casts the tables and blocks the scores itself
            x_BTC = block(x_BTC, model.rotary_cos, model.rotary_sin)
        assert torch.equal(found, model.head(model.norm(x_BTC)))


def test_all_layers_get_the_same_tables_in_the_dtype_of_their_heads() -> None:
    seen = []
    model = make()
    for block in model.blocks:
        block.register_forward_pre_hook(lambda _block, inputs: seen.append(inputs[1:]))
    with torch.autocast("cpu", torch.bfloat16):
        model(draw_ids())
    (cos, sin, mask, blocked), second = seen
    assert {cos.dtype, sin.dtype, blocked.dtype} == {torch.bfloat16}
    assert mask is None
    assert all(one is other for one, other in zip(seen[0], second, strict=True))


# --- dropout and checkpointing


def test_dropout_acts_in_training_only() -> None:
    model, ids = make(dropout=0.5), draw_ids()
    assert not torch.equal(model(ids)["logits"], model(ids)["logits"])
    model.eval()
    assert torch.equal(model(ids)["logits"], model(ids)["logits"])


def gradients(model: GPT, *, seed: int = 3) -> list[torch.Tensor]:
    torch.manual_seed(seed)
    ids = draw_ids()
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(ids, labels=ids.roll(-1, dims=1))["loss"]
    model.zero_grad()
    loss.backward()
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


@pytest.mark.parametrize(("dropout", "keeps"), [(0.0, False), (0.3, True)])
def test_the_random_state_is_kept_for_recomputing_dropout_only(
    monkeypatch: pytest.MonkeyPatch, dropout: float, keeps: bool
) -> None:
    kept = []

    def watch(block: Block, *inputs: Any, preserve_rng_state: bool, **_options: Any) -> Any:
        kept.append(preserve_rng_state)
        return block(*inputs)

    monkeypatch.setattr("speedtronic.models.gpt.checkpoint", watch)
    model = make(dropout=dropout)
    model.set_gradient_checkpointing(True)
    gradients(model)
    assert kept == [keeps, keeps]


def test_checkpointed_gradients_are_equal_bit_for_bit_dropout_included() -> None:
    model = make(dropout=0.3)
    plain = gradients(model)
    model.set_gradient_checkpointing(True)
    assert all(torch.equal(a, b) for a, b in zip(plain, gradients(model), strict=True))


@pytest.mark.parametrize(
    ("enabled", "every", "recomputed"),
    [(False, 1, []), (True, 1, [0, 1, 2, 3]), (True, 2, [0, 2]), (True, 3, [0, 3])],
)
def test_every_nth_block_is_recomputed(enabled: bool, every: int, recomputed: list[int]) -> None:
    model = make(n_layer=4)
    calls = [0, 0, 0, 0]

    def count(block: Block, _inputs: Any) -> None:
        calls[list(model.blocks).index(block)] += 1

    for block in model.blocks:
        block.register_forward_pre_hook(count)
    model.set_gradient_checkpointing(enabled, every_n_layers=every)
    gradients(model)
    assert calls == [2 if index in recomputed else 1 for index in range(4)]


@pytest.mark.parametrize("is_mixed", [False, True])
def test_the_model_compiles_without_a_break(is_mixed: bool) -> None:
    model, ids = make(), draw_ids()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    with torch.autocast("cpu", torch.bfloat16, enabled=is_mixed):
        assert torch.equal(compiled(ids, labels=ids)["loss"], model(ids, labels=ids)["loss"])


# --- errors


def test_a_sequence_above_the_longest_is_refused() -> None:
    message = "input_ids must have at most model.max_seq_len (8) positions, got 9; cut them"
    with pytest.raises(ValueError, match=re.escape(message)):
        make()(draw_ids(9))


def test_heads_that_do_not_fit_are_refused() -> None:
    message = (
        "model.d_model must be a multiple of 2 * model.n_head (14), got 16; try model.d_model=28"
    )
    with pytest.raises(ConfigError, match=re.escape(message)):
        make(n_head=7)
    message = "model.n_kv_head must divide model.n_head (2), got 3; try model.n_kv_head=null"
    with pytest.raises(ConfigError, match=re.escape(message)):
        make(n_kv_head=3)
