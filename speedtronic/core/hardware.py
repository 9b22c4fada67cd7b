"""What the hardware is fast at, for components that choose a number format by it."""

from __future__ import annotations

import torch


def has_fast_bf16(device: torch.device) -> bool:
    """Tell whether a device multiplies bf16 matrices in hardware.

    CUDA devices from Ampere on, and CPUs with AMX or AVX512-BF16.
    """
    if device.type == "cuda":
        if device.index in (None, torch.cuda.current_device()):
            return bool(torch.cuda.is_bf16_supported(including_emulation=False))
        with torch.cuda.device(device):  # torch asks the current one
            return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if device.type != "cpu":
        return False
    capabilities = torch.cpu.get_capabilities()
    return bool(capabilities.get("amx_bf16") or capabilities.get("avx512_bf16"))
