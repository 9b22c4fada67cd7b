"""From a batch to the arguments of a model, and from its output to one scalar loss.

Accepts what users' modules return (a loss, logits, mappings and tuples of them) under one rule for
labels: one label per position, -100 ignored. Legend: B batch, T positions, V vocabulary.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from speedtronic.core.batch import count_batch

IGNORED_LABEL = -100
"""The label of a position that does not count; PyTorch's own default."""

_NUM_LOGITS_DIMENSIONS = 3
_MIN_PAIR_LENGTH = 2
_HALF_PRECISION = (torch.bfloat16, torch.float16)


class LabelRoute(Enum):
    """How a model's forward takes the labels of a batch."""

    KEYWORD = "keyword"
    """``forward`` has a parameter named ``labels``, or takes any keyword."""
    SECOND = "second"
    """``forward`` takes a second positional argument of another name."""
    NONE = "none"
    """``forward`` takes the inputs alone; labels are used for the loss only."""


class ModelCall(NamedTuple):
    """The arguments of one forward call, and the labels for a loss outside the model."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    labels: Any


class AlignedLogits(NamedTuple):
    """Logits (B, T, V) and the labels (B, T) of their positions, as int64."""

    logits: Tensor
    labels: Tensor


@dataclass(frozen=True)
class BatchSplitter:
    """Turns batches into calls of one model; made once per model, see ``resolve_splitter``."""

    route: LabelRoute = LabelRoute.SECOND

    def __call__(self, batch: Any) -> ModelCall:
        """Return the call for one batch, by the rules of ``split_batch``."""
        return split_batch(batch, route=self.route)


def resolve_splitter(model: nn.Module) -> BatchSplitter:
    """Decide from the signature of ``model.forward`` how the model takes labels.

    Labels go to a parameter named ``labels`` by keyword; else to the second positional parameter;
    else they are kept for the loss, and a mapping is passed without them.

    Args:
        model: The model as written, not a compiled wrapper around it.
    """
    parameters = inspect.signature(model.forward).parameters
    if "labels" in parameters:
        return BatchSplitter(LabelRoute.KEYWORD)
    kinds = [parameter.kind for parameter in parameters.values()]
    num_positional = sum(
        kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        for kind in kinds
    )
    if num_positional >= _MIN_PAIR_LENGTH or inspect.Parameter.VAR_POSITIONAL in kinds:
        return BatchSplitter(LabelRoute.SECOND)
    if inspect.Parameter.VAR_KEYWORD in kinds:
        return BatchSplitter(LabelRoute.KEYWORD)
    return BatchSplitter(LabelRoute.NONE)


def split_batch(batch: Any, *, route: LabelRoute = LabelRoute.SECOND) -> ModelCall:
    """Turn a batch into the arguments of a model.

    A mapping is passed as keywords, a tuple or list of two or more as (inputs, labels), a bare
    tensor alone.

    Args:
        batch: A batch on the model's device.
        route: How the model takes labels; the default passes them as second argument.

    Raises:
        TypeError: the batch is of another kind.
    """
    labels = labels_of(batch)
    if isinstance(batch, Mapping):
        if route is LabelRoute.NONE and "labels" in batch:
            without_labels = {key: value for key, value in batch.items() if key != "labels"}
            return ModelCall((), without_labels, labels)
        return ModelCall((), batch, labels)
    if isinstance(batch, tuple | list) and len(batch) >= _MIN_PAIR_LENGTH:
        if route is LabelRoute.KEYWORD:
            return ModelCall((batch[0],), {"labels": labels}, labels)
        args = (batch[0],) if route is LabelRoute.NONE else (batch[0], labels)
        return ModelCall(args, {}, labels)
    if isinstance(batch, Tensor):
        return ModelCall((batch,), {}, None)
    size = f" of length {len(batch)}" if isinstance(batch, tuple | list) else ""
    raise TypeError(
        "a batch must be a mapping (passed as keywords), a tuple or list of two or more "
        f"(inputs, labels), or a tensor, got {type(batch).__name__}{size}; "
        "change what the data loader yields"
    )


def labels_of(batch: Any) -> Any:
    """Return ``labels`` of a mapping, the second field of a tuple or list, or None."""
    if isinstance(batch, Mapping):
        return batch.get("labels")
    if isinstance(batch, tuple | list) and len(batch) >= _MIN_PAIR_LENGTH:
        return batch[1]
    return None


def count_labels(batch: Any) -> int:
    """Count the labels of a batch that are not ignored; its samples where it has no labels.

    Waits for the device the labels are on, so count before the batch is moved.
    """
    labels = labels_of(batch)
    if not isinstance(labels, Tensor):
        return count_batch(batch).samples
    return int((labels != IGNORED_LABEL).sum())


def resolve_loss(output: Any, batch: Any) -> Tensor:
    """Reduce what a model returned to one scalar loss.

    A mapping with a loss, a bare tensor, and a tuple that starts with a scalar or with one loss per
    sample are losses; what is no scalar is averaged. A mapping with (B, T, V) logits and no loss,
    and a tuple that starts with such logits, get causal cross-entropy against the batch's labels.

    Args:
        output: What the model returned.
        batch: The batch it was given, for its labels.

    Returns:
        Scalar, at least fp32.

    Raises:
        ValueError: there is no loss, and no logits with labels that fit; the shapes are named.
        TypeError: the output is of another kind.
    """
    if isinstance(output, Mapping):
        loss = output.get("loss")
        return _causal_loss_of(output.get("logits"), batch) if loss is None else _mean(loss)
    if isinstance(output, Tensor):
        return _mean(output)
    if isinstance(output, tuple | list) and output:
        first = output[0]
        is_direct = isinstance(first, Tensor) and first.ndim <= 1
        return _mean(first) if is_direct else _causal_loss_of(first, batch)
    raise TypeError(
        "a model must return a loss tensor, a mapping with 'loss' or 'logits', or a tuple that "
        f"starts with a loss or logits, got {type(output).__name__}"
    )


def causal_loss(logits_BTV: Tensor, labels: Tensor) -> Tensor:
    """Average the cross-entropy over the labels that are not ignored, at least in fp32.

    Labels of length T belong to the positions of the logits one by one; labels of length T - 1 to
    all but the last position. When every label is ignored the result is 0, with a gradient of 0.

    Args:
        logits_BTV: (B, T, V), any floating dtype.
        labels: (B, T) or (B, T - 1), any integer dtype, -100 ignored.

    Raises:
        ValueError: the shapes do not fit, or the labels are no integers.
    """
    aligned = _align(logits_BTV, labels)
    total: Tensor = F.cross_entropy(
        _at_least_fp32(aligned.logits.flatten(0, 1)),
        aligned.labels.flatten(),
        ignore_index=IGNORED_LABEL,
        reduction="sum",
    )
    return total / (aligned.labels != IGNORED_LABEL).sum().clamp(min=1)


def logits_and_labels(output: Any, batch: Any) -> AlignedLogits | None:
    """Find logits and their labels in an output and its batch, for measures like accuracy.

    Args:
        output: What the model returned; a tuple may have its logits first or second.
        batch: The batch it was given.

    Returns:
        None where there are no (B, T, V) logits, or the labels do not fit them.
    """
    labels = labels_of(batch)
    candidates: list[Any] = []
    if isinstance(output, Mapping):
        candidates = [output.get("logits")]
    elif isinstance(output, tuple | list):
        candidates = list(output[:2])
    for logits in candidates:
        if _fits(logits, labels):
            return _align(logits, labels)
    return None


def _mean(loss: Any) -> Tensor:
    if not isinstance(loss, Tensor):
        raise TypeError(f"a loss must be a tensor with a gradient, got {type(loss).__name__}")
    return _at_least_fp32(loss) if loss.ndim == 0 else _at_least_fp32(loss).mean()


def _at_least_fp32(values: Tensor) -> Tensor:
    return values.float() if values.dtype in _HALF_PRECISION else values


def _causal_loss_of(logits: Any, batch: Any) -> Tensor:
    if not isinstance(logits, Tensor) or logits.ndim != _NUM_LOGITS_DIMENSIONS:
        raise ValueError(
            "the model returned no loss, and only logits of shape (B, T, V) can stand in for one, "
            f"got {_shape_of(logits)}; return {{'loss': ...}}"
        )
    return causal_loss(logits, labels_of(batch))


def _align(logits_BTV: Tensor, labels: Any) -> AlignedLogits:
    if not _fits(logits_BTV, labels):
        raise ValueError(
            "logits of shape (B, T, V) need integer labels of shape (B, T) or (B, T - 1), "
            f"got logits {_shape_of(logits_BTV)} and labels {_shape_of(labels)}"
        )
    if labels.shape[1] == logits_BTV.shape[1] - 1:
        logits_BTV = logits_BTV[:, :-1]
    return AlignedLogits(logits_BTV, labels.long())


def _fits(logits: Any, labels: Any) -> bool:
    if not (isinstance(logits, Tensor) and logits.ndim == _NUM_LOGITS_DIMENSIONS):
        return False
    if not isinstance(labels, Tensor) or labels.is_floating_point() or labels.dtype is torch.bool:
        return False
    batch, length = logits.shape[:2]
    return tuple(labels.shape) in ((batch, length), (batch, length - 1))


def _shape_of(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{tuple(value.shape)} {str(value.dtype).removeprefix('torch.')}"
    return "none" if value is None else type(value).__name__
