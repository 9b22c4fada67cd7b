"""Parameter groups of Muon: what a group may hold, and how its parameters are read.

Legend: R rows (outputs), C columns (inputs) of a matrix.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, TypeAlias

from speedtronic.core.errors import ConfigError
from speedtronic.optim.grouping import ParameterGroup
from speedtronic.optim.matrices import (
    MATRIX_DIMENSIONS,
    Layout,
    default_layout,
    fits_layout,
    matrix_shape,
)
from speedtronic.optim.polar import coefficients_of
from speedtronic.optim.rescaling import RESCALINGS
from speedtronic.optim.tagged import check_numbers, check_tensors, described, refuse_sharded

Scale: TypeAlias = Literal["original", "match_rms_adamw", "spectral_unclamped"]

SCALES: dict[Scale, Callable[[int, int], float]] = {
    # Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/.
    "original": lambda rows, columns: math.sqrt(max(1.0, rows / columns)),
    # Liu et al. 2025, https://arxiv.org/abs/2502.16982: the update has the RMS of AdamW's, 0.2.
    "match_rms_adamw": lambda rows, columns: 0.2 * math.sqrt(max(rows, columns)),
    # Bernstein 2025, https://jeremybernste.in/writing/deriving-muon.
    "spectral_unclamped": lambda rows, columns: math.sqrt(rows / columns),
}


def layout_of(group: ParameterGroup, index: int) -> Layout:
    """Return how a parameter of a group is read as a matrix; ``check_muon_group`` has passed."""
    names = group.get("param_names")
    given: Layout | None = group["layouts"].get(names[index]) if names else None
    layout = given or default_layout(group["params"][index].shape)
    assert layout is not None  # refused by check_muon_group
    return layout


def row_splits_of(group: ParameterGroup, index: int) -> tuple[int, ...]:
    """Return the rows of the independent blocks of a parameter, () for one block."""
    names = group.get("param_names")
    return tuple(group["row_splits"].get(names[index], ())) if names else ()


def check_muon_group(group: ParameterGroup) -> None:
    """Check that Muon can train a group.

    Raises:
        ConfigError: a parameter is sparse, complex, sharded or no matrix, a layout or a split does
            not fit it, or a value is out of its range.
    """
    check_tensors(group)
    refuse_sharded(group)
    check_muon_numbers(group)
    if group["normuon_beta2"] is not None:
        check_numbers(group, {"normuon_beta2": (0, 1)})
    for key, known in (
        ("scale", tuple(SCALES)),
        ("muon_plus", (None, *RESCALINGS)),
        ("cautious", (None, "wd", "update")),
    ):
        if group[key] not in known:
            shown = ", ".join(map(str, known))
            raise ConfigError(f"{key} must be one of {shown}, got {group[key]!r}")
    try:
        coefficients_of(group["orthogonalization"], num_steps=group["ns_steps"])
    except ValueError as error:
        raise ConfigError(f"orthogonalization, ns_steps: {error}") from error
    names = group.get("param_names", ())
    for key in ("layouts", "row_splits"):
        unknown = sorted(set(group[key]) - set(names))
        if unknown:
            raise ConfigError(
                f"{key}: no parameter of the group is named {unknown[0]!r}; give named parameters"
            )
    for index in range(len(group["params"])):
        _check_matrix(group, index)


def check_muon_numbers(group: ParameterGroup) -> None:
    """Check the numbers that every Muon has.

    Raises:
        ConfigError: naming key, range and value.
    """
    anything = (0, math.inf)
    check_numbers(group, {"lr": anything, "momentum": (0, 1), "weight_decay": anything})
    check_numbers(group, {"eps": anything})
    if group["eps"] == 0:
        raise ConfigError("eps must be above 0, got 0: a gradient of zeros would give NaN")


def _check_matrix(group: ParameterGroup, index: int) -> None:
    parameter, what = group["params"][index], described(group, index)
    if not parameter.numel():
        raise ConfigError(f"{what} is empty; leave it out")
    if parameter.ndim < MATRIX_DIMENSIONS:
        raise ConfigError(
            f"{what} is no matrix; give it to AdamW, in a group of a HybridOptimizer with"
            " algorithm='adamw'"
        )
    names = group.get("param_names")
    layout = group["layouts"].get(names[index]) if names else None
    layout = layout or default_layout(parameter.shape)
    if layout is None:
        raise ConfigError(
            f"{what} may be a stack of matrices or a convolution;"
            " name it in layouts as 'stack' or 'flatten'"
        )
    if not fits_layout(parameter.shape, layout):
        raise ConfigError(f"{what} does not fit the layout {layout!r}")
    splits = row_splits_of(group, index)
    rows, _ = matrix_shape(parameter.shape, layout)
    if splits and (sum(splits) != rows or min(splits) < 1):
        raise ConfigError(
            f"row_splits {list(splits)} of {what} must be positive and sum to its {rows} rows,"
            f" got {sum(splits)}"
        )
