"""Which parameters an optimizer gets, and which of them decay."""

from __future__ import annotations

import re
from typing import Any, Literal, TypeAlias

from torch import nn

from speedtronic.core.errors import ConfigError

DecayRule: TypeAlias = Literal["matrices", "all"]
ParameterGroup: TypeAlias = dict[str, Any]

DECAYED = "decay"
"""Name of the group that decays; always the first."""
NOT_DECAYED = "no_decay"
"""Name of the group that never decays."""

_MIN_MATRIX_DIMENSIONS = 2
# LayerNorm, RMSNorm, BatchNorm2d and users' norms; their weights may have several dimensions.
_NORM_TYPE_NAME = re.compile(r"Norm(\dd)?$")
# Whole words between underscores: absolute_pos_embed and decoder_pos_embed, but not compose_embed.
_POSITIONAL_NAME = re.compile(
    r"""(^|_)(
        pos(ition(al)?)?_(emb(ed(ding)?)?|enc(oding)?)s?
      | wpe
      | (cls|class|mask|dist|distillation|reg|register)_tokens?
      | rel(ative)?_pos(ition)?_(bias_table|bias|table|h|w)
    )$""",
    re.VERBOSE,
)


def trainable_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return every trainable parameter once, tied ones under their first name.

    Raises:
        ConfigError: the model has none.
    """
    parameters = {
        name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad
    }
    if not parameters:
        raise ConfigError(
            f"model must have a trainable parameter, got {type(model).__name__} with none; "
            "check requires_grad"
        )
    return parameters


def decay_groups(
    model: nn.Module, *, weight_decay: float, decay: DecayRule = "matrices"
) -> list[ParameterGroup]:
    """Split the trainable parameters into one group that decays and one that does not.

    With ``matrices``, embeddings (also as a tied head), tables of positions, norms, biases and
    everything below two dimensions do not decay. With ``all``, everything does.

    Args:
        model: Any module; frozen parameters are left out.
        weight_decay: Of the first group.
        decay: Which parameters decay.

    Returns:
        One or two groups with named parameters, the decayed one first; no group is empty.

    Raises:
        ConfigError: the model has no trainable parameter.
    """
    parameters = trainable_parameters(model)
    exempt = exempt_parameters(model) if decay == "matrices" else set()
    decayed = [item for item in parameters.items() if id(item[1]) not in exempt]
    others = [item for item in parameters.items() if id(item[1]) in exempt]
    groups: list[ParameterGroup] = [
        {"params": decayed, "name": DECAYED, "weight_decay": weight_decay},
        {"params": others, "name": NOT_DECAYED, "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def is_norm(module: nn.Module) -> bool:
    """Tell whether a module is a norm, by the name of its type."""
    return bool(_NORM_TYPE_NAME.search(type(module).__name__))


def is_positional(leaf: str) -> bool:
    """Tell whether a name is that of a table of positions or of a class or mask token."""
    return bool(_POSITIONAL_NAME.search(leaf))


def exempt_parameters(model: nn.Module) -> set[int]:
    """Return the ids of parameters that do not decay; by identity, so that ties do not matter."""
    exempt = set()
    for path, module in model.named_modules():
        keeps_all = isinstance(module, nn.Embedding | nn.EmbeddingBag) or is_norm(module)
        for name, parameter in module.named_parameters(recurse=False):
            leaf = path.rpartition(".")[2] if name == "weight" else name
            is_matrix = parameter.ndim >= _MIN_MATRIX_DIMENSIONS and not is_positional(leaf)
            # nn.MultiheadAttention's bias_k and bias_v have three dimensions.
            if keeps_all or not is_matrix or name in ("bias", "bias_k", "bias_v"):
                exempt.add(id(parameter))
    return exempt
