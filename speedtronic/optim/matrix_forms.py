"""How a parameter is read as matrices: where its rows are, and which rows belong together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from speedtronic.core.errors import ConfigError, nearest
from speedtronic.optim.matrices import MATRIX_DIMENSIONS, Layout, matrix_shape
from speedtronic.optim.placement import (
    CONVOLUTIONS,
    TRANSPOSED_CONVOLUTIONS,
    Place,
    PlacedParameter,
    last_component,
)

ROW_SPLITS_ATTRIBUTE = "muon_row_splits"
"""Of a module with fused projections: parameter name, relative to it, to the rows of its blocks."""

_STACK_DIMENSIONS = 3
_ATTENTION_PROJECTIONS = ("q_proj_weight", "k_proj_weight", "v_proj_weight")
_FUSED_COUNTS = (2, 3)  # GPT-2's c_attn: queries, keys, values; keys and values across


@dataclass(frozen=True, kw_only=True)
class MatrixForm:
    """A parameter as independent matrices."""

    layout: Layout = "matrix"
    row_splits: tuple[int, ...] = ()
    """Rows of the independent blocks, () for one block."""

    def num_rows(self, shape: Sequence[int]) -> int:
        """Return the rows of one matrix, all its blocks together."""
        return matrix_shape(shape, self.layout)[0]

    def narrowest_side(self, shape: Sequence[int]) -> int:
        """Return the smallest side of any block."""
        rows, columns = matrix_shape(shape, self.layout)
        return min(columns, *(self.row_splits or (rows,)))


def known_form(placed: PlacedParameter) -> MatrixForm | None:
    """Return how the type of an owning module says to read a parameter; None if none does."""
    for place in placed.places:
        form = _form_in_place(place, placed.parameter)
        if form is not None:
            return form
    return None


def assumed_form(placed: PlacedParameter) -> MatrixForm:
    """Return how to read a parameter that was sent to Muon, but not by the type of its module.

    Three dimensions are a stack of matrices, except in a convolution.
    """
    if placed.parameter.ndim == MATRIX_DIMENSIONS:
        return MatrixForm()
    is_convolution = isinstance(placed.places[0].owner, TRANSPOSED_CONVOLUTIONS)
    is_stack = placed.parameter.ndim == _STACK_DIMENSIONS and not is_convolution
    return MatrixForm(layout="stack" if is_stack else "flatten")


def not_a_matrix(parameter: nn.Parameter) -> str | None:
    """Return what keeps a parameter from being a matrix for Muon; None if nothing does."""
    if parameter.ndim < MATRIX_DIMENSIONS:
        return "has fewer than 2 dimensions"
    if parameter.is_complex():
        return "is complex"
    if parameter.is_sparse or parameter.is_sparse_csr:
        return "is sparse"
    return None if parameter.numel() else "is empty"


def declared_splits(
    model: nn.Module, *, forms: Mapping[int, MatrixForm]
) -> dict[int, tuple[int, ...]]:
    """Collect what modules declare as ``muon_row_splits``; the nearest module decides.

    Args:
        model: Any module.
        forms: By id of the parameter, how it is read.

    Returns:
        Row splits by id of the parameter.

    Raises:
        ConfigError: a declaration names no parameter, or its rows are not those of the parameter
            (gated attention has four blocks, not three: Megatron-LM #4731).
    """
    splits = {}
    for path, module in model.named_modules():  # outer modules come first
        declared = getattr(module, ROW_SPLITS_ATTRIBUTE, None)
        if declared is None:
            continue
        setting = f"{path or type(module).__name__}.{ROW_SPLITS_ATTRIBUTE}"
        if not isinstance(declared, Mapping):
            raise ConfigError(
                f"{setting} must map parameter names to rows, got {declared!r}; "
                "try {'qkv.weight': (64, 64, 64)}"
            )
        parameters = dict(module.named_parameters(remove_duplicate=False))
        for name, rows in declared.items():
            parameter = parameters.get(name)
            if parameter is None:
                if _is_wrapped(module, name):
                    continue
                raise ConfigError(_unknown_name(setting, module=module, name=name))
            splits[id(parameter)] = checked_splits(
                rows,
                setting=f"{setting}[{name!r}]",
                name=f"{path}.{name}".removeprefix("."),
                shape=tuple(parameter.shape),
                form=forms[id(parameter)],
            )
    return splits


def _is_wrapped(module: nn.Module, name: Any) -> bool:
    """Tell whether a layer stands where a parameter is looked for, but keeps its weight elsewhere.

    An adapter or a parametrization came after the declaration; its matrices are not those rows.
    """
    path, _, attribute = str(name).rpartition(".")
    layer = dict(module.named_modules()).get(path)
    if layer is None:
        return False
    return bool(path) or hasattr(layer, "parametrizations") or hasattr(layer, f"{attribute}_v")


def checked_splits(
    rows: Any, *, setting: str, name: str, shape: tuple[int, ...], form: MatrixForm
) -> tuple[int, ...]:
    """Return row splits that fit a parameter; a single block is no split.

    Raises:
        ConfigError: they are not positive whole numbers that sum to the rows of the matrix.
    """
    num_rows = form.num_rows(shape) if len(shape) >= MATRIX_DIMENSIONS else 0
    is_list = isinstance(rows, Sequence) and all(type(count) is int and count > 0 for count in rows)
    if not is_list or sum(rows) != num_rows:
        total = f", which sum to {sum(rows)}" if is_list else ""
        raise ConfigError(
            f"{setting} must be positive whole numbers that sum to the {num_rows} rows of {name} "
            f"{shape}, got {rows!r}{total}; count the rows of every block"
        )
    return tuple(rows) if len(rows) > 1 else ()


def with_splits(form: MatrixForm, splits: tuple[int, ...] | None) -> MatrixForm:
    """Return a form with other row splits, or the same one where there are none to put in."""
    return form if splits is None else replace(form, row_splits=splits)


def _form_in_place(place: Place, parameter: nn.Parameter) -> MatrixForm | None:
    module, shape = place.owner, tuple(parameter.shape)
    if isinstance(module, nn.MultiheadAttention) and len(shape) == MATRIX_DIMENSIONS:
        if place.attribute == "in_proj_weight":
            return MatrixForm(row_splits=(shape[0] // 3,) * 3)
        return MatrixForm() if place.attribute in _ATTENTION_PROJECTIONS else None
    if place.attribute == "weight":
        form = _form_of_weight(place, shape)
        if form is not None:
            return form
    is_expert = "expert" in f"{place.name} {type(module).__name__}".lower()
    return MatrixForm(layout="stack") if is_expert and len(shape) == _STACK_DIMENSIONS else None


def _form_of_weight(place: Place, shape: tuple[int, ...]) -> MatrixForm | None:
    module = place.owner
    if isinstance(module, CONVOLUTIONS):
        groups = module.groups
        splits = (shape[0] // groups,) * groups if groups > 1 else ()
        return MatrixForm(layout="flatten", row_splits=splits)
    if len(shape) != MATRIX_DIMENSIONS:
        return None
    if isinstance(module, nn.Linear):
        return MatrixForm()
    if type(module).__name__ == "Conv1D" and hasattr(module, "nf"):
        # Hugging Face's, told by name because transformers is optional. Only c_attn is fused, and
        # only where the shape says so: other leaves of that width are feed-forward layers.
        num_in, num_out = shape
        count = num_out // num_in if num_in else 0
        is_fused = last_component(place.path) == "c_attn" and count in _FUSED_COUNTS
        splits = (num_in,) * count if is_fused and count * num_in == num_out else ()
        return MatrixForm(layout="transposed", row_splits=splits)
    return None


def _unknown_name(setting: str, *, module: nn.Module, name: Any) -> str:
    close = nearest(str(name), [known for known, _ in module.named_parameters()])
    advice = f"did you mean {close!r}?" if close else "check the name"
    return f"{setting} must name parameters of {type(module).__name__}, got {name!r}; {advice}"
