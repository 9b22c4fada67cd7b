"""Trees of state: plain containers only, names of the eager model, and copies that stand alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from speedtronic.trainer.features import plain_name


def model_state(model: nn.Module) -> dict[str, Any]:
    """Return a model's state under the names of the eager model; tensors are the live ones."""
    return {plain_name(name): value for name, value in model.state_dict().items()}


def load_model_state(model: nn.Module, state: Mapping[str, Any]) -> None:
    """Load a state saved from the eager or the compiled model into either.

    Raises:
        RuntimeError: names or shapes do not fit, from ``nn.Module.load_state_dict``.
    """
    own_names = {plain_name(name): name for name in model.state_dict()}
    renamed = {
        own_names.get(plain_name(name), plain_name(name)): value for name, value in state.items()
    }
    model.load_state_dict(renamed)


def plain_tree(tree: Any) -> Any:
    """Return a tree with every mapping as a dict, tensors detached but not copied."""
    return _map_tree(tree, copy=False)


def copy_tree(tree: Any) -> Any:
    """Return a tree with every mapping as a dict and every tensor copied."""
    return _map_tree(tree, copy=True)


def _map_tree(tree: Any, *, copy: bool) -> Any:
    if isinstance(tree, Tensor):
        return tree.detach().clone() if copy else tree.detach()
    if isinstance(tree, Mapping):
        return {key: _map_tree(value, copy=copy) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_map_tree(value, copy=copy) for value in tree]
    if isinstance(tree, tuple) and not hasattr(tree, "_fields"):
        return tuple(_map_tree(value, copy=copy) for value in tree)
    return tree


def has_finite_weights(model: nn.Module) -> bool:
    """Tell whether every trainable parameter is finite; waits for the device once."""
    flags = [
        torch.isfinite(p.detach()).all()
        for p in model.parameters()
        if p.requires_grad and p.numel()
    ]
    return bool(torch.stack(flags).all()) if flags else True
