"""Weights for others: found in a run, loaded alone, exported, compared with a model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from speedtronic.checkpoint.codec import decode
from speedtronic.checkpoint.folder import (
    STATE_FILE,
    DamagedCheckpointError,
    read_manifest,
    temporary_path,
    verify_files,
)
from speedtronic.checkpoint.locating import find_checkpoint
from speedtronic.checkpoint.tensor_files import read_aliases, read_tensors, write_tensors
from speedtronic.core.errors import CheckpointError, ConfigError, IncompatibleCheckpointError
from speedtronic.core.files import fsync_dir, write_json

if TYPE_CHECKING:
    from os import PathLike

    from torch import nn

WEIGHTS_SUFFIX = ".safetensors"
_MAX_NAMED = 5


def load_weights(
    path: str | PathLike[str], *, checkpoint: str | int | None = None
) -> dict[str, Tensor]:
    """Read the weights of a run, a checkpoint or a safetensors file.

    Args:
        path: A run folder, a folder of checkpoints, one checkpoint, or a ``.safetensors`` file.
        checkpoint: ``"best"``, ``"latest"`` or a step; None: the best, else the newest good one.

    Returns:
        Tensors on the CPU by parameter name, independent of the files; tied ones are one object.

    Raises:
        ConfigError: There is no such file or checkpoint.
        CheckpointError: The checkpoint is damaged or holds no model.
    """
    source = Path(path)
    if source.is_file():
        return _load_file(source)
    return _load_model(find_checkpoint(source, checkpoint=checkpoint))


def _load_file(path: Path) -> dict[str, Tensor]:
    if path.suffix != WEIGHTS_SUFFIX:
        raise ConfigError(
            f"{path} must be a run folder, a checkpoint or a {WEIGHTS_SUFFIX} file; pickled "
            "weights are never loaded"
        )
    weights = read_tensors(path)
    for alias, name in read_aliases(path).items():
        weights[alias] = weights[name]
    return weights


def _load_model(path: Path) -> dict[str, Tensor]:
    try:
        manifest = read_manifest(path)
        verify_files(path, manifest, names=[STATE_FILE])
        tensors = {STATE_FILE: read_tensors(path / STATE_FILE)}
        model = decode(manifest.state.get("model"), tensors)
    except CheckpointError as error:
        raise DamagedCheckpointError(f"{path} is no whole checkpoint: {error}") from error
    if not isinstance(model, dict):
        raise CheckpointError(f"{path} holds no model")
    return {name: value for name, value in model.items() if isinstance(value, Tensor)}


def config_path_of(out: str | PathLike[str]) -> Path:
    """Return where ``export_weights`` puts the configuration of the weights it writes."""
    return Path(out).with_suffix(".json")


def export_weights(checkpoint: str | PathLike[str], out: str | PathLike[str]) -> None:
    """Write a checkpoint's weights for any reader of safetensors, its configuration beside them.

    Tied tensors are written under each of their names, so that a plain ``load_state_dict`` of the
    file works.

    Args:
        checkpoint: The checkpoint's directory.
        out: A new ``.safetensors`` file; the configuration gets the same name with ``.json``.

    Raises:
        ConfigError: A file is there already, or the name has another ending.
        CheckpointError: The checkpoint is damaged or holds no model.
        OSError: The files cannot be written.
    """
    weights_path, config_path = Path(out), config_path_of(out)
    if weights_path.suffix != WEIGHTS_SUFFIX:
        raise ConfigError(f"export must end in {WEIGHTS_SUFFIX}, got {weights_path}")
    for path in (weights_path, config_path):
        if path.exists():
            raise ConfigError(f"export never overwrites a file, {path} exists; give another name")
    source = Path(checkpoint)
    weights = _load_model(source)
    manifest = read_manifest(source)
    weights_path.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_path(weights_path.parent)
    try:
        separate = {name: tensor.clone() for name, tensor in weights.items()}
        write_tensors(temporary, separate, metadata={"step": str(manifest.step)})
        write_json(config_path, manifest.state.get("config") or {})
        temporary.replace(weights_path)
    finally:
        temporary.unlink(missing_ok=True)
    fsync_dir(weights_path.parent)


def check_model_state(model: nn.Module, state: Mapping[str, Any]) -> None:
    """Compare a checkpoint's tensors with a model's, before anything is loaded.

    Args:
        model: The model to load into.
        state: A whole saved state, or its ``"model"`` part.

    Raises:
        IncompatibleCheckpointError: Names or shapes differ; the message names up to five tensors.
    """
    part = state.get("model")
    saved = part if isinstance(part, Mapping) else state
    wanted = {name: value for name, value in model.state_dict().items() if _has_shape(value)}
    found = {name: value for name, value in saved.items() if _has_shape(value)}
    problems = list(_differences(wanted, found))
    if not problems:
        return
    named = "; ".join(problems[:_MAX_NAMED])
    if len(problems) > _MAX_NAMED:
        named += f"; and {len(problems) - _MAX_NAMED} more"
    raise IncompatibleCheckpointError(
        f"the checkpoint belongs to another model: {named}; build the model with the "
        "checkpoint's settings"
    )


def _has_shape(value: Any) -> bool:
    return isinstance(value, Tensor)


def _differences(wanted: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> Iterator[str]:
    for name, tensor in wanted.items():
        if name in found and found[name].shape != tensor.shape:
            yield (
                f"{name} has shape {tuple(found[name].shape)}, the model's has "
                f"{tuple(tensor.shape)}"
            )
    for name, tensor in wanted.items():
        if name not in found:
            yield f"{name} {tuple(tensor.shape)} is missing"
    for name, tensor in found.items():
        if name not in wanted:
            yield f"{name} {tuple(tensor.shape)} is unexpected"
