"""Muon needs fewer updates than AdamW at its best rate: docs/optimizers.md, made smaller."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import speedtronic

ADAMW_STEPS = 240
MUON_STEPS = 140


def held_out_loss(folder: Path, steps: int, **optimizer: Any) -> float:
    """Train the smallest model on the standard library and return its loss on held-out bytes."""
    speedtronic.train_from_config(
        {
            "model": "nano",
            "data": {"name": "stdlib", "block_size": 128, "micro_batch_size": 16},
            "optimizer": optimizer,
            "scheduler": "wsd",
            "precision": "fp32",
            "run": {"output_dir": str(folder), "seed": 1, "max_steps": steps},
            "evaluation": {"every_steps": steps, "max_batches": 20},
            "checkpoint": {"enabled": False},
            "logging": {"tensorboard": False, "plots": False, "progress": "off"},
        }
    )
    loss: float = json.loads((folder / "result.json").read_text())["final_eval_loss"]
    return loss


@pytest.mark.slow
def test_140_updates_of_muon_are_worth_240_of_the_best_adamw(tmp_path: Path) -> None:
    rates = {"2e-3": 2e-3, "4e-3": 4e-3, "8e-3": 8e-3}
    adamw = {
        name: held_out_loss(tmp_path / name, ADAMW_STEPS, name="adamw", lr=lr)
        for name, lr in rates.items()
    }
    muon = held_out_loss(tmp_path / "muon", MUON_STEPS, name="muon")
    assert min(adamw, key=adamw.__getitem__) == "4e-3", adamw  # the best is inside the grid
    assert muon <= min(adamw.values()), (muon, adamw)
