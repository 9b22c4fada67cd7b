"""How parameters are read as matrices, against entries picked one by one."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from speedtronic.optim.matrices import (
    Layout,
    as_matrices,
    default_layout,
    fits_layout,
    from_matrices,
    matrix_shape,
    split_rows,
)

LAYOUT_SHAPES: list[tuple[Layout, tuple[int, ...]]] = [
    ("matrix", (6, 4)),
    ("transposed", (4, 6)),
    ("flatten", (6, 2, 2, 3)),
    ("flatten", (6, 2, 2)),
    ("stack", (3, 6, 4)),
]


def numbered(shape: tuple[int, ...]) -> Tensor:
    return torch.arange(torch.Size(shape).numel(), dtype=torch.float32).reshape(shape)


@pytest.mark.parametrize(
    ("shape", "layout"),
    [
        ((3, 4), "matrix"),
        ((3, 4, 5), None),  # experts, or a convolution over one dimension
        ((3, 4, 5, 6), "flatten"),
        ((3, 4, 5, 6, 7), "flatten"),
    ],
)
def test_three_dimensions_alone_could_mean_two_things(
    shape: tuple[int, ...], layout: Layout | None
) -> None:
    assert default_layout(shape) == layout


@pytest.mark.parametrize(
    ("shape", "layout", "expected"),
    [
        ((6, 4), "matrix", (6, 4)),
        ((4, 6), "transposed", (6, 4)),
        ((64, 1, 3, 3), "flatten", (64, 9)),
        ((64, 5, 3), "flatten", (64, 15)),
        ((64, 5), "flatten", (64, 5)),
        ((8, 2, 3, 4, 5), "flatten", (8, 120)),
        ((3, 6, 4), "stack", (6, 4)),
    ],
)
def test_rows_are_outputs_and_columns_all_the_inputs(
    shape: tuple[int, ...], layout: Layout, expected: tuple[int, int]
) -> None:
    assert matrix_shape(shape, layout) == expected


@pytest.mark.parametrize(
    ("layout", "fitting"),
    [("matrix", {2}), ("transposed", {2}), ("stack", {3}), ("flatten", {2, 3, 4, 5})],
)
def test_a_layout_fits_the_shapes_with_its_number_of_dimensions(
    layout: Layout, fitting: set[int]
) -> None:
    assert {n for n in range(6) if fits_layout((2,) * n, layout)} == fitting


@pytest.mark.parametrize(("layout", "shape"), LAYOUT_SHAPES)
def test_without_splits_the_whole_tensor_is_one_block(
    layout: Layout, shape: tuple[int, ...]
) -> None:
    tensor = numbered(shape)
    blocks = list(split_rows(tensor, layout, ()))
    assert len(blocks) == 1
    assert blocks[0] is tensor


@pytest.mark.parametrize(("layout", "shape"), LAYOUT_SHAPES)
def test_blocks_of_rows_are_views_of_consecutive_outputs(
    layout: Layout, shape: tuple[int, ...]
) -> None:
    tensor = numbered(shape)
    blocks = list(split_rows(tensor, layout, (3, 1, 2)))
    dimension = {"matrix": 0, "flatten": 0, "transposed": 1, "stack": 1}[layout]
    for block, rows in zip(blocks, ([0, 1, 2], [3], [4, 5]), strict=True):
        assert torch.equal(block, tensor.index_select(dimension, torch.tensor(rows)))
        block.zero_()
    assert torch.equal(tensor, torch.zeros(shape))


def test_entries_land_where_their_output_and_input_say() -> None:
    stored = numbered((4, 6))
    assert as_matrices(stored, "transposed")[5, 1] == stored[1, 5]
    convolution = numbered((6, 2, 2, 3))
    assert as_matrices(convolution, "flatten")[5, 1 * 6 + 0 * 3 + 2] == convolution[5, 1, 0, 2]
    experts = numbered((3, 6, 4))
    assert as_matrices(experts, "stack")[2, 5, 1] == experts[2, 5, 1]


@pytest.mark.parametrize(("layout", "shape"), LAYOUT_SHAPES)
def test_reading_as_matrices_is_a_view_and_has_an_inverse(
    layout: Layout, shape: tuple[int, ...]
) -> None:
    tensor = numbered(shape)
    matrices = as_matrices(tensor, layout)
    assert matrices.shape[-2:] == (6, torch.Size(shape).numel() // (18 if layout == "stack" else 6))
    assert matrices.data_ptr() == tensor.data_ptr()
    assert torch.equal(from_matrices(matrices.clone(), tensor, layout), tensor)


def test_a_convolution_in_channels_last_memory_has_the_same_matrix() -> None:
    convolution = numbered((6, 2, 2, 3))
    channels_last = convolution.to(memory_format=torch.channels_last)
    matrix = as_matrices(channels_last, "flatten")
    assert torch.equal(matrix, as_matrices(convolution, "flatten"))
    assert torch.equal(from_matrices(matrix, channels_last, "flatten"), convolution)
