"""One evaluation: the held-out loss and what follows from it, without a trace in the training run.

Legend: B batch, T positions, V vocabulary.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from speedtronic.core.batch import count_batch, move_batch
from speedtronic.core.errors import DataError
from speedtronic.core.loss import (
    IGNORED_LABEL,
    AlignedLogits,
    logits_and_labels,
    resolve_loss,
    resolve_splitter,
)
from speedtronic.core.modes import evaluation_mode
from speedtronic.core.seeding import preserve_rng
from speedtronic.core.stopping import StopFlag
from speedtronic.data.workers import start_iterator
from speedtronic.precision import PrecisionPlan
from speedtronic.trainer.features import unwrap

_SHUFFLE_SEED = 0
"""Random state of every evaluation: a shuffling loader gives the same batches each time."""


@dataclass(frozen=True, kw_only=True)
class EvaluationReport:
    """The measures of one evaluation; None where the model or the tokenizer does not allow them."""

    loss: float
    """Mean loss of a label in nats, or of a sample where a batch got no logits for its labels."""
    perplexity: float | None
    """Exponential of the mean cross-entropy of a label."""
    bits_per_byte: float | None
    """Cross-entropy in bits for each byte of text the labels stand for."""
    accuracy: float | None
    """Share of labels that have the highest logit."""
    seconds: float
    """Duration."""
    sample: str | None = None
    """Text that the model wrote."""

    def to_payload(self) -> dict[str, Any]:
        """Return the fields of an ``eval`` event."""
        fields = asdict(self)
        if self.sample is None:
            del fields["sample"]
        return fields


class Evaluator:
    """Runs a model over the same held-out batches each time.

    Runs the eager model: compiled, its other mode and its last, smaller batch would each compile
    anew.

    Args:
        model: The model in training; its modes are restored.
        batches: A re-iterable of batches.
        device: Where the model lives.
        precision: Number format of the forward.
        max_batches: Batches of one evaluation, None for all.
        token_bytes: Bytes each token id stands for, (V,), or None.
        sample_text: Writes a text with the model, or None.
        stop: Polled at each batch.
    """

    def __init__(  # noqa: PLR0913 - the parts of an evaluation
        self,
        model: nn.Module,
        *,
        batches: Iterable[Any],
        device: torch.device,
        precision: PrecisionPlan,
        max_batches: int | None,
        token_bytes: Any,
        sample_text: Callable[[], str] | None,
        stop: StopFlag,
    ) -> None:
        self._model = unwrap(model)
        self._batches = batches
        self._device = device
        self._precision = precision
        self._max_batches = max_batches
        self._token_bytes = None if token_bytes is None else torch.as_tensor(token_bytes)
        self._sample_text = sample_text
        self._stop = stop
        self._split = resolve_splitter(self._model)
        # float64 counts exactly up to 2^53; MPS has none, and there float32 sums must do.
        self._dtype = torch.float32 if device.type == "mps" else torch.float64

    def run(self) -> EvaluationReport:
        """Measure the model as it is now; draws nothing from the training run's random state.

        Raises:
            StopRequestedError: a stop was requested meanwhile.
            DataError: there is no batch.
        """
        started = time.perf_counter()
        with preserve_rng(), evaluation_mode(self._model), torch.no_grad():
            torch.manual_seed(_SHUFFLE_SEED)
            totals = self._totals()
            # Broken weights cannot be sampled from, and the loop is about to say that they are.
            is_sane = math.isfinite(totals.mean_loss)
            sample = self._sample_text() if self._sample_text and is_sane else None
        return totals.report(
            seconds=time.perf_counter() - started,
            sample=sample,
            has_bytes=self._token_bytes is not None,
        )

    def _totals(self) -> _Totals:
        """Add up all batches on the device and read the sums once."""
        sums = torch.zeros(7, dtype=self._dtype, device=self._device)
        num_batches, all_have_logits = 0, True
        started = start_iterator(self._batches)
        try:
            for batch in islice(started.iterator, self._max_batches):
                self._stop.raise_if_requested()
                row, has_logits = self._measure(batch)
                sums += torch.stack([value.to(self._dtype) for value in row])
                num_batches += 1
                all_have_logits &= has_logits
        finally:
            if hasattr(started.iterator, "close"):
                started.iterator.close()
            started.let_go()
        if num_batches == 0:
            raise DataError(
                "the evaluation data gave no batch; it must be something that can be iterated "
                "again and again (a list or a loader, not a generator)"
            )
        return _Totals(all_have_logits, *sums.tolist())

    def _measure(self, batch: Any) -> tuple[list[Tensor], bool]:
        """Return what one batch adds to each sum of ``_Totals``, and whether it had logits."""
        samples = count_batch(batch).samples
        batch = move_batch(batch, self._device)
        call = self._split(batch)
        with self._precision.autocast():
            output = self._model(*call.args, **call.kwargs)
            loss = resolve_loss(output, batch).to(self._dtype)
        aligned = logits_and_labels(output, batch)
        zero = loss.new_zeros(())
        if aligned is None:
            return [loss * samples, zero + samples, zero, zero, zero, zero, zero], False
        counts = aligned.labels != IGNORED_LABEL
        num_labels = counts.sum()
        has_labels = num_labels > 0  # without any, the loss of a user's model may be NaN
        cross_entropy, correct = _score(aligned, counts)
        return [
            torch.where(has_labels, loss * samples, zero),
            torch.where(has_labels, zero + samples, zero),
            torch.where(has_labels, loss * num_labels, zero),
            num_labels,
            cross_entropy,
            correct,
            self._count_bytes(aligned, counts),
        ], True

    def _count_bytes(self, aligned: AlignedLogits, counts: Tensor) -> Tensor:
        if self._token_bytes is None:
            return counts.new_zeros((), dtype=torch.int64)
        if self._token_bytes.device != aligned.labels.device:
            self._token_bytes = self._token_bytes.to(aligned.labels.device)
        return self._token_bytes[aligned.labels.clamp(min=0)].mul(counts).sum()


@dataclass(frozen=True)
class _Totals:
    """Sums over all batches of one evaluation.

    The loss is summed with both weights: which one counts shows only after the last batch, since
    one mean must not mix labels and samples.
    """

    all_have_logits: bool
    loss_of_samples: float
    num_samples: float
    loss_of_labels: float
    num_labels: float
    cross_entropy: float
    num_correct: float
    num_bytes: float

    @property
    def mean_loss(self) -> float:
        """Mean over labels, or over samples where a batch had no logits to count labels by."""
        if self.all_have_logits:
            return self.loss_of_labels / self.num_labels if self.num_labels else math.nan
        return self.loss_of_samples / self.num_samples if self.num_samples else math.nan

    def report(self, *, seconds: float, sample: str | None, has_bytes: bool) -> EvaluationReport:
        """Turn the sums into means."""
        if not (self.all_have_logits and self.num_labels):
            return EvaluationReport(
                loss=self.mean_loss,
                perplexity=None,
                bits_per_byte=None,
                accuracy=None,
                seconds=seconds,
                sample=sample,
            )
        bits = self.cross_entropy / math.log(2)
        return EvaluationReport(
            loss=self.mean_loss,
            perplexity=_exp(self.cross_entropy / self.num_labels),
            bits_per_byte=bits / self.num_bytes if has_bytes and self.num_bytes else None,
            accuracy=self.num_correct / self.num_labels,
            seconds=seconds,
            sample=sample,
        )


def _score(aligned: AlignedLogits, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Return the summed cross-entropy and the number of labels with the highest logit."""
    cross_entropy = F.cross_entropy(
        aligned.logits.flatten(0, 1).float(),
        aligned.labels.flatten(),
        ignore_index=IGNORED_LABEL,
        reduction="sum",
    )
    correct = ((aligned.logits.argmax(dim=-1) == aligned.labels) & counts).sum()
    return cross_entropy, correct


def _exp(value: float) -> float:
    try:
        return math.exp(value)
    except OverflowError:
        return math.inf
