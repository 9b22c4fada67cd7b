"""Any optimizer class over the groups of a model."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from torch import nn
from torch.optim import Optimizer

from speedtronic.core.errors import ConfigError
from speedtronic.optim.grouping import DecayRule, decay_groups, trainable_parameters


def build_foreign_optimizer(
    cls: type[Optimizer],
    model: nn.Module,
    *,
    arguments: Mapping[str, Any],
    decay: DecayRule = "matrices",
) -> Optimizer:
    """Build an optimizer of any class, with our split into decayed and other parameters.

    A class without ``weight_decay`` gets one group with everything.

    Args:
        cls: Takes parameters or groups first, as all of ``torch.optim`` do.
        model: Any module with a trainable parameter.
        arguments: Keywords of the class; ``weight_decay`` among them goes to the decayed group.
        decay: Which parameters decay, see ``decay_groups``.

    Raises:
        ConfigError: the class refuses the arguments or the parameters, or there are none.
    """
    known = inspect.signature(cls).parameters
    if "weight_decay" in known:
        weight_decay = arguments.get("weight_decay", known["weight_decay"].default)
        groups = decay_groups(model, weight_decay=weight_decay, decay=decay)
    else:
        groups = [{"params": list(trainable_parameters(model).items())}]
    try:
        return cls(groups, **arguments)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"optimizer: {cls.__name__} could not be built: {error}") from error
