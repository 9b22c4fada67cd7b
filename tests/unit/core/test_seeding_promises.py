"""What seeding promises about CUDA, on machines without it."""

from __future__ import annotations

import os

import pytest
import torch

from speedtronic.core.seeding import seed_everything


@pytest.fixture
def cuda_seeds(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The seeds that all CUDA devices get from us: torch.manual_seed would pass its own on."""
    seeds: list[int] = []
    monkeypatch.setenv("PYTHONHASHSEED", os.environ.get("PYTHONHASHSEED", "random"))
    monkeypatch.setattr(torch, "manual_seed", torch.default_generator.manual_seed)
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeds.append)
    return seeds


def test_all_cuda_devices_are_seeded_where_cuda_is_available(
    cuda_seeds: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    seed_everything(7)
    assert cuda_seeds == [7]


def test_cuda_is_left_alone_where_it_is_not_available(
    cuda_seeds: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    seed_everything(7)
    assert cuda_seeds == []
