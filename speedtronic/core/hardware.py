"""What the hardware is fast at, for components that choose a number format by it."""

from __future__ import annotations

from contextlib import nullcontext

import torch


def has_fast_bf16(device: torch.device) -> bool:
    """Tell whether a device multiplies bf16 matrices in hardware.

    CUDA devices from Ampere on, and CPUs with AMX or AVX512-BF16.
    """
    if device.type == "cuda":
        # torch asks the current device, which is the only one on most machines.
        is_only = device.index is None or torch.cuda.device_count() < 2  # noqa: PLR2004 - one other
        context = nullcontext() if is_only else torch.cuda.device(device)
        with context:
            return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if device.type != "cpu":
        return False
    capabilities = torch.cpu.get_capabilities()
    return bool(capabilities.get("amx_bf16") or capabilities.get("avx512_bf16"))
