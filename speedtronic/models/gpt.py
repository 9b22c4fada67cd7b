"""The bundled language model: a pre-norm decoder with rotary positions and gated feed-forward.

Legend: B batch, T positions, V vocabulary, C model width, H query heads, K key and value heads,
D width of a head, S rows of the stacked query heads of one key head (H / K * T).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from speedtronic.core.errors import ConfigError
from speedtronic.core.loss import causal_loss
from speedtronic.models.attention import (
    attend,
    attend_masked,
    blocked_scores,
    causal_padding_mask,
)

_INIT_STD = 0.02  # GPT-2
_NORM_EPS = 1e-6
_FEEDFORWARD_MULTIPLE = 64


class GPT(nn.Module):
    """Decoder-only transformer: RMSNorm, rotary positions, grouped-query attention, SwiGLU."""

    rotary_cos: Tensor
    rotary_sin: Tensor

    def __init__(  # noqa: PLR0913 - one argument per dimension
        self,
        *,
        vocab_size: int,
        max_seq_len: int,
        n_layer: int,
        n_head: int,
        n_kv_head: int | None = None,
        d_model: int,
        d_ff: int | None = None,
        dropout: float = 0.0,
        tie_weights: bool = True,
        rope_base: float = 10000.0,
    ) -> None:
        """Build the layers and draw their weights.

        Weights are N(0, 0.02); the projections back into the residual stream are smaller by
        sqrt(2 n_layer), so that its variance does not grow with depth.

        Args:
            vocab_size: Number of token ids.
            max_seq_len: Longest sequence, in tokens.
            n_layer: Blocks.
            n_head: Query heads; d_model / n_head is even, for the rotary pairs.
            n_kv_head: Key and value heads, a divisor of n_head; None means n_head.
            d_model: Width of the residual stream.
            d_ff: Width of the feed-forward; None means 8/3 d_model rounded up to 64.
            dropout: Probability of dropping an activation in training.
            tie_weights: Whether the output layer is the embedding.
            rope_base: Base of the wavelengths of the rotary positions.

        Raises:
            ConfigError: the heads do not divide the width.
        """
        super().__init__()
        num_kv_heads = n_head if n_kv_head is None else n_kv_head
        _check_heads(d_model=d_model, n_head=n_head, n_kv_head=num_kv_heads)
        self.max_seq_len = max_seq_len
        self.vocab_size = vocab_size
        self._checkpoint_every: int | None = None
        self._has_dropout = dropout > 0
        self._group = n_head // num_kv_heads
        self.embedding = nn.Embedding(vocab_size, d_model)
        self.embedding_dropout = _dropout(dropout)
        self.blocks = nn.ModuleList(
            Block(
                Attention(d_model, n_head=n_head, n_kv_head=num_kv_heads, dropout=dropout),
                FeedForward(d_model, _default_d_ff(d_model) if d_ff is None else d_ff),
                d_model=d_model,
                dropout=dropout,
            )
            for _ in range(n_layer)
        )
        self.norm = nn.RMSNorm(d_model, eps=_NORM_EPS)
        self.head = nn.Linear(d_model, vocab_size, bias=False)
        if tie_weights:
            self.head.weight = self.embedding.weight
        cos_TD, sin_TD = rotary_tables(d_model // n_head, length=max_seq_len, base=rope_base)
        self.register_buffer("rotary_cos", cos_TD, persistent=False)
        self.register_buffer("rotary_sin", sin_TD, persistent=False)
        self._draw_weights(residual_std=_INIT_STD * (2 * n_layer) ** -0.5)

    def forward(
        self, input_ids: Tensor, labels: Tensor | None = None, attention_mask: Tensor | None = None
    ) -> dict[str, Tensor]:
        """Predict the next token at every position.

        Args:
            input_ids: (B, T) token ids.
            labels: (B, T), the token that follows each position, -100 ignored; or (B, T - 1).
            attention_mask: (B, T), non-zero where there is a token; padding is not seen by others.

        Returns:
            ``logits`` (B, T, V), and with labels ``loss``, their mean cross-entropy in fp32.

        Raises:
            ValueError: the sequence is longer than ``max_seq_len``.
        """
        length = input_ids.shape[1]
        if length > self.max_seq_len:
            raise ValueError(
                f"input_ids must have at most model.max_seq_len ({self.max_seq_len}) positions, "
                f"got {length}; cut them or raise model.max_seq_len"
            )
        x_BTC = self.embedding_dropout(self.embedding(input_ids))
        # What every layer needs is made once, in the dtype that its heads will have.
        dtype = _dtype_of_products(x_BTC)
        cos_TD, sin_TD = self.rotary_cos[:length].to(dtype), self.rotary_sin[:length].to(dtype)
        mask_B1TT = blocked_ST = None
        if attention_mask is not None:
            mask_B1TT = causal_padding_mask(attention_mask)
        else:
            blocked_ST = blocked_scores(
                length=length, group=self._group, dtype=dtype, device=x_BTC.device
            )
        every = self._checkpoint_every if self.training and torch.is_grad_enabled() else None
        for index, block in enumerate(self.blocks):
            if every is not None and index % every == 0:
                x_BTC = checkpoint(
                    block,
                    x_BTC,
                    cos_TD,
                    sin_TD,
                    mask_B1TT,
                    blocked_ST,
                    use_reentrant=False,
                    preserve_rng_state=self._has_dropout,
                )
            else:
                x_BTC = block(x_BTC, cos_TD, sin_TD, mask_B1TT, blocked_ST)
        logits_BTV = self.head(self.norm(x_BTC))
        if labels is None:
            return {"logits": logits_BTV}
        return {"logits": logits_BTV, "loss": causal_loss(logits_BTV, labels)}

    def set_gradient_checkpointing(self, enabled: bool, every_n_layers: int = 1) -> None:  # noqa: FBT001 - the contract's hook
        """Recompute activations in the backward pass instead of keeping them.

        Args:
            enabled: Whether to.
            every_n_layers: 1 recomputes every block, n the first of every n.
        """
        self._checkpoint_every = every_n_layers if enabled else None

    def num_parameters(self) -> int:
        """Count the parameters, tied ones once."""
        return sum(parameter.numel() for parameter in self.parameters())

    def _draw_weights(self, *, residual_std: float) -> None:
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=_INIT_STD)
        for module in self.modules():
            if isinstance(module, Block):
                nn.init.normal_(module.attention.output.weight, std=residual_std)
                nn.init.normal_(module.feed_forward.output.weight, std=residual_std)


class Block(nn.Module):
    """One layer: attention and feed-forward, each normed before and added after."""

    def __init__(
        self, attention: Attention, feed_forward: FeedForward, *, d_model: int, dropout: float
    ) -> None:
        """Put the two halves together."""
        super().__init__()
        self.attention_norm = nn.RMSNorm(d_model, eps=_NORM_EPS)
        self.attention = attention
        self.feed_forward_norm = nn.RMSNorm(d_model, eps=_NORM_EPS)
        self.feed_forward = feed_forward
        self.dropout = _dropout(dropout)

    def forward(
        self,
        x_BTC: Tensor,
        cos_TD: Tensor,
        sin_TD: Tensor,
        mask_B1TT: Tensor | None = None,
        blocked_ST: Tensor | None = None,
    ) -> Tensor:
        """Return the residual stream after this layer."""
        attended = self.attention(self.attention_norm(x_BTC), cos_TD, sin_TD, mask_B1TT, blocked_ST)
        x_BTC = x_BTC + self.dropout(attended)
        out: Tensor = x_BTC + self.dropout(self.feed_forward(self.feed_forward_norm(x_BTC)))
        return out


class Attention(nn.Module):
    """Grouped-query attention with rotary positions; queries, keys and values in one product."""

    def __init__(self, d_model: int, *, n_head: int, n_kv_head: int, dropout: float) -> None:
        """Build the two projections."""
        super().__init__()
        self.n_head = n_head
        self.n_kv_head = n_kv_head
        self.head_width = d_model // n_head
        self.dropout = dropout
        rows = (n_head * self.head_width, n_kv_head * self.head_width, n_kv_head * self.head_width)
        self.qkv = nn.Linear(d_model, sum(rows), bias=False)
        # Three matrices in one product: an optimizer of whole matrices treats each by itself.
        self.muon_row_splits: dict[str, tuple[int, ...]] = {"qkv.weight": rows}
        self.output = nn.Linear(d_model, d_model, bias=False)

    def forward(
        self,
        x_BTC: Tensor,
        cos_TD: Tensor,
        sin_TD: Tensor,
        mask_B1TT: Tensor | None = None,
        blocked_ST: Tensor | None = None,
    ) -> Tensor:
        """Return what each position gathers, (B, T, C)."""
        heads: Tensor = self.qkv(x_BTC).unflatten(-1, (-1, self.head_width)).transpose(1, 2)
        turned, value = heads.tensor_split((self.n_head + self.n_kv_head,), dim=1)
        query, key = rotate(turned, cos_TD, sin_TD).tensor_split((self.n_head,), dim=1)
        dropout = self.dropout if self.training else 0.0
        if mask_B1TT is None:
            attended = attend(query, key, value, dropout=dropout, blocked_ST=blocked_ST)
        else:
            attended = attend_masked(query, key, value, mask_B1TT=mask_B1TT, dropout=dropout)
        out: Tensor = self.output(attended.transpose(1, 2).flatten(2))
        return out


class FeedForward(nn.Module):
    """SwiGLU: gate and value in one product, silu(gate) * value projected back."""

    def __init__(self, d_model: int, d_ff: int) -> None:
        """Build the two projections."""
        super().__init__()
        self.gate_and_value = nn.Linear(d_model, 2 * d_ff, bias=False)
        self.muon_row_splits: dict[str, tuple[int, ...]] = {"gate_and_value.weight": (d_ff, d_ff)}
        self.output = nn.Linear(d_ff, d_model, bias=False)

    def forward(self, x_BTC: Tensor) -> Tensor:
        """Return the change of each position, (B, T, C)."""
        gate, value = self.gate_and_value(x_BTC).chunk(2, dim=-1)
        out: Tensor = self.output(F.silu(gate) * value)
        return out


def rotary_tables(head_width: int, *, length: int, base: float) -> tuple[Tensor, Tensor]:
    """Return the cosines and signed sines that ``rotate`` multiplies by.

    Coordinate i of the first half of a head and coordinate i of the second turn together, by
    position / base^(2 i / head_width).

    Args:
        head_width: Even.
        length: Positions.
        base: Of the wavelengths.

    Returns:
        Two tensors (T, D) in fp32; the sines of the first half are negative.
    """
    exponents = torch.arange(0, head_width, 2, dtype=torch.float64) / head_width
    angles = torch.outer(torch.arange(length, dtype=torch.float64), base**-exponents)
    cos, sin = angles.cos().float(), angles.sin().float()
    return torch.cat((cos, cos), dim=1), torch.cat((-sin, sin), dim=1)


def rotate(heads_BHTD: Tensor, cos_TD: Tensor, sin_TD: Tensor) -> Tensor:
    """Turn every head by the angle of its position, in the dtype of the heads."""
    cos_TD, sin_TD = cos_TD.to(heads_BHTD.dtype), sin_TD.to(heads_BHTD.dtype)
    return heads_BHTD * cos_TD + heads_BHTD.roll(heads_BHTD.shape[-1] // 2, dims=-1) * sin_TD


def _dtype_of_products(x_BTC: Tensor) -> torch.dtype:
    """Return the dtype of a linear layer's output for this input; autocast leaves fp64 alone."""
    kind = x_BTC.device.type
    if x_BTC.dtype is not torch.float64 and torch.is_autocast_enabled(kind):
        return torch.get_autocast_dtype(kind)
    return x_BTC.dtype


def _default_d_ff(d_model: int) -> int:
    """Return 8/3 d_model rounded up; three such matrices weigh as much as two of 4 d_model."""
    unit = 3 * _FEEDFORWARD_MULTIPLE
    return -(-8 * d_model // unit) * _FEEDFORWARD_MULTIPLE


def _dropout(probability: float) -> nn.Module:
    return nn.Dropout(probability) if probability else nn.Identity()


def _check_heads(*, d_model: int, n_head: int, n_kv_head: int) -> None:
    if d_model % (2 * n_head):
        raise ConfigError(
            f"model.d_model must be a multiple of 2 * model.n_head ({2 * n_head}), got {d_model}; "
            f"try model.d_model={-(-d_model // (2 * n_head)) * 2 * n_head}"
        )
    if n_head % n_kv_head:
        raise ConfigError(
            f"model.n_kv_head must divide model.n_head ({n_head}), got {n_kv_head}; "
            "try model.n_kv_head=null"
        )
