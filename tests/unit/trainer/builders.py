"""Small real objects to train: models, batches, a logger that keeps its events, a trainer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from speedtronic.data.endless import EndlessLoader
from speedtronic.metrics.logger import MetricLogger
from speedtronic.precision import PrecisionPlan
from speedtronic.trainer import Trainer

FP32 = PrecisionPlan(
    mode="fp32", dtype=torch.float32, use_scaler=False, autocast_enabled=False, device_type="cpu"
)
SCALED = PrecisionPlan(
    mode="fp16", dtype=torch.float16, use_scaler=True, autocast_enabled=False, device_type="cpu"
)


class Regression(nn.Module):
    """Two layers with dropout and a mean squared error; returns the loss alone."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.hidden = nn.Linear(4, 8)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(8, 1)

    def forward(self, inputs, targets):
        return F.mse_loss(self.head(self.dropout(torch.tanh(self.hidden(inputs)))), targets)


class Bigram(nn.Module):
    """A language model that returns logits only."""

    def __init__(self, vocab_size: int = 5) -> None:
        super().__init__()
        self.table = nn.Embedding(vocab_size, vocab_size)

    def forward(self, input_ids):
        return {"logits": self.table(input_ids)}


class Recorder:
    """A hook that keeps every event."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []

    def __call__(self, event, payload) -> None:
        self.events.append((event, dict(payload)))

    def of(self, *names: str) -> list[dict[str, Any]]:
        return [payload for event, payload in self.events if event in names]

    def names(self) -> list[str]:
        return [event for event, _ in self.events]


class CountedLoader(EndlessLoader):
    """Our kind of loader over a function from the number of a microbatch to the microbatch."""

    def __init__(self, batch_of: Callable[[int], Any]) -> None:
        super().__init__()
        self.batch_of = batch_of

    def open_groups(self, start):
        return _CountedGroups(self, start)

    def wait_for(self, number, stop) -> None:
        """Stand for the wait for a microbatch that is not ready."""


class _CountedGroups:
    def __init__(self, loader: CountedLoader, number: int) -> None:
        self.loader = loader
        self.number = number

    def get(self, stop=None):
        self.loader.wait_for(self.number, stop)
        self.number += 1
        return [self.loader.batch_of(self.number - 1)]

    def close(self) -> None:
        pass


def make_logger(recorder: Recorder | None = None, *, every_steps: int = 1) -> MetricLogger:
    return MetricLogger(
        level="CRITICAL", every_steps=every_steps, hooks=[recorder] if recorder else []
    )


def regression_batches(num: int = 6, size: int = 3, seed: int = 7) -> list[Any]:
    generator = torch.Generator().manual_seed(seed)
    return [
        (torch.randn(size, 4, generator=generator), torch.randn(size, 1, generator=generator))
        for _ in range(num)
    ]


def make_regression(dropout: float = 0.0, seed: int = 0) -> Regression:
    torch.manual_seed(seed)
    return Regression(dropout)


def make_trainer(
    model: nn.Module | None = None,
    batches: Any = None,
    *,
    lr: float = 0.1,
    options: dict[str, Any] | None = None,
    recorder: Recorder | None = None,
    log_every: int = 1,
    with_schedule: bool = False,
    **arguments: Any,
) -> Trainer:
    """Build a trainer with AdamW over a regression; ``options`` is a configuration as a dict."""
    model = make_regression() if model is None else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    if with_schedule:
        arguments["scheduler"] = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda position: 1 / (1 + position)
        )
    return Trainer(
        model,
        optimizer,
        regression_batches() if batches is None else batches,
        device="cpu",
        config=options,
        precision=arguments.pop("precision", FP32),
        logger=arguments.pop("logger", make_logger(recorder, every_steps=log_every)),
        **arguments,
    )


def parameters_of(model: nn.Module) -> list[torch.Tensor]:
    return [p.detach().clone() for p in model.parameters()]


def assert_same_tensors(first: Any, second: Any, path: str = "") -> None:
    """Assert that two trees are equal, tensors bit for bit."""
    assert type(first) is type(second), path
    if isinstance(first, torch.Tensor):
        assert torch.equal(first, second), path
    elif isinstance(first, dict):
        assert first.keys() == second.keys(), path
        for key in first:
            assert_same_tensors(first[key], second[key], f"{path}.{key}")
    elif isinstance(first, list | tuple):
        assert len(first) == len(second), path
        for index, (one, two) in enumerate(zip(first, second, strict=True)):
            assert_same_tensors(one, two, f"{path}[{index}]")
    else:
        assert first == second, path
