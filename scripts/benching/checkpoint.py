"""How long a save keeps training waiting."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from benching.figures import BYTES_PER_MB, Figure, median, seconds_of, show


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
