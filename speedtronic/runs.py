"""Opening a finished or running run folder for use: its model, tokenizer and configuration."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from speedtronic.checkpoint.folder import read_manifest
from speedtronic.checkpoint.locating import find_checkpoint
from speedtronic.checkpoint.weights import check_model_state, load_weights
from speedtronic.config import SpeedtronicConfig, load_config
from speedtronic.core.errors import ConfigError
from speedtronic.core.types import Tokenizer
from speedtronic.data.tokenizers import tokenizer_from_dict
from speedtronic.precision import resolve_device
from speedtronic.run_folder.layout import RunFolder, read_json


@dataclass(frozen=True, kw_only=True)
class Run:
    """What a trained run is used with."""

    model: nn.Module
    """The model with the checkpoint's weights, in evaluation mode."""
    tokenizer: Tokenizer | None
    """The tokenizer it was trained with, None where the data had none."""
    config: SpeedtronicConfig
    """The configuration it was trained with."""
    step: int
    """Step of the checkpoint."""
    folder: Path
    """The run folder."""


def load_run(
    folder: str | os.PathLike[str],
    *,
    checkpoint: str | int = "best",
    device: str | torch.device = "cpu",
    allow_targets: Sequence[str] = (),
) -> Run:
    """Open a run folder; nothing in it is changed.

    Args:
        folder: The run folder.
        checkpoint: ``best`` (lowest held-out loss, else the newest), ``latest``, or a step.
        device: Where the model goes.
        allow_targets: Further packages that the saved configuration's ``_target_`` may name.

    Raises:
        ConfigError: the folder is no run, or has no such checkpoint.
        IncompatibleCheckpointError: the model's code has changed since.
    """
    layout = RunFolder(Path(folder))
    saved = read_json(layout.config_json)
    if saved is None:
        raise ConfigError(
            f"{folder} must be a run folder, but holds no config.json; check the path"
        )
    config = load_config(saved, allow_targets=tuple(allow_targets))
    path = find_checkpoint(layout.path, checkpoint=checkpoint)
    weights = load_weights(path)
    tokenizer_facts = read_json(layout.tokenizer)
    tokenizer = None if tokenizer_facts is None else tokenizer_from_dict(tokenizer_facts)
    facts: dict[str, Any] = (read_json(layout.run_json) or {}).get("facts", {})
    model = config.model.build(vocab_size=facts.get("data", {}).get("vocab_size"))
    check_model_state(model, weights)
    model.load_state_dict(weights)
    return Run(
        model=model.to(resolve_device(device)).eval(),
        tokenizer=tokenizer,
        config=config,
        step=read_manifest(path).step,
        folder=layout.path,
    )
