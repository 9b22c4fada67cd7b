"""How parameters are read as matrices: convolutions, experts, transposed and fused projections.

Legend: R rows (outputs), C columns (inputs) of a matrix, N matrices of a stack.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Literal, TypeAlias

import torch
from torch import Tensor

Layout: TypeAlias = Literal["matrix", "transposed", "flatten", "stack"]
"""``matrix``: (R, C). ``transposed``: (C, R), as Hugging Face's Conv1D keeps it. ``flatten``:
(R, *C), a convolution. ``stack``: (N, R, C), independent matrices such as experts."""

MATRIX_DIMENSIONS = 2
_STACK_DIMENSIONS = 3


def default_layout(shape: Sequence[int]) -> Layout | None:
    """Return how a shape is read when nothing says so; None where it could mean two things.

    Three dimensions are a stack of experts or a convolution over one dimension.
    """
    if len(shape) == MATRIX_DIMENSIONS:
        return "matrix"
    return None if len(shape) == _STACK_DIMENSIONS else "flatten"


def matrix_shape(shape: Sequence[int], layout: Layout) -> tuple[int, int]:
    """Return rows and columns of the matrix, or of each matrix of a stack."""
    if layout == "transposed":
        return shape[1], shape[0]
    if layout == "stack":
        return shape[1], shape[2]
    return shape[0], math.prod(shape[1:])


def fits_layout(shape: Sequence[int], layout: Layout) -> bool:
    """Return whether a shape has the dimensions of a layout."""
    if layout == "flatten":
        return len(shape) >= MATRIX_DIMENSIONS
    return len(shape) == (_STACK_DIMENSIONS if layout == "stack" else MATRIX_DIMENSIONS)


def split_rows(tensor: Tensor, layout: Layout, row_splits: Sequence[int]) -> Iterator[Tensor]:
    """Yield the blocks of rows of a tensor in its own layout, as views."""
    if not row_splits:
        yield tensor
        return
    dimension = 0 if layout in ("matrix", "flatten") else 1
    yield from torch.split(tensor, list(row_splits), dim=dimension)


def as_matrices(block: Tensor, layout: Layout) -> Tensor:
    """Return a block as (R, C), or (N, R, C) for a stack; a view where its memory allows."""
    if layout == "transposed":
        return block.mT
    return block.flatten(1) if layout == "flatten" else block


def as_stack(matrices: Tensor) -> Tensor:
    """Return a matrix as a stack of one, (1, R, C); a stack as it is."""
    return matrices.unsqueeze(0) if matrices.ndim == MATRIX_DIMENSIONS else matrices


def from_matrices(matrices: Tensor, like: Tensor, layout: Layout) -> Tensor:
    """Return what ``as_matrices`` made of a block in the shape of that block."""
    if layout == "transposed":
        return matrices.mT
    return matrices.reshape(like.shape) if layout == "flatten" else matrices
