"""What the Trainer adds to a loop that one writes by hand."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any, Protocol

from benching.figures import ROUNDS, Figure, median, seconds_of, show

LOG_EVERY_STEPS = 10
GRAD_CLIP = 1.0


def bench_loop() -> None:
    """Milliseconds an update of a model of one 32-wide layer, Trainer against a bare loop."""
    with tempfile.TemporaryDirectory() as folder:
        contenders: dict[str, Contender] = {
            "bare": BareLoop(Path(folder)),
            "trainer": TrainerLoop(Path(folder)),
        }
        num_updates = 300
        for contender in contenders.values():
            contender.advance(num_updates)
        rounds: dict[str, list[float]] = {name: [] for name in contenders}
        for _ in range(ROUNDS):
            for name, contender in contenders.items():
                elapsed_s = seconds_of(partial(contender.advance, num_updates))
                rounds[name].append(elapsed_s / num_updates * 1000)
    differences = [b - a for a, b in zip(rounds["bare"], rounds["trainer"], strict=True)]
    show(
        Figure("bare loop, best of ten rounds", min(rounds["bare"]), "ms"),
        Figure("Trainer, best of ten rounds", min(rounds["trainer"]), "ms"),
        Figure(
            "overhead of the Trainer, best against best",
            min(rounds["trainer"]) - min(rounds["bare"]),
            "ms",
            target=0.15,
        ),
        Figure("overhead of the Trainer, median of the rounds", median(differences), "ms"),
    )


class Contender(Protocol):
    """A loop that can be driven piece by piece."""

    def advance(self, num_updates: int) -> None:
        """Make some updates."""


def toy_parts() -> tuple[Any, Any, list[dict[str, Any]]]:
    """Return the one-layer model, its AdamW and eight batches of 8 x 64 tokens."""
    import torch

    from speedtronic.models.gpt import GPT
    from speedtronic.optim.adamw import build_adamw

    torch.manual_seed(0)
    model = GPT(vocab_size=256, max_seq_len=64, n_layer=1, n_head=2, d_model=32)
    optimizer = build_adamw(
        model, lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, device=torch.device("cpu")
    )
    ids = torch.randint(256, (8, 8, 65))
    batches = [{"input_ids": row[:, :-1], "labels": row[:, 1:].contiguous()} for row in ids]
    return model, optimizer, batches


class BareLoop:
    """What one writes by hand: clipping, a schedule, and a JSON line every ten updates."""

    def __init__(self, folder: Path) -> None:
        from speedtronic.schedule.build import build_schedule

        self._model, self._optimizer, batches = toy_parts()
        self._schedule = build_schedule(
            self._optimizer, kind="cosine", warmup_steps=100, horizon=100_000, min_ratio=0.1
        )
        self._batches: Iterator[dict[str, Any]] = cycle(batches)
        self._file = (folder / "bare.jsonl").open("w", buffering=1)
        self._step = 0

    def advance(self, num_updates: int) -> None:
        """Make some updates."""
        from torch.nn.utils import clip_grad_norm_

        parameters = list(self._model.parameters())
        for _ in range(num_updates):
            loss = self._model(**next(self._batches))["loss"]
            loss.backward()
            clip_grad_norm_(parameters, GRAD_CLIP)
            self._optimizer.step()
            self._optimizer.zero_grad(set_to_none=True)
            self._schedule.step()
            self._step += 1
            if self._step % LOG_EVERY_STEPS == 0:
                rate = self._schedule.get_last_lr()[0]
                record = {"step": self._step, "loss": loss.item(), "lr": rate}
                self._file.write(json.dumps(record) + "\n")


class TrainerLoop:
    """The Trainer with the same duties, writing its records and no console lines."""

    def __init__(self, folder: Path) -> None:
        from speedtronic.metrics.logger import MetricLogger
        from speedtronic.metrics.progress import ProgressHook
        from speedtronic.schedule.build import build_schedule
        from speedtronic.trainer import Trainer

        model, optimizer, batches = toy_parts()
        logger = MetricLogger(
            json_file=folder / "trainer.jsonl",
            every_steps=LOG_EVERY_STEPS,
            hooks=[ProgressHook(1, mode="off")],
        )
        schedule = build_schedule(
            optimizer, kind="cosine", warmup_steps=100, horizon=100_000, min_ratio=0.1
        )
        self._trainer = Trainer(
            model,
            optimizer,
            batches,
            device="cpu",
            config={
                "optimizer": {"grad_clip": GRAD_CLIP},
                "evaluation": {"every_steps": None},
                "precision": "fp32",
            },
            scheduler=schedule,
            logger=logger,
        )

    def advance(self, num_updates: int) -> None:
        """Make some updates."""
        self._trainer.fit(self._trainer.step + num_updates)
