"""Which modules are the output heads of a model, told by structure and by exact names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable

from torch import nn

from speedtronic.optim.grouping import is_positional
from speedtronic.optim.placement import (
    CONVOLUTIONS,
    EMBEDDINGS,
    LOW_RANK_NAMES,
    ancestors,
    last_component,
)

_HEAD_NAMES = frozenset(
    {"lm_head", "head", "heads", "unembed", "unembedding", "classifier", "score", "decoder"}
)
_CONTAINERS = (nn.ModuleList, nn.Sequential, nn.ModuleDict)


def output_heads(model: nn.Module) -> set[int]:
    """Return the ids of the modules that give the outputs of a model.

    A linear layer or 1x1 convolution outside repeated blocks is one if it has as many outputs as
    an embedding of the model has rows and another number of inputs, or a name such as ``lm_head``
    or ``policy_head``, or is the last linear layer of the model. An encoder that ends in its
    blocks has none.
    """
    modules = dict(model.named_modules())
    repeated = _repeated_blocks(modules)
    last = _last_linear(modules)
    # A table of positions may be as long as the model is wide; that says nothing about outputs.
    vocabulary_sizes = {
        module.num_embeddings
        for path, module in modules.items()
        if isinstance(module, EMBEDDINGS) and not is_positional(last_component(path))
    }
    heads = set()
    for path, module in modules.items():
        num_outputs = _num_outputs(module)
        if num_outputs is None:
            continue
        if any(id(ancestor) in repeated for ancestor in ancestors(path, modules)):
            continue
        # Where the vocabulary is as large as the model is wide, its size says nothing either.
        has_size = num_outputs in vocabulary_sizes and num_outputs != _num_inputs(module)
        if module is last or _is_head_name(last_component(path)) or has_size:
            heads.add(id(module))
    return heads


def _last_linear(modules: dict[str, nn.Module]) -> nn.Module | None:
    """Return the linear layer registered last, unless it closes an attention module."""
    linears = [
        path
        for path, module in modules.items()
        if isinstance(module, nn.Linear) and LOW_RANK_NAMES.isdisjoint(path.split("."))
    ]
    if not linears:
        return None
    is_of_attention = any(
        isinstance(ancestor, nn.MultiheadAttention) for ancestor in ancestors(linears[-1], modules)
    )
    return None if is_of_attention else modules[linears[-1]]


def _is_head_name(name: str) -> bool:
    return name in _HEAD_NAMES or name.endswith("_head")


def _num_inputs(module: nn.Module) -> int | None:
    return module.in_features if isinstance(module, nn.Linear) else None


def _num_outputs(module: nn.Module) -> int | None:
    if isinstance(module, nn.Linear):
        return module.out_features
    if isinstance(module, CONVOLUTIONS) and set(module.kernel_size) == {1}:
        return module.out_channels
    return None


def _repeated_blocks(modules: dict[str, nn.Module]) -> set[int]:
    """Return the ids of container elements that stand beside another element of their kind."""
    repeated = set()
    for container in modules.values():
        elements = _elements(container)
        counts = Counter(_kind(element) for element in elements)
        repeated |= {id(element) for element in elements if counts[_kind(element)] > 1}
    return repeated


def _elements(module: nn.Module) -> list[nn.Module]:
    """Return the elements of a container; one object that stands in it twice is two of them."""
    if not isinstance(module, _CONTAINERS):
        return []
    elements = module.values() if isinstance(module, nn.ModuleDict) else module
    return [element for element in elements if isinstance(element, nn.Module)]


def _kind(module: nn.Module) -> Hashable:
    """Return what makes two modules the same kind of block: the type.

    A plain container says nothing by its type: there it is what it holds, however often, so that
    ``Sequential(Flatten, Linear)`` after stages of convolutions is no repetition of them.
    """
    held = _elements(module) if type(module) in _CONTAINERS else []
    return type(module), frozenset(_kind(element) for element in held)
