"""Optimizers whose groups say by which algorithm they are trained."""

from __future__ import annotations

import copy
from abc import ABC
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import torch
from torch import Tensor
from torch.nn import UninitializedParameter
from torch.optim import Optimizer

from speedtronic.core.errors import ConfigError, nearest
from speedtronic.optim.grouping import ParameterGroup
from speedtronic.optim.restore import match_by_name

State: TypeAlias = MutableMapping[Tensor, dict[str, Any]]


@dataclass(frozen=True)
class Algorithm:
    """How the groups of one tag are checked and updated."""

    defaults: Mapping[str, Any]
    """Values of the keys that a group does not give; a group has no other keys of its own."""
    check: Callable[[ParameterGroup], None]
    """Raises ConfigError for a group that cannot be trained this way."""
    update: Callable[[ParameterGroup, State], None]
    """Takes one step with those parameters of a group that have a gradient."""


class TaggedOptimizer(Optimizer, ABC):
    """One optimizer for schedules, scalers, hooks and checkpoints, whatever its algorithms.

    State is created when a parameter first steps, so that clearing ``state`` resets the optimizer.
    """

    algorithms: ClassVar[Mapping[str, Algorithm]]
    """What a group's key ``algorithm`` may say; the first is taken where it says nothing."""

    def add_param_group(self, param_group: ParameterGroup) -> None:
        """Add a group with its algorithm's defaults, after checking parameters and numbers.

        Raises:
            ConfigError: the algorithm cannot train one of them, or a value is out of its range.
        """
        tag = param_group.get("algorithm", next(iter(self.algorithms)))
        if tag not in self.algorithms:
            raise ConfigError(
                f"algorithm must be one of {', '.join(self.algorithms)}, got {tag!r}; correct the"
                " parameter group"
            )
        # Copies, because a default may be a dict that a group then calls its own.
        defaults = copy.deepcopy({**self.algorithms[tag].defaults, **self.defaults})
        group = {**defaults, "algorithm": tag, **param_group}
        _refuse_unknown_keys(group, self.algorithms[tag].defaults)
        super().add_param_group(group)
        try:
            _refuse_duplicates(group)
            self.algorithms[tag].check(group)
        except BaseException:
            del self.param_groups[-1]
            raise

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step.

        Parameters without a gradient are left alone, decay included, and no gradient is changed.

        Args:
            closure: Computes loss and gradients; called once.

        Returns:
            What the closure returned, None without one.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            self.algorithms[group["algorithm"]].update(group, self.state)
        return loss

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load a state by the names of the parameters, in whatever order they come.

        Tensors keep their number format; torch's own way would turn the fp32 averages of bf16
        weights into bf16.

        Raises:
            IncompatibleCheckpointError: the names differ, or a parameter was trained by another
                algorithm.
        """
        matched = match_by_name(self, state_dict)
        super().load_state_dict(matched)
        by_number = [parameter for group in self.param_groups for parameter in group["params"]]
        numbers = [number for group in matched["param_groups"] for number in group["params"]]
        for number, parameter in zip(numbers, by_number, strict=True):
            for key, value in matched["state"].get(number, {}).items():
                if isinstance(value, Tensor) and value.dtype != self.state[parameter][key].dtype:
                    self.state[parameter][key] = value.to(parameter.device, copy=True)


def _refuse_unknown_keys(group: ParameterGroup, defaults: Mapping[str, Any]) -> None:
    known = {*defaults, "params", "param_names", "name", "algorithm"}
    for key in group:
        if key not in known and not key.startswith("initial_"):
            close = nearest(key, known)
            advice = f"did you mean {close!r}?" if close else f"known: {', '.join(sorted(known))}"
            raise ConfigError(
                f"{key}: unknown key of a group of {group['algorithm']}, got {group[key]!r};"
                f" {advice}"
            )


def _refuse_duplicates(group: ParameterGroup) -> None:
    # torch only warns, and would update such a parameter twice.
    if len({id(parameter) for parameter in group["params"]}) != len(group["params"]):
        raise ConfigError("params: a parameter appears twice in one group; give each once")


def described(group: ParameterGroup, index: int) -> str:
    """Return the name of a parameter of a group, or its position, with its shape."""
    names = group.get("param_names")
    name = names[index] if names else f"number {index}"
    return f"parameter {name} of shape {tuple(group['params'][index].shape)}"


def check_numbers(group: ParameterGroup, ranges: Mapping[str, tuple[float, float]]) -> None:
    """Check hyperparameters against half-open ranges ``[low, high)``.

    Raises:
        ConfigError: naming key, range and value.
    """
    for key, (low, high) in ranges.items():
        value = group[key]
        # torch allows a rate in a tensor.
        is_number = isinstance(value, int | float | Tensor) and not isinstance(value, bool)
        if not is_number or not low <= value < high:
            raise ConfigError(f"{key} must be at least {low:g} and below {high:g}, got {value!r}")


def check_tensors(group: ParameterGroup, *, allows_complex: bool = False) -> None:
    """Refuse parameters whose entries an update could not reach one by one, or that have none yet.

    Args:
        group: Whose parameters are checked.
        allows_complex: Whether complex numbers can be trained.

    Raises:
        ConfigError: naming the parameter.
    """
    for index, parameter in enumerate(group["params"]):
        if isinstance(parameter, UninitializedParameter):
            raise ConfigError(
                "params: a parameter of a lazy module has no shape yet; run one batch through the"
                " model first"
            )
        if parameter.layout is not torch.strided:
            raise ConfigError(f"{described(group, index)} is sparse; train it with SparseAdam")
        if not (parameter.is_floating_point() or (allows_complex and parameter.is_complex())):
            kind = str(parameter.dtype).removeprefix("torch.")
            raise ConfigError(
                f"{described(group, index)} is {kind}, not real floating point; freeze it or train"
                " it with another optimizer"
            )


def refuse_sharded(group: ParameterGroup) -> None:
    """Refuse parameters of which a process holds a part: its polar factor is not the whole's.

    Raises:
        ConfigError: naming the parameter.
    """
    for index, parameter in enumerate(group["params"]):
        if hasattr(parameter, "device_mesh"):  # DTensor
            raise ConfigError(
                f"{described(group, index)} is sharded; Muon needs the whole matrix: train it with"
                " AdamW"
            )


def gradient_of(parameter: Tensor, group: ParameterGroup) -> Tensor:
    """Return a parameter's gradient.

    Raises:
        RuntimeError: it is sparse.
    """
    gradient = parameter.grad
    assert gradient is not None  # callers take those with a gradient
    if gradient.layout is not torch.strided:
        raise RuntimeError(
            f"{group['algorithm']} takes no sparse gradients, got one for a parameter of shape"
            f" {tuple(parameter.shape)}; build its embedding with sparse=False"
        )
    return gradient
