"""Loading the state of an optimizer by the names of its parameters.

``Optimizer.load_state_dict`` matches by position: another order silently gives every parameter the
moments of its neighbour and overwrites the names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from speedtronic.core.errors import IncompatibleCheckpointError
from speedtronic.optim.grouping import ParameterGroup

# How a step is computed, not what: these follow the present machine, not the one that saved.
_IMPLEMENTATION_KEYS = ("fused", "foreach", "capturable", "differentiable")
# What belongs to the parameters of a group, not to its hyperparameters.
_STRUCTURE_KEYS = ("params", "param_names", "name", "algorithm", "layouts", "row_splits")
# torch's AdamW has no tag, our cautious one has; their moments are the same.
_SAME_STATE = {(None, "adamw"), ("adamw", None)}
_NUM_NAMES_SHOWN = 3


def load_optimizer_state(optimizer: Optimizer, state: Mapping[str, Any]) -> None:
    """Restore an optimizer from its ``state_dict``, whatever the order of the parameters.

    The state is copied, so that later steps leave ``state`` as it is. A group that holds other
    parameters than any saved one keeps its own hyperparameters.

    Args:
        optimizer: Over the same parameters as the saved one, by name.
        state: A value of ``optimizer.state_dict()``.

    Raises:
        IncompatibleCheckpointError: the names or the algorithms differ, or, for an optimizer
            without names, the number of parameters.
    """
    loadable = match_by_name(optimizer, state)
    loadable["state"] = {key: _copy(value) for key, value in loadable["state"].items()}
    try:
        optimizer.load_state_dict(loadable)
    except ValueError as error:
        raise IncompatibleCheckpointError(
            f"the optimizer of the checkpoint does not fit this one: {error}"
        ) from error


def match_by_name(optimizer: Optimizer, state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a saved state in the groups, order and numbering of an optimizer.

    Where names are missing or stand for several parameters, the state goes by position.

    Args:
        optimizer: Whose parameters the state is for.
        state: A value of ``state_dict()`` of another instance; its tensors are not copied.

    Raises:
        IncompatibleCheckpointError: the names differ, or a parameter was trained by another
            algorithm.
    """
    present = optimizer.state_dict()["param_groups"]
    saved = state["param_groups"]
    if not (_are_named(present) and _are_named(saved)):
        return {"param_groups": _by_position(present, saved), "state": state["state"]}
    repeated = sorted(_repeated_names(present) | _repeated_names(saved))
    if not repeated:
        _check_algorithms(_algorithms_by_name(present), _algorithms_by_name(saved), state)
        return _rearrange(present, state)
    if [group["param_names"] for group in present] != [group["param_names"] for group in saved]:
        raise IncompatibleCheckpointError(
            f"the optimizer has several parameters named {repeated[0]}, and those of the checkpoint"
            " come in another order; give every parameter a name of its own"
        )
    return {"param_groups": _by_position(present, saved), "state": state["state"]}


def _are_named(groups: list[ParameterGroup]) -> bool:
    return all("param_names" in group for group in groups)


def _repeated_names(groups: list[ParameterGroup]) -> set[str]:
    counts = Counter(name for group in groups for name in group["param_names"])
    return {name for name, count in counts.items() if count > 1}


def _rearrange(present: list[ParameterGroup], state: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``state`` with the groups, order and numbering of the present optimizer."""
    saved_ids = _ids_by_name(state["param_groups"])
    present_ids = _ids_by_name(present)
    _check_names(present_ids.keys(), saved_ids.keys())
    saved_groups = {frozenset(group["param_names"]): group for group in state["param_groups"]}
    groups = []
    for group in present:
        source = saved_groups.get(frozenset(group["param_names"]), group)
        groups.append(_merged(group, source))
    per_parameter = {
        present_id: state["state"][saved_ids[name]]
        for name, present_id in present_ids.items()
        if saved_ids[name] in state["state"]
    }
    return {"param_groups": groups, "state": per_parameter}


def _ids_by_name(groups: list[ParameterGroup]) -> dict[str, int]:
    return {
        name: number
        for group in groups
        for name, number in zip(group["param_names"], group["params"], strict=True)
    }


def _algorithms_by_name(groups: list[ParameterGroup]) -> dict[str, Any]:
    return {name: group.get("algorithm") for group in groups for name in group["param_names"]}


def _check_algorithms(
    present: Mapping[str, Any], saved: Mapping[str, Any], state: Mapping[str, Any]
) -> None:
    moved = [name for name in present if saved.get(name, present[name]) != present[name]]
    if not moved:
        return
    if {(saved[name], present[name]) for name in moved} <= _SAME_STATE and all(
        "exp_avg" in entry for entry in state["state"].values()
    ):
        return
    shown = ", ".join(
        f"{name} ({saved[name] or 'another optimizer'} -> {present[name] or 'another optimizer'})"
        for name in moved[:_NUM_NAMES_SHOWN]
    )
    key = "optimizer.routing" if all(saved[n] and present[n] for n in moved) else "optimizer"
    more = " ..." if moved[_NUM_NAMES_SHOWN:] else ""
    raise IncompatibleCheckpointError(
        f"{key}: the checkpoint trained {shown}{more};"
        " resume with the optimizer and the routing it had"
    )


def _check_names(present: Any, saved: Any) -> None:
    missing, unexpected = sorted(present - saved), sorted(saved - present)
    if not missing and not unexpected:
        return
    parts = [
        f"{label} {', '.join(names[:_NUM_NAMES_SHOWN])}"
        + (" ..." if names[_NUM_NAMES_SHOWN:] else "")
        for label, names in (("it lacks", missing), ("it has unknown", unexpected))
        if names
    ]
    raise IncompatibleCheckpointError(
        f"the optimizer of the checkpoint belongs to another model: {'; '.join(parts)}"
    )


def _by_position(
    present: list[ParameterGroup], saved: list[ParameterGroup]
) -> list[ParameterGroup]:
    if len(present) != len(saved):
        return saved  # load_state_dict says what is wrong
    for at, (new, old) in enumerate(zip(present, saved, strict=True)):
        if new.get("algorithm") != old.get("algorithm"):
            raise IncompatibleCheckpointError(
                f"optimizer: the checkpoint trained parameter group {at} by"
                f" {old.get('algorithm') or 'another optimizer'}, this one by"
                f" {new.get('algorithm') or 'another'}; build the groups in the order they had"
            )
    return [
        {**_merged(new, old), "params": old["params"]}
        for new, old in zip(present, saved, strict=True)
    ]


def _merged(present: ParameterGroup, saved: ParameterGroup) -> ParameterGroup:
    """Return a group with the hyperparameters that were saved and the structure of the present.

    A hyperparameter that did not exist when the state was saved stays as it was built.
    """
    own = {key: present[key] for key in (*_STRUCTURE_KEYS, *_IMPLEMENTATION_KEYS) if key in present}
    return {**present, **saved, **own}


def _copy(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.clone()
    if isinstance(value, Mapping):
        return {key: _copy(item) for key, item in value.items()}
    return value
