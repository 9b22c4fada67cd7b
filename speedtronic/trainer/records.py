"""The records of a fit, kept in columns; losses wait on the device until somebody reads them."""

from __future__ import annotations

import sys
import time
from array import array
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

_BYTES_PER_MB = 1_000_000

_MAX_PENDING_LOSSES = 1024
"""Losses that may wait on the device; a bound on memory where logging is rare."""


class StepRecords:
    """One row a finished update: 40 bytes, whatever the number of keys that are read from it.

    Args:
        first_step: Step before the first update.
        samples: Samples before the first update.
        tokens: Tokens before the first update.
        micro_batches: Microbatches in each update.
    """

    def __init__(self, *, first_step: int, samples: int, tokens: int, micro_batches: int) -> None:
        self._first_step = first_step
        self._first_samples = samples
        self._first_tokens = tokens
        self._micro_batches = micro_batches
        self._started = time.perf_counter()
        self._losses = array("d")
        self._lrs = array("d")
        self._elapsed_s = array("d")
        self._samples = array("q")
        self._tokens = array("q")
        self._pending: list[Tensor] = []

    def __len__(self) -> int:
        """Return the number of updates recorded."""
        return len(self._lrs)

    @property
    def elapsed_s(self) -> float:
        """Seconds since the fit began."""
        return time.perf_counter() - self._started

    @property
    def final_loss(self) -> float | None:
        """Loss of the last update, None when there was none."""
        self.read_losses()
        return self._losses[-1] if self._losses else None

    def append(self, loss: Tensor, *, lr: float, samples: int, tokens: int) -> None:
        """Record one update; the loss stays on its device.

        Args:
            loss: Scalar without gradient.
            lr: Learning rate of the first group after the schedule advanced.
            samples: Samples of the run so far.
            tokens: Tokens of the run so far.
        """
        self._pending.append(loss)
        self._lrs.append(lr)
        self._elapsed_s.append(time.perf_counter() - self._started)
        self._samples.append(samples)
        self._tokens.append(tokens)
        if len(self._pending) >= _MAX_PENDING_LOSSES:
            self.read_losses()

    def read_losses(self) -> None:
        """Fetch all waiting losses from the device in one go."""
        if self._pending:
            self._losses.extend(torch.stack(self._pending).tolist())
            self._pending.clear()

    def last(self) -> dict[str, Any]:
        """Return the latest record, with the contract's nine keys."""
        self.read_losses()
        return self._row(len(self) - 1)

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return every record."""
        self.read_losses()
        return [self._row(index) for index in range(len(self))]

    def _row(self, index: int) -> dict[str, Any]:
        elapsed_s = max(self._elapsed_s[index], 1e-9)  # a clock's tick: keeps the rates finite
        samples, tokens = self._samples[index], self._tokens[index]
        return {
            "step": self._first_step + index + 1,
            "loss": self._losses[index],
            "lr": self._lrs[index],
            "steps_per_sec": (index + 1) / elapsed_s,
            "samples_per_sec": (samples - self._first_samples) / elapsed_s,
            "tokens_per_sec": (tokens - self._first_tokens) / elapsed_s,
            "samples": samples,
            "tokens": tokens,
            "micro_batches": self._micro_batches,
        }


def describe_update(
    optimizer: Optimizer, *, grad_norm: Tensor | None, device: torch.device
) -> dict[str, float]:
    """Return the optimizer's part of a ``train_stats`` event.

    Args:
        optimizer: Its groups give ``lr/<group>``, by their name or else their number.
        grad_norm: Norm of the last update before clipping, None where nobody measured it.
        device: Whose memory is reported; on a CPU that of the process.
    """
    stats: dict[str, float] = {}
    if grad_norm is not None:
        stats["grad_norm"] = grad_norm.item()
    for index, group in enumerate(optimizer.param_groups):
        stats[f"lr/{group.get('name', index)}"] = float(group["lr"])
    stats["peak_memory_mb"] = _peak_memory_bytes(device) / _BYTES_PER_MB
    return stats


def _peak_memory_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if sys.platform == "win32":
        return 0
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # Linux counts in KiB
