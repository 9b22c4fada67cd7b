"""What a long run adds to the memory of its process."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from benching.figures import BYTES_PER_MB, Figure, anonymous_bytes, show


def bench_memory() -> None:
    """Anonymous memory that 100,000 steps of a toy model add."""
    import torch
    from torch import nn

    from speedtronic.metrics.logger import MetricLogger
    from speedtronic.metrics.progress import ProgressHook
    from speedtronic.trainer import Trainer

    class Toy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 1)

        def forward(self, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            error: torch.Tensor = self.layer(inputs) - labels
            return error.square().mean()

    model = Toy()
    batch = {"inputs": torch.randn(8, 4), "labels": torch.randn(8, 1)}
    with tempfile.TemporaryDirectory() as folder:
        logger = MetricLogger(
            json_file=Path(folder) / "metrics.jsonl", hooks=[ProgressHook(1, mode="off")]
        )
        trainer = Trainer(
            model,
            torch.optim.SGD(model.parameters(), lr=1e-3),
            [batch] * 8,
            device="cpu",
            logger=logger,
        )
        warm_up, num_steps = 1000, 100_000
        trainer.fit(warm_up)
        before_bytes = anonymous_bytes()
        start_s = time.perf_counter()
        result = trainer.fit(warm_up + num_steps)
        elapsed_s = time.perf_counter() - start_s
        growth_mb = (anonymous_bytes() - before_bytes) / BYTES_PER_MB  # its records included
        assert result.steps == warm_up + num_steps
        logger.close()
    show(
        Figure("RssAnon growth over 100,000 steps", growth_mb, "MB", target=60),
        Figure("time of one of them", elapsed_s / num_steps * 1000, "ms"),
    )
