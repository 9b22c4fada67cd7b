"""What a step of our optimizers costs beside torch's."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from benching.figures import Figure, interleaved, median, median_ratio, show

_STEP_ROUNDS = 60  # of about 50 ms
_TRAINING_ROUNDS = 15  # of about half a second


def bench_optimizers() -> None:
    """Steps of Muon and fused AdamW against torch's, a training step of each; median ratios."""
    import torch

    # As in a run: once larger tensors came and went, malloc keeps what a step gives back. Before, a
    # step of ours takes a thousand page faults, a sixth of its time.
    tiny_step("muon")()
    for num_threads in sorted({1, os.cpu_count() or 1}):
        torch.set_num_threads(num_threads)
        threads = f"{num_threads} thread{'s' * (num_threads != 1)}"
        show(*muon_step(threads), *adamw_step(threads))
    show(*training_step(threads))


def muon_step(threads: str) -> list[Figure]:
    """Time one step over 48 matrices of 128 x 128 to 512 x 128, an embedding and 17 norms."""
    import torch

    from speedtronic.optim.hybrid import HybridOptimizer

    ours, theirs = layer_parameters(), layer_parameters()
    muon = torch.optim.Muon(theirs["matrices"], lr=0.02)
    adamw = torch.optim.AdamW(theirs["others"], lr=1e-3, fused=True)
    hybrid = HybridOptimizer(
        [
            {"params": ours["matrices"], "algorithm": "muon", "lr": 0.02},
            {"params": ours["others"], "algorithm": "adamw", "fused": True},
        ]
    )

    def step_theirs() -> None:
        muon.step()  # type: ignore[no-untyped-call]
        adamw.step()

    seconds = interleaved({"torch": step_theirs, "ours": hybrid.step}, rounds=_STEP_ROUNDS)
    return [
        Figure(
            f"torch's Muon and AdamW, 48 matrices, {threads}", median(seconds["torch"]) * 1e3, "ms"
        ),
        Figure(f"hybrid optimizer, the same, {threads}", median(seconds["ours"]) * 1e3, "ms"),
        Figure(
            f"hybrid over torch's two, {threads}",
            median_ratio(seconds["ours"], seconds["torch"]),
            "x",
            target=0.65,
        ),
    ]


def adamw_step(threads: str) -> list[Figure]:
    """Time one fused AdamW step over the same parameters, in the hybrid and bare."""
    import torch

    from speedtronic.optim.hybrid import HybridOptimizer

    ours, theirs = layer_parameters(), layer_parameters()
    bare = torch.optim.AdamW([*theirs["matrices"], *theirs["others"]], lr=1e-3, fused=True)
    hybrid = HybridOptimizer(
        [
            {
                "params": [*ours["matrices"], *ours["others"]],
                "algorithm": "adamw",
                "fused": True,
                "weight_decay": 0.01,
            }
        ]
    )
    seconds = interleaved({"torch": bare.step, "ours": hybrid.step}, rounds=_STEP_ROUNDS)
    ratio = median_ratio(seconds["ours"], seconds["torch"])
    return [Figure(f"fused AdamW half over bare AdamW, {threads}", ratio, "x", target=1.1)]


def layer_parameters() -> dict[str, list[Any]]:
    """Return the parameters of eight layers of width 128, with gradients."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    of_a_layer: list[tuple[int, ...]] = [*[(128, 128)] * 4, (512, 128), (128, 512)]
    shapes: dict[str, list[tuple[int, ...]]] = {
        "matrices": of_a_layer * 8,
        "others": [(256, 128), *[(128,)] * 17],
    }
    parameters = {
        kind: [nn.Parameter(0.02 * torch.randn(shape)) for shape in of_kind]
        for kind, of_kind in shapes.items()
    }
    for parameter in [*parameters["matrices"], *parameters["others"]]:
        parameter.grad = torch.randn_like(parameter)
    return parameters


def training_step(threads: str) -> list[Figure]:
    """Time a training step of ``model=tiny`` with 64 x 128 tokens under AdamW and under Muon."""
    seconds = interleaved(
        {name: tiny_step(name) for name in ("adamw", "muon")}, rounds=_TRAINING_ROUNDS
    )
    return [
        Figure(f"tiny, 8,192 tokens, AdamW, {threads}", median(seconds["adamw"]) * 1e3, "ms"),
        Figure(
            f"the same with Muon over AdamW, {threads}",
            median_ratio(seconds["muon"], seconds["adamw"]),
            "x",
            target=1.15,
        ),
    ]


def tiny_step(optimizer_name: str) -> Callable[[], None]:
    """Return a function that makes one update of ``model=tiny`` in its default precision."""
    import torch

    from speedtronic import build_optimizer, load_config, resolve_precision

    device = torch.device("cpu")
    config = load_config({"model": "tiny", "optimizer": optimizer_name})
    torch.manual_seed(0)
    model = config.model.build(vocab_size=256)
    optimizer = build_optimizer(model, config, device)
    plan = resolve_precision(config.precision, device)
    ids = torch.randint(256, (64, 129))
    inputs, labels = ids[:, :-1].contiguous(), ids[:, 1:].contiguous()

    def step() -> None:
        with plan.autocast():
            loss = model(inputs, labels)["loss"]
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step
