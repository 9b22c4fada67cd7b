"""Which device a run uses and in which number format it computes."""

from __future__ import annotations

import re
import warnings
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch

from speedtronic.core.errors import ConfigError, FallbackWarning
from speedtronic.core.hardware import has_fast_bf16

PRECISION_MODES = ("auto", "bf16", "fp16", "fp32")

_DEVICE_NAME = re.compile(r"(cpu|mps|cuda)(?::(\d+))?")
_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


@dataclass(frozen=True)
class PrecisionPlan:
    """How forward and backward compute; parameters stay in fp32."""

    mode: str
    """What is used: bf16, fp16 or fp32, never auto."""
    dtype: torch.dtype
    """Number format of matrix products."""
    use_scaler: bool
    """Whether gradients are scaled against underflow (fp16)."""
    autocast_enabled: bool
    """Whether operations are cast to ``dtype``."""
    device_type: str
    """cpu, cuda or mps."""

    def autocast(self) -> AbstractContextManager[object]:
        """Return the context in which forward and loss run."""
        if not self.autocast_enabled:
            return nullcontext()
        return torch.autocast(self.device_type, dtype=self.dtype)


def plan_precision(*, mode: str, device: torch.device) -> PrecisionPlan:
    """Choose the number format for a device.

    ``auto`` is bf16 where the hardware computes it (CUDA from Ampere on; CPUs with AMX or
    AVX512-BF16), fp16 with a scaler on older CUDA devices, fp32 elsewhere. An explicit mode that
    the device cannot run becomes fp32 with a ``FallbackWarning``; bf16 runs on any CPU, if slowly.

    Args:
        mode: One of ``PRECISION_MODES``.
        device: A device that is there.

    Raises:
        ConfigError: the mode is unknown.
    """
    if mode not in PRECISION_MODES:
        raise ConfigError(
            f"precision.mode must be one of {', '.join(PRECISION_MODES)}, got {mode!r}"
        )
    if mode == "auto":
        return _plan(_fastest_mode(device), device)
    reason = _obstacle(mode, device)
    if reason is not None:
        warnings.warn(
            FallbackWarning(f"precision.mode={mode} {reason}; computing in fp32 instead"),
            stacklevel=2,
        )
        return _plan("fp32", device)
    return _plan(mode, device)


def resolve_device(name: str | torch.device) -> torch.device:
    """Return the device of a name, and check that it is there.

    Args:
        name: ``auto`` (CUDA, else MPS, else CPU), ``cpu``, ``cuda``, ``cuda:N`` or ``mps``.

    Raises:
        ConfigError: the name is unknown or this machine has no such device.
    """
    present = _present_devices()
    if str(name) == "auto":
        return present[min(1, len(present) - 1)]
    match = _DEVICE_NAME.fullmatch(str(name))
    if match is None:
        raise ConfigError(f"run.device must be auto, cpu, cuda, cuda:N or mps, got {str(name)!r}")
    kind, index = match.groups()
    if kind == "cuda" and index is None and torch.cuda.is_available():
        index = torch.cuda.current_device()
    device = torch.device(kind if index is None or kind != "cuda" else f"cuda:{index}")
    if device not in present:
        there = ", ".join(str(candidate) for candidate in present)
        raise ConfigError(
            f"run.device must be a device of this machine ({there}), got {str(name)!r}; "
            "try run.device=auto"
        )
    return device


def _fastest_mode(device: torch.device) -> str:
    if has_fast_bf16(device):
        return "bf16"
    return "fp16" if device.type == "cuda" else "fp32"


def _obstacle(mode: str, device: torch.device) -> str | None:
    if mode == "fp16" and device.type != "cuda":
        return f"needs a CUDA device, not {device.type}"
    if mode == "bf16" and device.type == "cuda" and not has_fast_bf16(device):
        return f"is not supported by {torch.cuda.get_device_name(device)}"
    return None


def _plan(mode: str, device: torch.device) -> PrecisionPlan:
    return PrecisionPlan(
        mode=mode,
        dtype=_DTYPES[mode],
        use_scaler=mode == "fp16",
        autocast_enabled=mode != "fp32",
        device_type=device.type,
    )


def _present_devices() -> list[torch.device]:
    devices = [torch.device("cpu")]
    if torch.cuda.is_available():
        devices += [torch.device("cuda", index) for index in range(torch.cuda.device_count())]
    if torch.backends.mps.is_available():
        devices.append(torch.device("mps"))
    return devices
