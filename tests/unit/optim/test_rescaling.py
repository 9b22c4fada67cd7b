"""Muon+ and NorMuon against plain loops over rows and columns."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from speedtronic.optim.rescaling import (
    RESCALINGS,
    Rescaling,
    even_out_neurons,
    rescale_rows_and_columns,
)

SHAPES = [(5, 9), (9, 5), (6, 6)]
Rows = list[list[float]]


def random_matrix(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def frobenius(rows: Rows) -> float:
    return math.sqrt(sum(entry * entry for row in rows for entry in row))


def scaled(rows: Rows, factor: float) -> Rows:
    return [[entry * factor for entry in row] for row in rows]


def flipped(rows: Rows) -> Rows:
    return [list(column) for column in zip(*rows, strict=True)]


def unit_rows(rows: Rows) -> Rows:
    """Divide each row by sqrt(sum of squares + 1e-7), as the paper's code."""
    lengths = [math.sqrt(sum(entry * entry for entry in row) + 1e-7) for row in rows]
    return [[entry / length for entry in row] for row, length in zip(rows, lengths, strict=True)]


def reference_muon_plus(matrix: Tensor, mode: str) -> Tensor:
    rows = matrix.tolist()
    for axis in mode.split("_"):
        rows = unit_rows(rows) if axis == "row" else flipped(unit_rows(flipped(rows)))
    target = math.sqrt(min(matrix.shape))
    return torch.tensor(scaled(rows, target / frobenius(rows)), dtype=torch.float64)


def reference_normuon(matrix: Tensor, averages: list[float], beta2: float) -> Tensor:
    """Return the evened matrix; ``averages`` is advanced in place."""
    rows = matrix.tolist()
    evened = []
    for number, row in enumerate(rows):
        mean_square = sum(entry * entry for entry in row) / len(row)
        averages[number] = beta2 * averages[number] + (1 - beta2) * mean_square
        evened.append([entry / (math.sqrt(averages[number]) + 1e-10) for entry in row])
    factor = frobenius(rows) / (frobenius(evened) + 1e-10)
    return torch.tensor(scaled(evened, factor), dtype=torch.float64)


@pytest.mark.parametrize("mode", RESCALINGS)
@pytest.mark.parametrize("shape", SHAPES)
def test_muon_plus_is_its_formula_entry_by_entry(mode: Rescaling, shape: tuple[int, int]) -> None:
    matrix = random_matrix(*shape)
    result = rescale_rows_and_columns(matrix, mode=mode)
    assert (result - reference_muon_plus(matrix, mode)).abs().max() < 1e-12


@pytest.mark.parametrize("mode", RESCALINGS)
@pytest.mark.parametrize("shape", [*SHAPES, (3, 5, 9)])
def test_muon_plus_has_the_norm_of_an_orthogonal_matrix(
    mode: Rescaling, shape: tuple[int, ...]
) -> None:
    result = rescale_rows_and_columns(random_matrix(*shape), mode=mode)
    norms = torch.linalg.vector_norm(result, dim=(-2, -1)).flatten().tolist()
    assert norms == pytest.approx([math.sqrt(min(shape[-2:]))] * len(norms), abs=1e-12)


@pytest.mark.parametrize(
    ("mode", "axis"), [("row", -1), ("col_row", -1), ("col", -2), ("row_col", -2)]
)
def test_the_last_axis_of_the_mode_ends_with_equal_lengths(mode: Rescaling, axis: int) -> None:
    result = rescale_rows_and_columns(random_matrix(5, 9), mode=mode)
    lengths = result.norm(dim=axis)
    # sqrt(R) rows of length 1 make sqrt(R); the whole has sqrt(min(R, C)).
    expected = math.sqrt(5 / len(lengths))
    assert lengths.tolist() == pytest.approx([expected] * len(lengths), rel=1e-6)  # the 1e-7


@pytest.mark.parametrize("mode", RESCALINGS)
def test_a_stack_is_rescaled_matrix_by_matrix(mode: Rescaling) -> None:
    stack = random_matrix(3, 5, 9)
    result = rescale_rows_and_columns(stack, mode=mode)
    for matrix, expected in zip(stack, result, strict=True):
        assert torch.equal(rescale_rows_and_columns(matrix, mode=mode), expected)


# optimizers.md (6): zeros stay zeros
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_rescaling_leaves_zeros_zero_rows_zero_and_its_input_alone(dtype: torch.dtype) -> None:
    with_zero_row = random_matrix(5, 9).to(dtype)
    with_zero_row[2] = 0
    before = with_zero_row.clone()
    for mode in RESCALINGS:
        zeros = rescale_rows_and_columns(torch.zeros(2, 5, 9, dtype=dtype), mode=mode)
        assert torch.equal(zeros, torch.zeros_like(zeros))
        result = rescale_rows_and_columns(with_zero_row, mode=mode)
        assert torch.equal(result[2], torch.zeros_like(result[2]))
        assert result.isfinite().all()
    moment = torch.zeros(2, 5, 1, dtype=torch.promote_types(dtype, torch.float32))
    zeros = even_out_neurons(torch.zeros(2, 5, 9, dtype=dtype), moment, beta2=0.95)
    assert torch.equal(zeros, torch.zeros_like(zeros))
    result = even_out_neurons(with_zero_row, moment[0], beta2=0.95)
    assert torch.equal(result[2], torch.zeros_like(result[2]))
    assert result.isfinite().all()
    assert torch.equal(with_zero_row, before)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (torch.bfloat16, torch.float32),
        (torch.float16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ],
)
def test_rescaled_updates_are_in_fp32_at_least(given: torch.dtype, expected: torch.dtype) -> None:
    matrix = random_matrix(5, 9).to(given)
    result = rescale_rows_and_columns(matrix, mode="col_row")
    moment = torch.zeros(5, 1, dtype=expected)
    evened = even_out_neurons(matrix, moment, beta2=0.95)
    assert result.dtype is evened.dtype is moment.dtype is expected
    # Squares of bf16 numbers, summed in fp32: far below bf16's rounding of 2^-8.
    reference = reference_muon_plus(matrix.double(), "col_row")
    assert (result.double() - reference).abs().max() < 1e-6
    reference = reference_normuon(matrix.double(), [0.0] * 5, 0.95)
    assert (evened.double() - reference).abs().max() < 1e-6


@pytest.mark.parametrize("beta2", [0.95, 0.9, 0.0])
@pytest.mark.parametrize("shape", SHAPES)
def test_normuon_is_its_formula_over_three_steps(beta2: float, shape: tuple[int, int]) -> None:
    moment = torch.zeros(shape[0], 1, dtype=torch.float64)
    averages = [0.0] * shape[0]
    for seed in range(3):
        matrix = random_matrix(*shape, seed=seed) * (seed + 1)
        result = even_out_neurons(matrix, moment, beta2=beta2)
        assert (result - reference_normuon(matrix, averages, beta2)).abs().max() < 1e-12
        assert moment.flatten().tolist() == pytest.approx(averages, rel=1e-12)
        assert result.norm().item() == pytest.approx(matrix.norm().item(), rel=1e-9)


def test_normuon_advances_every_matrix_of_a_stack_alone() -> None:
    stack, moments = random_matrix(3, 5, 9), random_matrix(3, 5, 1, seed=1).abs()
    alone = moments.clone()
    result = even_out_neurons(stack, moments, beta2=0.9)
    for matrix, moment, expected in zip(stack, alone, result, strict=True):
        assert torch.equal(even_out_neurons(matrix, moment, beta2=0.9), expected)
    assert torch.equal(moments, alone)
