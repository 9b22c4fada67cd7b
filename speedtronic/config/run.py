"""Settings of the run as a whole: its name, seed, device and length."""

from __future__ import annotations

import re
from typing import Annotated, ClassVar

from pydantic import AfterValidator, Field

from speedtronic.core.settings import PathText, Settings

_LARGEST_SEED = 2**32 - 1  # NumPy and PYTHONHASHSEED take 32 bits


def _check_name(name: str) -> str:
    if not re.fullmatch(r"[^\s/\\\x00-\x1f][^/\\\x00-\x1f]*", name) or name in (".", ".."):
        raise ValueError("must be the name of one folder")
    return name


def _check_device(device: str) -> str:
    if not re.fullmatch(r"auto|cpu|mps|cuda(:\d+)?", device):
        raise ValueError("must be auto, cpu, mps, cuda or cuda:N")
    return device


class RunSettings(Settings):
    """Name, seed, device, length and folder of a run."""

    section: ClassVar[str] = "run"

    name: Annotated[str, AfterValidator(_check_name)] = "speedtronic"
    """Names the run; its folders are below outputs/<name>."""
    seed: Annotated[int, Field(ge=0, le=_LARGEST_SEED)] = 1234
    """Seed of every random stream; 0 is a seed."""
    device: Annotated[str, AfterValidator(_check_device)] = "auto"
    """auto (CUDA, else MPS, else CPU), cpu, mps, cuda or cuda:N."""
    max_steps: Annotated[int, Field(ge=1)] = 1000
    """Updates to train for; data.max_steps goes first."""
    max_minutes: Annotated[float, Field(gt=0)] | None = None
    """Minutes after which the run saves and stops with status interrupted; null: no limit."""
    output_dir: PathText | None = None
    """Run folder; null: Hydra's on the command line, else outputs/<name>/<time>."""
