"""Batches of any shape a loader may hand out: move them to a device and count what is in them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch.nn.utils.rnn import PackedSequence


@dataclass(frozen=True)
class BatchCount:
    """How much one batch adds to the counters of a run."""

    samples: int
    """Rows of the batch, 1 where that cannot be told."""
    tokens: int
    """Input positions that are not masked, 1 where that cannot be told."""


def move_batch(batch: Any, device: torch.device) -> Any:
    """Move every tensor in a tree of mappings, tuples and lists to a device, without waiting.

    A named tuple keeps its type; a mapping of any kind becomes a plain dict. What is no tensor is
    passed on as it is.

    Args:
        batch: What a loader yields.
        device: Where the model lives.

    Returns:
        The same tree with tensors on ``device``.
    """
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, PackedSequence):  # a named tuple whose batch sizes must stay on the CPU
        return cast(Any, batch).to(device, non_blocking=True)
    if isinstance(batch, Mapping):
        return {key: move_batch(value, device) for key, value in batch.items()}
    if isinstance(batch, tuple):
        fields = [move_batch(value, device) for value in batch]
        return type(batch)(*fields) if hasattr(batch, "_fields") else tuple(fields)
    if isinstance(batch, list):
        return [move_batch(value, device) for value in batch]
    return batch


def count_batch(batch: Any) -> BatchCount:
    """Count the samples and tokens of a batch.

    Looks at ``input_ids``, then ``inputs`` of a mapping, at the first field of a tuple or list, and
    at a bare tensor itself. Summing an ``attention_mask`` waits for the device it is on, so count
    before the batch is moved.

    Args:
        batch: What a loader yields.

    Returns:
        One sample and one token for anything that holds no such tensor.
    """
    inputs = _inputs_of(batch)
    if not isinstance(inputs, torch.Tensor):
        return BatchCount(samples=1, tokens=1)
    if inputs.ndim == 0:
        return BatchCount(samples=1, tokens=1)
    mask = batch.get("attention_mask") if isinstance(batch, Mapping) else None
    if inputs.ndim > 1 and isinstance(mask, torch.Tensor):
        return BatchCount(samples=inputs.shape[0], tokens=int(mask.sum()))
    return BatchCount(samples=inputs.shape[0], tokens=inputs.numel())


def _inputs_of(batch: Any) -> Any:
    if isinstance(batch, Mapping):
        inputs = batch.get("input_ids")
        return batch.get("inputs") if inputs is None else inputs
    if isinstance(batch, tuple | list):
        return batch[0] if batch else None
    return batch
