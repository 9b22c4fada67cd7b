"""Both forms of attention against the formula, and masks without NaN."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from speedtronic.models import attention
from speedtronic.models.attention import (
    attend,
    attend_masked,
    blocked_scores,
    causal_padding_mask,
)


def draw_heads(dtype: torch.dtype, *, kv_heads: int = 2, length: int = 5) -> list[Tensor]:
    """Return queries of 4 heads, keys and values of ``kv_heads``, as the model lays them out."""
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(2, length, heads, 8, generator=generator)
        .to(dtype)
        .transpose(1, 2)
        .requires_grad_()
        for heads in (4, kv_heads, kv_heads)
    ]


def by_formula(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attend in fp64, one position at a time."""
    query, key, value = query.double(), key.double(), value.double()
    group = query.shape[1] // key.shape[1]
    out = torch.zeros_like(query)
    for head in range(query.shape[1]):
        keys, values = key[:, head // group], value[:, head // group]
        for at in range(query.shape[2]):
            scores = (keys[:, : at + 1] * query[:, head, at, None]).sum(-1) / math.sqrt(
                query.shape[-1]
            )
            out[:, head, at] = (scores.softmax(-1)[..., None] * values[:, : at + 1]).sum(1)
    return out


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [
        (torch.float32, 1e-6),
        (torch.bfloat16, 3 * 2**-8),
    ],  # bf16: scores, weights and sums each round
)
def test_attention_follows_the_formula(kv_heads: int, dtype: torch.dtype, tolerance: float) -> None:
    heads = draw_heads(dtype, kv_heads=kv_heads)
    found = attend(*heads, dropout=0.0)
    assert found.dtype == dtype
    assert (found.double() - by_formula(*heads)).abs().max() < tolerance * 2  # values reach 2


def test_bf16_on_the_cpu_uses_products_when_short_and_sdpa_when_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lengths = []

    def watch(query: Tensor, *_heads: Tensor, **_options: object) -> Tensor:
        lengths.append(query.shape[2])
        return query

    monkeypatch.setattr(F, "scaled_dot_product_attention", watch)
    for length in (5, 256, 257):
        attend(*draw_heads(torch.bfloat16, length=length), dropout=0.0)
    assert lengths == [257]
    attend(*draw_heads(torch.float32), dropout=0.0)
    assert lengths == [257, 5]


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_scores_blocked_in_advance_change_no_bit(kv_heads: int) -> None:
    heads = draw_heads(torch.bfloat16, kv_heads=kv_heads)
    blocked = blocked_scores(
        length=5, group=4 // kv_heads, dtype=torch.bfloat16, device=torch.device("cpu")
    )
    found = attend(*heads, dropout=0.0, blocked_ST=blocked)
    assert torch.equal(found, attend(*heads, dropout=0.0))


def test_scores_blocked_for_another_dtype_are_left_aside() -> None:
    heads = draw_heads(torch.bfloat16)
    wrong = torch.zeros(10, 5)
    assert torch.equal(attend(*heads, dropout=0.0, blocked_ST=wrong), attend(*heads, dropout=0.0))


@pytest.mark.parametrize(
    ("length", "dtype"), [(257, torch.bfloat16), (5, torch.float32), (5, torch.float16)]
)
def test_no_scores_are_blocked_where_sdpa_is_used(length: int, dtype: torch.dtype) -> None:
    device = torch.device("cpu")
    assert blocked_scores(length=length, group=1, dtype=dtype, device=device) is None


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_gradients_of_the_two_forms_agree(monkeypatch: pytest.MonkeyPatch, kv_heads: int) -> None:
    gradients = []
    for is_products in (True, False):
        monkeypatch.setattr(
            attention, "_prefers_products", lambda *, chosen=is_products, **_facts: chosen
        )
        heads = draw_heads(torch.float32, kv_heads=kv_heads)
        attend(*heads, dropout=0.0).square().sum().backward()
        gradients.append([head.grad for head in heads])
    for products, sdpa in zip(*gradients, strict=True):
        assert torch.allclose(
            products, sdpa, rtol=0, atol=1e-5
        )  # fp32 sums of up to 2 * 5 * 8 terms


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dropout_drops_weights_and_keeps_their_mean(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    query, key = torch.zeros(1, 1, 64, 8, dtype=dtype), torch.zeros(1, 1, 64, 8, dtype=dtype)
    value = torch.ones(1, 1, 64, 8, dtype=dtype)
    found = attend(query, key, value, dropout=0.5).float()
    assert set(found[0, 0, 0].tolist()) <= {0.0, 2.0}  # one weight of 1, dropped or doubled
    assert found[0, 0, 32:].mean().item() == pytest.approx(
        1.0, abs=0.15
    )  # 32 rows, sd 1 / sqrt(48 * 32)


def test_the_padding_mask_is_causal_and_lets_padding_see_itself_alone() -> None:
    mask = causal_padding_mask(torch.tensor([[0, 1, 1], [1, 1, 0]]))
    assert mask.shape == (2, 1, 3, 3)
    assert mask[0, 0].int().tolist() == [[1, 0, 0], [0, 1, 0], [0, 1, 1]]
    assert mask[1, 0].int().tolist() == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_of_padding_only_gives_no_nan_forward_or_backward(dtype: torch.dtype) -> None:
    heads = draw_heads(dtype)
    mask = causal_padding_mask(torch.tensor([[0] * 5, [1] * 5]))
    found = attend_masked(*heads, mask_B1TT=mask, dropout=0.0)
    found.float().sum().backward()
    assert found.isfinite().all()
    assert all(head.grad is not None and head.grad.isfinite().all() for head in heads)


def test_a_mask_without_padding_equals_no_mask() -> None:
    heads = draw_heads(torch.float32)
    masked = attend_masked(*heads, mask_B1TT=causal_padding_mask(torch.ones(2, 5)), dropout=0.0)
    assert torch.allclose(masked, attend(*heads, dropout=0.0), rtol=0, atol=1e-6)
