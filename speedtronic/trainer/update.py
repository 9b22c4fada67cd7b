"""One attempt at an optimizer update: K microbatches, unscale, clip, then apply or skip.

Nothing here counts steps, logs or saves; the loop does that with the report of an attempt.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.nn.utils import clip_grad_norm_, get_total_norm
from torch.optim import Optimizer

from speedtronic.core.batch import count_batch, move_batch
from speedtronic.core.loss import count_labels
from speedtronic.precision import PrecisionPlan


@dataclass(frozen=True, slots=True)
class Attempt:
    """What one attempt did."""

    loss: Tensor
    """Mean of the microbatch losses, a scalar on the device."""
    grad_norm: Tensor | None
    """Norm before clipping, a scalar on the device; None when nobody asked for it."""
    samples: int
    """Samples in its microbatches."""
    tokens: int
    """Tokens in its microbatches."""
    skip_reason: str | None
    """Why the update was not applied, None when it was."""


class BatchSource(Protocol):
    """Where microbatches come from."""

    def next(self) -> Any:
        """Return the next microbatch."""


class MicrobatchMean:
    """The contract's rule: the loss of an update is the mean of its K microbatch losses."""

    def __init__(self, num_microbatches: int) -> None:
        self._num_microbatches = num_microbatches
        self._sum: Tensor | None = None

    def start(self) -> None:
        """Begin an update."""
        self._sum = None

    def divisor(self, _batch: Any) -> float:
        """Return what the loss of a microbatch is divided by before its backward."""
        return self._num_microbatches

    def add(self, loss: Tensor) -> None:
        """Take in the loss of a microbatch; its tensor may change afterwards."""
        # A copy: the next replay of a CUDA graph writes its loss into the same memory.
        self._sum = loss.clone() if self._sum is None else self._sum + loss

    def mean(self) -> Tensor:
        """Return the loss of the update."""
        return cast("Tensor", self._sum) / self._num_microbatches

    def correction(self) -> float:
        """Return the factor that the accumulated gradients still need."""
        return 1.0


class LabelMean:
    """Weigh each microbatch by its labels that count, so that K microbatches equal one large batch.

    The labels of a whole update are known only after its last microbatch. Until then each loss
    is weighed against the first one, which keeps scaled fp16 losses in range; a factor at the end
    makes it exact, and is 1 when all microbatches have the same number of labels.
    """

    def __init__(self, num_microbatches: int) -> None:
        self._num_microbatches = num_microbatches
        self._counts: list[int] = []
        self._sum: Tensor | None = None

    def start(self) -> None:
        """Begin an update."""
        self._counts.clear()
        self._sum = None

    def divisor(self, batch: Any) -> float:
        """Return what the loss of a microbatch is divided by before its backward."""
        self._counts.append(count_labels(batch))
        if self._counts[-1] == 0:
            return math.inf
        return self._num_microbatches * (max(1, self._counts[0]) / self._counts[-1])

    def add(self, loss: Tensor) -> None:
        """Take in the loss of the microbatch that ``divisor`` was asked about last."""
        weighed = loss * self._counts[-1]
        self._sum = weighed if self._sum is None else self._sum + weighed

    def mean(self) -> Tensor:
        """Return the loss of the update; 0 where no label counted."""
        return torch.zeros(()) if self._sum is None else self._sum / sum(self._counts)

    def correction(self) -> float:
        """Return the factor that the accumulated gradients still need."""
        expected = self._num_microbatches * max(1, self._counts[0])
        total = sum(self._counts)
        return expected / total if total else 1.0


def resolve_normalization(name: str, num_microbatches: int) -> MicrobatchMean | LabelMean:
    """Return the rule of ``trainer.loss_normalization``."""
    return LabelMean(num_microbatches) if name == "tokens" else MicrobatchMean(num_microbatches)


def updated_parameters(model: nn.Module, optimizer: Optimizer) -> list[nn.Parameter]:
    """Return the optimizer's parameters in the order of the model, then any others it has.

    The order decides the last bit of the gradient norm; this one is that of
    ``clip_grad_norm_(model.parameters(), ...)``.
    """
    left = {id(p): p for group in optimizer.param_groups for p in group["params"]}
    ordered = [left.pop(id(p)) for p in model.parameters() if id(p) in left]
    return [*ordered, *left.values()]


class Update:
    """Makes attempts at one optimizer update.

    Args:
        forward: From a batch on the device to its scalar loss.
        feed: Where microbatches come from.
        optimizer: Applies the update.
        parameters: What is clipped, see ``updated_parameters``.
        scaler: Disabled where gradients need no scaling.
        precision: Number format of the forward.
        device: Where batches go.
        normalization: How K losses become one.
        num_microbatches: K.
        grad_clip: Largest norm, None for no clipping.
    """

    def __init__(  # noqa: PLR0913 - the parts of an update, each decided by the trainer
        self,
        forward: Callable[[Any], Tensor],
        *,
        feed: BatchSource,
        optimizer: Optimizer,
        parameters: list[nn.Parameter],
        scaler: GradScaler,
        precision: PrecisionPlan,
        device: torch.device,
        normalization: MicrobatchMean | LabelMean,
        num_microbatches: int,
        grad_clip: float | None,
    ) -> None:
        self._forward = forward
        self._feed = feed
        self._optimizer = optimizer
        self._parameters = parameters
        self._scaler = scaler
        self._autocast = precision.autocast
        self._device = device
        self._normalization = normalization
        self._microbatches = range(num_microbatches)
        self._norm_of_gradients = _norm_rule(grad_clip, scaled=scaler.is_enabled())
        self._data_wait_s = 0.0

    def attempt(self) -> Attempt:
        """Run K microbatches and apply one update, or skip it: loss or gradients are not finite.

        One scalar is read from the device: whether loss and gradient norm are finite.

        Raises:
            StopRequestedError: a stop was requested while waiting for data. Gradients of the
                microbatches before are left as they are: see ``clear``.
        """
        samples = tokens = 0
        self._normalization.start()
        for _ in self._microbatches:
            batch = self._next_batch()
            count = count_batch(batch)
            divisor = self._normalization.divisor(batch)
            samples += count.samples
            tokens += count.tokens
            if divisor == math.inf:
                continue  # no label counts: a model's own mean over none would be NaN
            with self._autocast():
                loss = self._forward(move_batch(batch, self._device))
            self._scaler.scale(loss / divisor).backward()  # type: ignore[no-untyped-call]
            self._normalization.add(loss.detach())

        mean_loss = self._normalization.mean()
        _multiply_gradients(self._parameters, self._normalization.correction())
        self._scaler.unscale_(self._optimizer)
        grad_norm = self._norm_of_gradients(self._parameters)
        skip_reason = self._obstacle(mean_loss, grad_norm)
        if skip_reason is None:
            # Not scaler.step: it would read its own flag from the device, a second wait.
            self._optimizer.step()
        self._scaler.update()
        self.clear()
        return Attempt(mean_loss, grad_norm, samples, tokens, skip_reason)

    def clear(self) -> None:
        """Drop all gradients."""
        self._optimizer.zero_grad(set_to_none=True)

    def take_data_wait(self) -> float:
        """Return the seconds spent waiting for data since the last call."""
        waited_s, self._data_wait_s = self._data_wait_s, 0.0
        return waited_s

    def _next_batch(self) -> Any:
        asked = time.perf_counter()
        batch = self._feed.next()
        self._data_wait_s += time.perf_counter() - asked
        return batch

    def _obstacle(self, loss: Tensor, grad_norm: Tensor | None) -> str | None:
        flag = loss if grad_norm is None else loss + grad_norm
        if math.isfinite(flag.item()):
            return None
        if not math.isfinite(loss.item()):
            return "non-finite loss"
        if self._scaler.is_enabled():
            return f"gradients overflowed at a loss scale of {self._scaler.get_scale():g}"
        return "non-finite gradient norm"


def _norm_rule(
    grad_clip: float | None, *, scaled: bool
) -> Callable[[list[nn.Parameter]], Tensor | None]:
    if grad_clip is not None:
        return lambda parameters: clip_grad_norm_(parameters, grad_clip)
    if scaled:  # an overflow shows in the gradients only
        return lambda parameters: get_total_norm(_gradients(parameters))
    return lambda _parameters: None


def _gradients(parameters: Iterable[nn.Parameter]) -> list[Tensor]:
    return [p.grad for p in parameters if p.grad is not None]


def _multiply_gradients(parameters: Iterable[nn.Parameter], factor: float) -> None:
    if factor == 1.0:
        return
    gradients = _gradients(parameters)
    if gradients:  # one call for all of them, as torch's own clipping does
        torch._foreach_mul_(gradients, factor)
