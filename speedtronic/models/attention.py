"""Causal attention in the form that is fastest for a device, number format and length.

Legend: B batch, H query heads, K key and value heads, T positions, D width of a head,
S rows of the stacked query heads of one key head (H / K * T).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

# Forward and backward of one layer on an AMX CPU, torch 2.13, one thread, ms, best of 30:
#     B x H/K x T x D     16x8/8x128x32   8x8/2x128x32   4x8/8x256x64   4x8/2x512x64
#     bf16 SDPA                    79.5           33.5           31.9           40.6
#     bf16 SDPA, fp32 inputs       24.9            6.7           17.1           54.8
#     bf16 SDPA, MATH backend      38.5           12.4           28.9          152.0
#     bf16 two products            14.5            2.8            7.3           52.8
#     fp32 SDPA                    18.5            8.7           15.1           51.6
#     fp32 two products            24.9            8.7           19.7          113.8
# SDPA's bf16 backward on the CPU is what is slow. Two products keep a T x T matrix per head, so
# they are for short sequences; fp32, long sequences and other devices have SDPA.
_MAX_PRODUCTS_LENGTH = 256


def blocked_scores(
    *, length: int, group: int, dtype: torch.dtype, device: torch.device
) -> Tensor | None:
    """Return what ``attend`` adds to scores by products, made once for all layers of a forward.

    Args:
        length: Positions (T).
        group: Query heads of a key head (H / K).
        dtype: Of the queries.
        device: Of the queries.

    Returns:
        (H / K * T, T), minus infinity where a position comes later; None where products are not
        the form to use.
    """
    if not _prefers_products(length=length, dtype=dtype, device=device):
        return None
    blocked_TT = torch.full((length, length), -math.inf, dtype=dtype, device=device).triu(1)
    return blocked_TT.repeat(group, 1)


def attend(
    query_BHTD: Tensor,
    key_BKTD: Tensor,
    value_BKTD: Tensor,
    *,
    dropout: float,
    blocked_ST: Tensor | None = None,
) -> Tensor:
    """Let each position attend to itself and those before it.

    The form depends on device, number format and length only, so equal runs use equal forms.

    Args:
        query_BHTD: Queries; H is a multiple of K, query head h uses key head h // (H / K).
        key_BKTD: Keys.
        value_BKTD: Values.
        dropout: Probability of dropping an attention weight; 0 outside of training.
        blocked_ST: From ``blocked_scores`` for such queries; made here when None or another dtype.

    Returns:
        (B, H, T, D), in the dtype of the queries.
    """
    length, dtype, device = query_BHTD.shape[2], query_BHTD.dtype, query_BHTD.device
    if blocked_ST is None or blocked_ST.dtype is not dtype:
        group = query_BHTD.shape[1] // key_BKTD.shape[1]
        blocked_ST = blocked_scores(length=length, group=group, dtype=dtype, device=device)
    if blocked_ST is not None:
        return _attend_by_products(
            query_BHTD, key_BKTD, value_BKTD, blocked_ST=blocked_ST, dropout=dropout
        )
    return F.scaled_dot_product_attention(
        query_BHTD,
        key_BKTD,
        value_BKTD,
        dropout_p=dropout,
        is_causal=True,
        enable_gqa=query_BHTD.shape[1] != key_BKTD.shape[1],
    )


def attend_masked(
    query_BHTD: Tensor, key_BKTD: Tensor, value_BKTD: Tensor, *, mask_B1TT: Tensor, dropout: float
) -> Tensor:
    """Attend where a mask is true, as ``attend`` does without one.

    Args:
        query_BHTD: Queries.
        key_BKTD: Keys.
        value_BKTD: Values.
        mask_B1TT: From ``causal_padding_mask``.
        dropout: Probability of dropping an attention weight; 0 outside of training.
    """
    return F.scaled_dot_product_attention(
        query_BHTD,
        key_BKTD,
        value_BKTD,
        attn_mask=mask_B1TT,
        dropout_p=dropout,
        enable_gqa=query_BHTD.shape[1] != key_BKTD.shape[1],
    )


def causal_padding_mask(attention_mask_BT: Tensor) -> Tensor:
    """Combine a padding mask with the causal one.

    A padded position attends to itself alone: a row without any true entry would be NaN. Nothing
    attends to it, and its labels are ignored.

    Args:
        attention_mask_BT: Non-zero where there is a token.

    Returns:
        (B, 1, T, T) booleans, true where row position may see column position.
    """
    length = attention_mask_BT.shape[1]
    ones_TT = torch.ones(length, length, dtype=torch.bool, device=attention_mask_BT.device)
    seen_BTT = ones_TT.tril() & (attention_mask_BT[:, None, :] != 0)
    return (seen_BTT | torch.eye(length, dtype=torch.bool, device=ones_TT.device)).unsqueeze(1)


def attention_form(*, length: int, dtype: torch.dtype, device: torch.device) -> str:
    """Return the form unpadded attention takes: ``products`` or ``sdpa``.

    Args:
        length: Positions.
        dtype: Number format of the queries.
        device: Where they are.
    """
    chosen = _prefers_products(length=length, dtype=dtype, device=device)
    return "products" if chosen else "sdpa"


def _prefers_products(*, length: int, dtype: torch.dtype, device: torch.device) -> bool:
    return device.type == "cpu" and dtype is torch.bfloat16 and length <= _MAX_PRODUCTS_LENGTH


def _attend_by_products(
    query_BHTD: Tensor,
    key_BKTD: Tensor,
    value_BKTD: Tensor,
    *,
    blocked_ST: Tensor,
    dropout: float,
) -> Tensor:
    """Attend by two batched products, the query heads of one key head stacked as rows."""
    batch, num_heads, length, width = query_BHTD.shape
    num_kv_heads = key_BKTD.shape[1]
    group = num_heads // num_kv_heads
    scores = torch.baddbmm(
        blocked_ST,
        query_BHTD.reshape(batch * num_kv_heads, group * length, width),
        key_BKTD.reshape(batch * num_kv_heads, length, width).transpose(1, 2),
        alpha=width**-0.5,
    )
    weights = F.dropout(torch.softmax(scores, dim=-1), dropout) if dropout else scores.softmax(-1)
    attended = torch.bmm(weights, value_BKTD.reshape(batch * num_kv_heads, length, width))
    return attended.reshape(batch, num_heads, length, width)
