"""Tensors to and from safetensors files, and the copies that a background writer works on."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from speedtronic.checkpoint.folder import DamagedCheckpointError

ALIASES_KEY = "speedtronic.aliases"
# Elements looked at in one go: 4 MB of float32, so that the search for NaN stays in the cache.
_CHUNK = 1 << 20
# Elements above which torch splits a copy over its threads. Where other programs share the cores,
# each split waits for a thread that is not running: 1.5 s per 100 MB, against 0.05 s for one thread
# (two cores, load 7).
_TORCH_GRAIN = 32768
# bfloat16 is the upper half of a float32: all exponent bits and a fraction make a NaN.
_BF16_MAGNITUDE = 0x7FFF
_BF16_INFINITY = 0x7F80


class TensorCopies:
    """Copies of a state's tensors in the memory of the CPU, kept from one save to the next.

    Measured per 100 MB (a model of 74 tensors and its AdamW state, two busy cores of a
    Xeon, torch 2.13): 55 ms into new memory (page faults), 18 to 40 ms into memory kept from the
    last save.
    """

    def __init__(self) -> None:
        self._kept: dict[str, dict[str, Tensor]] = {}

    @torch.no_grad()
    def take(self, tensors: Mapping[str, Mapping[str, Tensor]]) -> dict[str, dict[str, Tensor]]:
        """Copy tensors; the copies of the call before are overwritten.

        Args:
            tensors: Per file, tensors by name, on any device, in any memory layout.

        Returns:
            The same names with contiguous tensors on the CPU that share no memory.
        """
        copies: dict[str, dict[str, Tensor]] = {}
        devices: set[torch.device] = set()
        for file, sources in tensors.items():
            kept = self._kept.get(file, {})
            copies[file] = {
                name: _copy_into(kept.get(name), source) for name, source in sources.items()
            }
            devices.update(source.device for source in sources.values() if source.is_cuda)
        for device in devices:
            torch.cuda.synchronize(device)
        self._kept = copies
        return copies

    def free(self) -> None:
        """Give the memory back."""
        self._kept = {}


def _copy_into(kept: Tensor | None, source: Tensor) -> Tensor:
    if kept is None or kept.shape != source.shape or kept.dtype != source.dtype:
        # Page-locked memory lets the copies of a GPU's tensors run while the next one is queued.
        kept = torch.empty(source.shape, dtype=source.dtype, pin_memory=source.is_cuda)
    is_plain = source.is_contiguous() and not (source.is_conj() or source.is_neg())
    if source.device.type == "cpu" and is_plain and source.numel() > _TORCH_GRAIN:
        np.copyto(_bytes_of(kept), _bytes_of(source))
        return kept
    return kept.copy_(source, non_blocking=source.is_cuda)


def _bytes_of(tensor: Tensor) -> np.ndarray:
    return tensor.detach().reshape(-1).view(torch.uint8).numpy()


def name_of_nan(tensors: Mapping[str, Tensor]) -> str | None:
    """Return the name of the first tensor that holds a NaN, or None.

    One thread does it, in NumPy: torch would start threads of its own beside the ones that train.
    Infinity is allowed, attention masks in a model's buffers hold it.

    Args:
        tensors: Contiguous tensors on the CPU by name.
    """
    return next((name for name, tensor in tensors.items() if _holds_nan(tensor)), None)


def _holds_nan(tensor: Tensor) -> bool:
    if not (tensor.is_floating_point() or tensor.is_complex()) or tensor.numel() == 0:
        return False
    flat = torch.view_as_real(tensor).reshape(-1) if tensor.is_complex() else tensor.reshape(-1)
    if flat.dtype in (torch.float16, torch.float32, torch.float64):
        values = flat.numpy()
        # The minimum of numbers of which one is NaN is NaN; no copy is made.
        return any(np.isnan(part.min()) for part in _parts(values))
    if flat.dtype == torch.bfloat16:
        bits = flat.view(torch.int16).numpy()
        return any((part & _BF16_MAGNITUDE).max() > _BF16_INFINITY for part in _parts(bits))
    if flat.dtype == torch.float4_e2m1fn_x2:
        return False
    return bool(flat.to(torch.float32).isnan().any())


def _parts(values: np.ndarray) -> list[np.ndarray]:
    return [values[start : start + _CHUNK] for start in range(0, len(values), _CHUNK)]


def write_tensors(
    path: Path, tensors: Mapping[str, Tensor], *, metadata: Mapping[str, str] | None = None
) -> None:
    """Write tensors to a safetensors file and flush it to the disk.

    Args:
        path: The file to write.
        tensors: Contiguous tensors on the CPU that share no memory.
        metadata: Texts for the file's header.

    Raises:
        OSError: The disk is full or fails.
    """
    try:
        save_file(dict(tensors), path, metadata={"format": "pt", **(metadata or {})})
    except SafetensorError as error:
        # The library reports a full disk with its own type, and only in words.
        raise OSError(f"{path.name}: {error}") from error
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_tensors(path: Path, *, device: torch.device | str = "cpu") -> dict[str, Tensor]:
    """Read a safetensors file into tensors that do not depend on it any more.

    What the library returns is a window onto the file: it would change with it.

    Raises:
        DamagedCheckpointError: The file is no safetensors file.
    """
    try:
        mapped = load_file(path)
    except (SafetensorError, OSError) as error:
        raise DamagedCheckpointError(f"{path.name} cannot be read: {error}") from error
    if torch.device(device).type == "cpu":
        return {name: _copy_into(None, tensor) for name, tensor in mapped.items()}
    return {name: tensor.to(device) for name, tensor in mapped.items()}


def read_aliases(path: Path) -> dict[str, str]:
    """Return the names of tied tensors in a ``state.safetensors``, each with its stored name."""
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata() or {}
    aliases: dict[str, str] = json.loads(metadata.get(ALIASES_KEY, "{}"))
    return aliases
