"""Devices and number formats: what is chosen, what falls back, what is refused."""

from __future__ import annotations

import re
import warnings

import pytest
import torch

from speedtronic.core.errors import ConfigError, FallbackWarning
from speedtronic.core.hardware import has_fast_bf16
from speedtronic.precision import PrecisionPlan, plan_precision, resolve_device

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)


def pretend_cpu(monkeypatch: pytest.MonkeyPatch, **capabilities: bool) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)


def pretend_cuda(monkeypatch: pytest.MonkeyPatch, *, bf16: bool, num_devices: int = 2) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: num_devices)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _device: "Tesla V100")
    monkeypatch.setattr(
        torch.cuda,
        "is_bf16_supported",
        lambda including_emulation=True: bf16 or including_emulation,
    )


@pytest.mark.parametrize(
    ("capability", "mode"), [("amx_bf16", "bf16"), ("avx512_bf16", "bf16"), ("avx512_f", "fp32")]
)
def test_auto_takes_bf16_on_cpus_that_multiply_it_in_hardware(
    monkeypatch: pytest.MonkeyPatch, capability: str, mode: str
) -> None:
    pretend_cpu(monkeypatch, **{capability: True})
    assert has_fast_bf16(torch.device("cpu")) is (mode == "bf16")
    assert plan_precision(mode="auto", device=CPU).mode == mode


def test_auto_takes_bf16_on_new_cuda_devices_and_scaled_fp16_on_old_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pretend_cuda(monkeypatch, bf16=True)
    assert plan_precision(mode="auto", device=CUDA) == PrecisionPlan(
        "bf16", torch.bfloat16, False, True, "cuda"
    )
    pretend_cuda(monkeypatch, bf16=False)
    assert plan_precision(mode="auto", device=CUDA) == PrecisionPlan(
        "fp16", torch.float16, True, True, "cuda"
    )


def test_auto_takes_fp32_on_mps() -> None:
    assert plan_precision(mode="auto", device=torch.device("mps")).mode == "fp32"


def test_explicit_modes_give_their_plans() -> None:
    assert plan_precision(mode="fp32", device=CPU) == PrecisionPlan(
        "fp32", torch.float32, False, False, "cpu"
    )
    assert plan_precision(mode="bf16", device=CPU) == PrecisionPlan(
        "bf16", torch.bfloat16, False, True, "cpu"
    )


def test_explicit_bf16_runs_on_a_cpu_without_fast_bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_cpu(monkeypatch, avx2=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert plan_precision(mode="bf16", device=CPU).mode == "bf16"


def test_explicit_fp16_on_the_cpu_falls_back_to_fp32() -> None:
    message = "precision.mode=fp16 needs a CUDA device, not cpu; computing in fp32 instead"
    with pytest.warns(FallbackWarning, match=re.escape(message)):
        plan = plan_precision(mode="fp16", device=CPU)
    assert plan == PrecisionPlan("fp32", torch.float32, False, False, "cpu")


def test_explicit_bf16_on_an_old_cuda_device_falls_back_to_fp32(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pretend_cuda(monkeypatch, bf16=False)
    with pytest.warns(
        FallbackWarning,
        match="precision.mode=bf16 is not supported by Tesla V100; computing in fp32",
    ):
        assert plan_precision(mode="bf16", device=CUDA).mode == "fp32"


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"precision.mode must be one of auto, bf16, fp16, fp32, got 'fp8'"
    ):
        plan_precision(mode="fp8", device=CPU)


def test_autocast_computes_products_in_the_planned_format() -> None:
    matrix = torch.ones(2, 2)
    with plan_precision(mode="bf16", device=CPU).autocast():
        assert (matrix @ matrix).dtype == torch.bfloat16
    with plan_precision(mode="fp32", device=CPU).autocast():
        assert (matrix @ matrix).dtype == torch.float32


def test_the_cpu_is_always_there() -> None:
    assert resolve_device("cpu") == CPU
    assert resolve_device(CPU) == CPU


def test_auto_prefers_cuda_then_mps_then_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert resolve_device("auto") == CPU
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert resolve_device("auto") == torch.device("mps")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    pretend_cuda(monkeypatch, bf16=True)
    assert resolve_device("auto") == CUDA


def test_cuda_devices_are_found_by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_cuda(monkeypatch, bf16=True, num_devices=2)
    assert resolve_device("cuda") == CUDA
    assert resolve_device("cuda:1") == torch.device("cuda", 1)
    with pytest.raises(
        ConfigError,
        match=r"run.device must be a device of this machine \(cpu, cuda:0, cuda:1\), got 'cuda:7'",
    ):
        resolve_device("cuda:7")


def test_a_device_that_is_not_there_is_refused_with_what_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    for name in ("cuda", "cuda:0", "mps"):
        with pytest.raises(
            ConfigError, match=rf"run.device must be a device of this machine \(cpu\), got '{name}'"
        ):
            resolve_device(name)


@pytest.mark.parametrize("name", ["gpu", "", "cuda:", "cuda:x", "meta", "CPU"])
def test_names_of_no_device_are_refused(name: str) -> None:
    with pytest.raises(
        ConfigError, match=rf"run.device must be auto, cpu, cuda, cuda:N or mps, got '{name}'"
    ):
        resolve_device(name)
