"""What the settings of a schedule say when it is built."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

import speedtronic


def build(**values: object) -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    speedtronic.build_scheduler(optimizer, {"scheduler": values, "run": {"max_steps": 8}})


@pytest.mark.parametrize("name", ["wsd", "cosine", "linear"])
def test_updates_at_a_rate_of_zero_are_warned_of(name: str) -> None:
    message = (
        r"scheduler\.max_steps \(4\) is below the run's target \(8\) and scheduler\.min_lr_ratio"
        " is 0: the updates after it change nothing"
    )
    with pytest.warns(UserWarning, match=message):
        build(name=name, max_steps=4, min_lr_ratio=0.0)


@pytest.mark.parametrize(
    "values",
    [
        {"name": "wsd"},
        {"name": "wsd", "max_steps": 8},
        {"name": "wsd", "max_steps": 4, "min_lr_ratio": 0.1},
        {"name": "constant", "max_steps": 4, "min_lr_ratio": 0.0},
    ],
)
def test_other_horizons_are_not_warned_of(values: dict[str, object]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        build(**values)
