"""Whether batches can lie in page-locked memory, from which a GPU copies without waiting."""

from __future__ import annotations

import warnings

import torch

from speedtronic.core.errors import FallbackWarning


def resolve_pin_memory(*, wanted: bool) -> bool:
    """Return whether to pin: as wanted with a CUDA device, otherwise not, with a warning."""
    if wanted and not torch.cuda.is_available():
        warnings.warn(
            FallbackWarning(
                "data.pin_memory=true needs a CUDA device, and there is none; batches lie in "
                "ordinary memory instead"
            ),
            stacklevel=3,
        )
        return False
    return wanted
