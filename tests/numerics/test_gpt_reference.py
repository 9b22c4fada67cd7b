"""The GPT against a second implementation of its formulas, written plainly and in fp64."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from speedtronic.models.gpt import GPT

N_HEAD, N_KV_HEAD, D_MODEL, D_FF = 4, 2, 16, 24
WIDTH = D_MODEL // N_HEAD


def norm(x: Tensor, weight: Tensor) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight


def turn(vector: Tensor, position: int) -> Tensor:
    """Turn the pairs (i, i + WIDTH / 2) as complex numbers."""
    half = WIDTH // 2
    pairs = torch.complex(vector[:half], vector[half:])
    angles = torch.tensor(
        [position / 10000 ** (2 * i / WIDTH) for i in range(half)], dtype=torch.float64
    )
    turned = pairs * torch.polar(torch.ones_like(angles), angles)
    return torch.cat((turned.real, turned.imag))


def reference_logits(state: dict[str, Tensor], ids: list[int], num_layers: int) -> Tensor:
    x = state["embedding.weight"][ids]
    for layer in range(num_layers):
        weights = {
            name.removeprefix(f"blocks.{layer}."): value
            for name, value in state.items()
            if name.startswith(f"blocks.{layer}.")
        }
        h = norm(x, weights["attention_norm.weight"]) @ weights["attention.qkv.weight"].T
        heads = h.reshape(len(ids), N_HEAD + 2 * N_KV_HEAD, WIDTH)
        rows = []
        for at in range(len(ids)):
            parts = []
            for head in range(N_HEAD):
                kv = head // (N_HEAD // N_KV_HEAD)
                query = turn(heads[at, head], at)
                keys = [turn(heads[past, N_HEAD + kv], past) for past in range(at + 1)]
                odds = torch.stack([query @ key for key in keys]).div(math.sqrt(WIDTH)).softmax(0)
                parts.append(odds @ heads[: at + 1, N_HEAD + N_KV_HEAD + kv])
            rows.append(torch.cat(parts))
        x = x + torch.stack(rows) @ weights["attention.output.weight"].T
        h = (
            norm(x, weights["feed_forward_norm.weight"])
            @ weights["feed_forward.gate_and_value.weight"].T
        )
        gate, value = h[:, :D_FF], h[:, D_FF:]
        x = x + (gate * gate.sigmoid() * value) @ weights["feed_forward.output.weight"].T
    return norm(x, state["norm.weight"]) @ state["embedding.weight"].T


def test_logits_equal_the_plain_formulas() -> None:
    torch.manual_seed(0)
    model = GPT(
        vocab_size=13,
        max_seq_len=6,
        n_layer=2,
        n_head=N_HEAD,
        n_kv_head=N_KV_HEAD,
        d_model=D_MODEL,
        d_ff=D_FF,
    )
    with torch.no_grad():  # larger weights, so that every part matters
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.5)
    ids = [3, 1, 4, 1, 5, 9]
    state = {name: value.double() for name, value in model.state_dict().items()}
    expected = reference_logits(state, ids, num_layers=2)
    found = model(torch.tensor([ids]))["logits"][0]
    # fp32 against fp64, two layers: relative to the largest logit.
    assert (found.double() - expected).abs().max() < 1e-5 * expected.abs().max()
