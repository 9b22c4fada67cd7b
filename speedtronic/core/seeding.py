"""The random state of a process: seed it, read it as plain values, put it back.

Nothing here knows which generator a caller uses; evaluation and sampling draw from their own.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

# NumPy's global seed and PYTHONHASHSEED take 32 bits; more in the latter ends every child Python.
_SEED_MODULUS = 2**32


def seed_everything(seed: int) -> None:
    """Seed Python, NumPy and PyTorch on every device, and set PYTHONHASHSEED for child processes.

    PYTHONHASHSEED and NumPy get the seed modulo 2**32, which is all they accept. A failure of
    NumPy is ignored, as the contract says: it is not needed to train.

    Args:
        seed: Any integer; 0 is a seed like every other.
    """
    random.seed(seed)
    os.environ["PYTHONHASHSEED"] = str(seed % _SEED_MODULUS)
    try:
        import numpy as np

        np.random.seed(seed % _SEED_MODULUS)  # noqa: NPY002 - the global state that user code draws from
    except Exception:  # noqa: BLE001, S110 - the contract: "NumPy failures are ignored"
        pass
    torch.manual_seed(seed)
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(seed)


def rng_state() -> dict[str, Any]:
    """Return the random state of Python, NumPy, PyTorch and, where used, CUDA.

    The tree holds only dicts with string keys, lists, numbers, strings, None and uint8 tensors, so
    it can be stored without pickling.

    Returns:
        ``{"python": [...], "numpy": {...} or None, "torch": tensor, "cuda": [tensor, ...]}``.
    """
    version, words, gauss = random.getstate()
    return {
        "python": [version, list(words), gauss],
        "numpy": _numpy_state(),
        "torch": torch.get_rng_state(),
        "cuda": _cuda_states(),
    }


def set_rng_state(state: dict[str, Any]) -> None:
    """Put back what ``rng_state`` returned.

    States of CUDA devices that this machine does not have are left out; there is nothing to set.

    Args:
        state: A value of ``rng_state``, possibly read back from a file.
    """
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    _set_numpy_state(state["numpy"])
    torch.set_rng_state(state["torch"].cpu())
    num_devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
    for index, device_state in enumerate(state["cuda"][:num_devices]):
        torch.cuda.set_rng_state(device_state.cpu(), index)


@dataclass(frozen=True, slots=True)
class RngSnapshot:
    """The random state as the libraries return it: for this process only, not for a file."""

    python: tuple[Any, ...]
    """Of ``random``."""
    numpy: dict[str, Any] | None
    """Of NumPy's global generator; None without NumPy."""
    torch: Tensor
    """Of the CPU generator."""
    cuda: list[Tensor]
    """Of each CUDA device, where there are any."""


def snapshot_rng() -> RngSnapshot:
    """Return the same state as ``rng_state``, quicker, for a restore in this process.

    37 us against 45 us on one shared CPU core, the median of 3000 calls; NumPy's own reading of
    its state takes 27 us of them.
    """
    return RngSnapshot(random.getstate(), _raw_numpy_state(), torch.get_rng_state(), _cuda_states())


def restore_rng(snapshot: RngSnapshot) -> None:
    """Put back what ``snapshot_rng`` returned."""
    random.setstate(snapshot.python)
    if snapshot.numpy is not None:
        import numpy as np

        np.random.set_state(snapshot.numpy)  # noqa: NPY002 - the global state
    torch.set_rng_state(snapshot.torch)
    for index, device_state in enumerate(snapshot.cuda):
        torch.cuda.set_rng_state(device_state, index)


@contextmanager
def preserve_rng() -> Iterator[None]:
    """Leave the random state as it was on entry, whatever the body draws or raises."""
    snapshot = snapshot_rng()
    try:
        yield
    finally:
        restore_rng(snapshot)


def _cuda_states() -> list[Tensor]:
    if torch.cuda.is_available() and torch.cuda.device_count() > 0:
        return torch.cuda.get_rng_state_all()
    return []


def _raw_numpy_state() -> dict[str, Any] | None:
    try:
        import numpy as np
    except ImportError:
        return None
    return dict(np.random.get_state(legacy=False))  # noqa: NPY002 - the global state


def _numpy_state() -> dict[str, Any] | None:
    state = _raw_numpy_state()
    if state is None:
        return None
    return {**state, "state": {"key": state["state"]["key"].tolist(), "pos": state["state"]["pos"]}}


def _set_numpy_state(state: dict[str, Any] | None) -> None:
    if state is None:
        return
    try:
        import numpy as np
    except ImportError:
        return
    key = np.array(state["state"]["key"], dtype=np.uint32)
    np.random.set_state({**state, "state": {**state["state"], "key": key}})  # noqa: NPY002 - the global state
