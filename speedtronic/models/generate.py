"""Sampling a continuation from a language model, without touching the random state of training.

Legend: B batch, T positions, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from speedtronic.core.modes import evaluation_mode


@torch.no_grad()
def generate(
    model: nn.Module,
    prompt_ids: Tensor,
    *,
    max_new_tokens: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    generator: torch.Generator,
) -> Tensor:
    """Continue a prompt token by token.

    The model is in evaluation mode meanwhile and as before afterwards. It sees at most its last
    ``max_seq_len`` tokens, all of them where it has no such attribute.

    Args:
        model: Returns ``{"logits": (B, T, V)}`` for ``input_ids`` (B, T).
        prompt_ids: (T,) or (B, T), at least one token, on the model's device.
        max_new_tokens: Tokens to add.
        temperature: Divides the logits; 0 takes the likeliest token each time.
        top_k: Draw from the k likeliest tokens only; None draws from all.
        generator: Where every draw comes from.

    Returns:
        The prompt and its continuation, (T + max_new_tokens,) or (B, T + max_new_tokens).

    Raises:
        ValueError: an empty prompt, a negative temperature, or a top_k below 1.
    """
    if prompt_ids.shape[-1] == 0:
        raise ValueError("prompt_ids must hold at least one token, got none")
    if temperature < 0:
        raise ValueError(f"temperature must be at least 0, got {temperature}")
    if top_k is not None and top_k < 1:
        raise ValueError(f"top_k must be at least 1 or None, got {top_k}")
    longest: int = getattr(model, "max_seq_len", prompt_ids.shape[-1] + max_new_tokens)
    ids_BT = prompt_ids.reshape(-1, prompt_ids.shape[-1])
    with evaluation_mode(model):
        for _ in range(max_new_tokens):
            logits_BV = model(input_ids=ids_BT[:, -longest:])["logits"][:, -1].float()
            next_B1 = _draw(logits_BV, temperature=temperature, top_k=top_k, generator=generator)
            ids_BT = torch.cat((ids_BT, next_B1.to(ids_BT.device, ids_BT.dtype)), dim=1)
    return ids_BT.reshape(*prompt_ids.shape[:-1], ids_BT.shape[1])


def _draw(
    logits_BV: Tensor, *, temperature: float, top_k: int | None, generator: torch.Generator
) -> Tensor:
    if temperature == 0:
        return logits_BV.argmax(dim=-1, keepdim=True)
    if top_k is not None and top_k < logits_BV.shape[-1]:
        kept_BK, ids_BK = logits_BV.topk(top_k, dim=-1)
        drawn_B1 = _draw(kept_BK, temperature=temperature, top_k=None, generator=generator)
        return ids_BK.gather(1, drawn_B1.to(ids_BK.device))
    probabilities_BV = torch.softmax(logits_BV / temperature, dim=-1)
    return torch.multinomial(probabilities_BV.to(generator.device), 1, generator=generator)
