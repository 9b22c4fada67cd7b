"""Figures of speed and memory, each beside its target: ``make bench`` or ``make bench ARGS=loop``.

Contenders run interleaved in one process and are compared round by round, because the host drifts
by a quarter. Every part has a process of its own, so that one part's memory is not another's.
These are measurements, not tests: a busy machine makes them worse.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any, Protocol

ROUNDS = 10
BYTES_PER_MB = 1_000_000
LOG_EVERY_STEPS = 10
GRAD_CLIP = 1.0


@dataclass(frozen=True)
class Figure:
    """One measured number and what it should be."""

    name: str
    value: float
    unit: str
    target: float | None = None
    """None where the number is only reported."""
    at_most: bool = True
    """Whether the target is an upper limit."""

    def __str__(self) -> str:
        """Return the line that is printed."""
        line = f"  {self.name:<58} {self.value:>10.3f} {self.unit:<10}"
        if self.target is None:
            return line.rstrip()
        reached = self.value <= self.target if self.at_most else self.value >= self.target
        limit = "at most" if self.at_most else "at least"
        return f"{line} {limit} {self.target:g}: {'reached' if reached else 'MISSED'}"


def main() -> None:
    """Run the parts named on the command line, all of them when none is."""
    names = sys.argv[1:]
    if names[:1] == ["--inside"]:
        PARTS[names[1]]()
        return
    unknown = [name for name in names if name not in PARTS]
    if unknown:
        sys.exit(f"bench: no part {unknown[0]!r}; there are: {', '.join(PARTS)}")
    print(describe_machine(), flush=True)
    for name in names or PARTS:
        print(f"{name}: {PARTS[name].__doc__}", flush=True)
        command = [sys.executable, __file__, "--inside", name]
        subprocess.run(command, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"})


def describe_machine() -> str:
    """Return one line about machine and versions, with the load that makes figures worse."""
    from importlib.metadata import version

    return (
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, "
        f"torch {version('torch')}, load {os.getloadavg()[0]:.1f} (wants 0), one thread"
    )


# ---------------------------------------------------------------------------- loop


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


# ---------------------------------------------------------------------------- tokens


def bench_tokens() -> None:
    """Tokens a second from a memory-mapped shard, and memory for corpora of two sizes."""
    import numpy as np

    # What imports and the first batches cost once is not the corpus's.
    loader_rate(np.zeros(1_000_000, dtype=np.uint16), block_size=128, prefetch_factor=0)
    figures, growths_mb = [], []
    with tempfile.TemporaryDirectory() as folder:
        for size_mb in (64, 512):
            path = Path(folder) / f"{size_mb}.bin"
            write_tokens(path, num_tokens=size_mb * BYTES_PER_MB // 2)
            before_bytes = anonymous_bytes()
            tokens = np.memmap(path, dtype=np.uint16, mode="r")
            for block_size in (128, 1024):
                name = f"{size_mb} MB, 16 x {block_size}"
                rate = loader_rate(tokens, block_size=block_size, prefetch_factor=0)
                figures.append(Figure(f"{name}, one thread", rate, "M/s", target=40, at_most=False))
                rate = loader_rate(tokens, block_size=block_size, prefetch_factor=2)
                figures.append(Figure(f"{name}, read ahead in the background", rate, "M/s"))
            growths_mb.append((anonymous_bytes() - before_bytes) / BYTES_PER_MB)
            del tokens
            path.unlink()
    small_mb, large_mb = growths_mb
    show(
        *figures,
        Figure("RssAnon growth, corpus of 64 MB", small_mb, "MB"),
        Figure("RssAnon growth, corpus of 512 MB", large_mb, "MB", target=max(small_mb, 0) + 8),
    )


def write_tokens(path: Path, *, num_tokens: int) -> None:
    """Write a shard in pieces, so that writing leaves no memory behind."""
    import numpy as np

    rng = np.random.default_rng(0)
    with path.open("wb") as file:
        for _ in range(num_tokens // 1_000_000):
            file.write(rng.integers(0, 256, 1_000_000, dtype=np.uint16).tobytes())


def loader_rate(tokens: Any, *, block_size: int, prefetch_factor: int) -> float:
    """Return the median rate of rounds of 2 million tokens, in million tokens a second."""
    from speedtronic.data.loader import TokenLoader

    micro_batch_size = 16
    loader = TokenLoader(
        tokens,
        block_size=block_size,
        micro_batch_size=micro_batch_size,
        seed=1,
        prefetch_factor=prefetch_factor,
    )
    num_batches = 2_000_000 // (micro_batch_size * block_size)
    batches = iter(loader)

    def draw() -> None:
        for _ in range(num_batches):
            next(batches)

    draw()
    num_tokens = num_batches * micro_batch_size * block_size
    rates = [num_tokens / seconds_of(draw) / 1e6 for _ in range(ROUNDS)]
    batches.close()  # type: ignore[attr-defined] # a generator: ends its thread
    return median(rates)


# ---------------------------------------------------------------------------- checkpoint


def bench_checkpoint() -> None:
    """Milliseconds that a save blocks training, for 100 MB of model and optimizer state."""
    from speedtronic.checkpoint.manager import CheckpointManager

    state, tensors = big_state()
    size_100mb = sum(tensor.nbytes for tensor in tensors) / BYTES_PER_MB / 100
    copies = [tensor.clone() for tensor in tensors]

    def copy() -> None:
        for source, target in zip(tensors, copies, strict=True):
            target.copy_(source)

    rounds: dict[str, list[float]] = {"copy": [], "background": [], "foreground": []}
    with tempfile.TemporaryDirectory() as folder:
        managers = {
            name: CheckpointManager(
                Path(folder) / name, every_steps=1, keep_last=1, async_save=name == "background"
            )
            for name in ("background", "foreground")
        }
        for step in range(1, 7):
            rounds["copy"].append(seconds_of(copy))
            for name, manager in managers.items():
                rounds[name].append(seconds_of(partial(manager.save, step, state)))
                manager.wait()
        for manager in managers.values():
            manager.close()
    # The first round pays for fresh memory.
    blocked = {name: median(seconds[1:]) * 1000 / size_100mb for name, seconds in rounds.items()}
    show(
        Figure("copy of the state alone", blocked["copy"], "ms/100MB"),
        Figure(
            "save in the background, later ones",
            blocked["background"],
            "ms/100MB",
            target=round(blocked["copy"] * 1.5 + 5, 1),
        ),
        Figure(
            "save in the background, the first",
            rounds["background"][0] * 1000 / size_100mb,
            "ms/100MB",
        ),
        Figure("save in the foreground", blocked["foreground"], "ms/100MB"),
    )


def big_state() -> tuple[dict[str, Any], list[Any]]:
    """Return a state of 300 MB as a trainer saves it, and its tensors."""
    import torch

    shapes = [(1000, 1000)] * 25
    weights = {f"layer_{index}": torch.randn(shape) for index, shape in enumerate(shapes)}
    moments = {
        index: {"step": torch.tensor(1.0), "exp_avg": torch.randn(s), "exp_avg_sq": torch.rand(s)}
        for index, s in enumerate(shapes)
    }
    groups = [{"lr": 1e-3, "params": list(moments)}]
    tensors = list(weights.values()) + [t for entry in moments.values() for t in entry.values()]
    return {
        "model": weights,
        "optimizer": {"state": moments, "param_groups": groups},
        "step": 1,
    }, tensors


# ---------------------------------------------------------------------------- memory


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


# ---------------------------------------------------------------------------- measuring


def show(*figures: Figure) -> None:
    """Print figures, one a line."""
    for figure in figures:
        print(figure, flush=True)


def seconds_of(action: Callable[[], object]) -> float:
    """Return how long an action takes."""
    start_s = time.perf_counter()
    action()
    return time.perf_counter() - start_s


def median(values: list[float]) -> float:
    """Return the median."""
    return statistics.median(values)


def anonymous_bytes() -> int:
    """Return this process's resident memory without mapped files."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("RssAnon:")[1].split()[0]) * 1024


PARTS = {
    "loop": bench_loop,
    "tokens": bench_tokens,
    "checkpoint": bench_checkpoint,
    "memory": bench_memory,
}

if __name__ == "__main__":
    main()
