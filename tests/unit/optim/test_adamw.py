"""Building AdamW: groups, names, the fused form and its fallback."""

from __future__ import annotations

import re
import warnings
from typing import Any

import pytest
import torch
from torch import nn

from speedtronic.core.errors import ConfigError, FallbackWarning
from speedtronic.optim.adamw import build_adamw, supports_fused_adamw

CPU = torch.device("cpu")


def test_settings_and_names_reach_the_groups() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2))
    optimizer = build_adamw(
        model, lr=0.02, betas=(0.8, 0.9), eps=1e-7, weight_decay=0.3, device=CPU
    )
    first, second = optimizer.param_groups
    assert first["param_names"] == ["0.weight"]
    assert second["param_names"] == ["0.bias", "1.weight", "1.bias"]
    assert (first["lr"], first["betas"], first["eps"], first["weight_decay"]) == (
        0.02,
        (0.8, 0.9),
        1e-7,
        0.3,
    )
    assert second["weight_decay"] == 0.0


def test_fused_is_the_default_on_the_cpu_without_a_warning() -> None:
    assert supports_fused_adamw(CPU)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer = build_adamw(nn.Linear(2, 2), lr=0.1, device=CPU)
        assert optimizer.param_groups[0]["fused"] is True
        assert (
            build_adamw(nn.Linear(2, 2), lr=0.1, fused=False, device=CPU).param_groups[0]["fused"]
            is None
        )


def test_the_fused_form_is_not_supported_where_there_is_no_kernel() -> None:
    assert not supports_fused_adamw("meta")
    if not torch.cuda.is_available():
        assert not supports_fused_adamw("cuda")


def test_a_device_without_the_fused_form_gets_the_ordinary_one_and_one_warning() -> None:
    message = "fused AdamW cannot be used (it does not run on meta); using the ordinary AdamW"
    with pytest.warns(FallbackWarning, match=re.escape(message)) as caught:
        optimizer = build_adamw(nn.Linear(2, 2), lr=0.1, device=torch.device("meta"))
    assert len(caught) == 1
    assert optimizer.param_groups[0]["fused"] is None


@pytest.mark.parametrize("error", [TypeError, RuntimeError, ValueError])
def test_a_forced_fused_form_that_fails_becomes_the_ordinary_one(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    original = torch.optim.AdamW.__init__

    def fail_when_fused(
        self: Any, params: Any, *, fused: bool | None = None, **arguments: Any
    ) -> None:
        if fused:
            raise error("no kernel\nand a second line")
        original(self, params, fused=fused, **arguments)

    monkeypatch.setattr(torch.optim.AdamW, "__init__", fail_when_fused)
    with pytest.warns(
        FallbackWarning, match=re.escape("fused AdamW cannot be used (no kernel); using")
    ):
        optimizer = build_adamw(nn.Linear(2, 2), lr=0.1, fused=True, device=CPU)
    assert optimizer.param_groups[0]["fused"] is None
    assert optimizer.param_groups[0]["param_names"] == ["weight"]


@pytest.mark.parametrize("fused", [True, None])
def test_parameters_without_a_fused_kernel_leave_whole_groups_to_the_ordinary_form(
    fused: bool | None,
) -> None:
    model = nn.Linear(2, 2, dtype=torch.complex64)
    with pytest.warns(FallbackWarning, match=r"used \(parameter weight is complex64\); using"):
        optimizer = build_adamw(model, lr=0.1, fused=fused, device=CPU)
    assert [group["param_names"] for group in optimizer.param_groups] == [["weight"], ["bias"]]
    model.weight.grad = torch.ones_like(model.weight)
    optimizer.step()


def test_integer_betas_are_taken() -> None:
    optimizer = build_adamw(nn.Linear(2, 2), lr=0.1, betas=(0, 0.95), device=CPU)
    assert optimizer.param_groups[0]["betas"] == (0.0, 0.95)


def test_a_model_without_trainable_parameter_is_refused() -> None:
    with pytest.raises(
        ConfigError, match="model must have a trainable parameter, got ReLU with none"
    ):
        build_adamw(nn.ReLU(), lr=0.1, device=CPU)


def test_probing_and_building_draw_no_random_number() -> None:
    model = nn.Linear(2, 2)
    before = torch.get_rng_state()
    build_adamw(model, lr=0.1, device=CPU)
    assert torch.equal(torch.get_rng_state(), before)
