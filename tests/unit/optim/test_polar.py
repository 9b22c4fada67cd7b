"""Orthogonalisation: how close each method comes to the polar factor, and its exact symmetries."""

from __future__ import annotations

import re

import pytest
import torch
from torch import Tensor

from speedtronic.optim.polar import METHODS, Method, orthogonalize, product_dtype

CPU = torch.device("cpu")
NUMBER_FORMATS = (torch.float32, torch.bfloat16)


def random_matrix(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def random_rotation(size: int, *, seed: int) -> Tensor:
    return torch.linalg.qr(random_matrix(size, size, seed=seed)).Q


def polar_factor(matrix: Tensor) -> Tensor:
    """Return the nearest semi-orthogonal matrix, by singular values in fp64."""
    left, _, right = torch.linalg.svd(matrix.double(), full_matrices=False)
    return left @ right


def cosine(left: Tensor, right: Tensor) -> float:
    return float((left * right).sum() / (left.norm() * right.norm()))


# optimizers.md (1): range of the singular values
@pytest.mark.parametrize(
    ("method", "low", "high"),
    [("kj5", 0.67, 1.15), ("polar_express", 0.85, 1.15), ("quintic5", 0.97, 1.04)],
)
@pytest.mark.parametrize("shape", [(128, 512), (512, 128)])
def test_singular_values_of_a_random_matrix_end_near_one(
    method: Method, low: float, high: float, shape: tuple[int, int]
) -> None:
    result = orthogonalize(random_matrix(*shape), method=method, dtype=torch.float32)
    values = torch.linalg.svdvals(result)
    assert low <= values.min()
    assert values.max() <= high


# optimizers.md (1): range of the singular values
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_square_matrix_keeps_small_singular_values_but_points_along_its_polar_factor(
    method: Method, seed: int
) -> None:
    matrix = random_matrix(128, 128, seed=seed)
    result = orthogonalize(matrix, method=method, dtype=torch.float32).double()
    assert torch.linalg.svdvals(result).max() <= 1.21
    assert cosine(result, polar_factor(matrix)) >= 0.98


# optimizers.md (1): range of the singular values
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-3), (torch.bfloat16, 0.02)])
@pytest.mark.parametrize("shape", [(128, 512), (512, 128), (128, 128)])
def test_exact12_has_orthonormal_rows(
    dtype: torch.dtype, bound: float, shape: tuple[int, int]
) -> None:
    result = orthogonalize(random_matrix(*shape), method="exact12", dtype=dtype).double()
    wide = result if shape[0] <= shape[1] else result.T
    assert (wide @ wide.T - torch.eye(128, dtype=torch.float64)).abs().max() < bound


# optimizers.md (2): distance to the polar factor
@pytest.mark.parametrize(
    ("method", "bound"),
    [("kj5", 0.23), ("polar_express", 0.11), ("quintic5", 0.03), ("exact12", 0.001)],
)
def test_the_distance_to_the_polar_factor_is_that_of_the_method(
    method: Method, bound: float
) -> None:
    matrix = random_matrix(128, 512)
    exact = polar_factor(matrix)
    result = orthogonalize(matrix, method=method, dtype=torch.float32).double()
    assert (result - exact).norm() / exact.norm() <= bound


# optimizers.md (3): size of the entries
@pytest.mark.parametrize(
    ("method", "low", "high"),
    [
        ("kj5", 0.85, 0.96),
        ("polar_express", 0.99, 1.03),
        ("quintic5", 0.99, 1.03),
        ("exact12", 0.99, 1.03),
    ],
)
@pytest.mark.parametrize("shape", [(128, 512), (512, 128), (128, 128)])
def test_entries_have_the_size_of_an_orthogonal_matrix(
    method: Method, low: float, high: float, shape: tuple[int, int]
) -> None:
    result = orthogonalize(random_matrix(*shape), method=method, dtype=torch.float32)
    assert low <= result.square().mean().sqrt() * max(shape) ** 0.5 <= high


# optimizers.md (4): the symmetries of the map
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", NUMBER_FORMATS)
@pytest.mark.parametrize("shape", [(32, 80), (48, 48)])
def test_transposing_or_negating_the_matrix_does_so_to_the_result_bit_for_bit(
    method: Method, dtype: torch.dtype, shape: tuple[int, int]
) -> None:
    matrix = random_matrix(*shape)
    result = orthogonalize(matrix, method=method, dtype=dtype)
    assert torch.equal(orthogonalize(-matrix, method=method, dtype=dtype), -result)
    if shape[0] != shape[1]:  # a square matrix is not turned over
        assert torch.equal(orthogonalize(matrix.T, method=method, dtype=dtype), result.T)
    else:
        transposed = orthogonalize(matrix.double().T, method=method, dtype=torch.float64)
        straight = orthogonalize(matrix.double(), method=method, dtype=torch.float64)
        assert (transposed - straight.T).abs().max() < 1e-10


# optimizers.md (4): the symmetries of the map
@pytest.mark.parametrize("method", METHODS)
def test_the_scale_of_the_matrix_does_not_matter(method: Method) -> None:
    matrix = random_matrix(128, 512)
    small = orthogonalize(matrix, method=method, dtype=torch.float32)
    large = orthogonalize(matrix * 1e3, method=method, dtype=torch.float32)
    assert (large - small).abs().max() < 1e-5


# optimizers.md (4): the symmetries of the map
@pytest.mark.parametrize("method", METHODS)
def test_rotating_the_matrix_rotates_the_result(method: Method) -> None:
    matrix = random_matrix(128, 512)
    left, right = random_rotation(128, seed=1), random_rotation(512, seed=2)
    rotated = orthogonalize(left @ matrix @ right, method=method, dtype=torch.float32)
    result = orthogonalize(matrix, method=method, dtype=torch.float32)
    assert (rotated - left @ result @ right).abs().max() < 1e-5


# optimizers.md (5): a matrix of rank one
def test_a_matrix_of_rank_one_stays_of_rank_one() -> None:
    matrix = random_matrix(64, 1, seed=1) @ random_matrix(1, 96, seed=2)
    values = torch.linalg.svdvals(orthogonalize(matrix, dtype=torch.float32))
    # The map of kj5 sends 1 to 0.696: five times s <- 3.4445 s - 4.775 s^3 + 2.0315 s^5.
    assert values[0].item() == pytest.approx(0.696, abs=1e-3)
    assert values[1] < 1e-4


# optimizers.md (6): zeros stay zeros
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", [*NUMBER_FORMATS, torch.float64])
def test_zeros_stay_zeros_alone_and_within_a_stack(method: Method, dtype: torch.dtype) -> None:
    matrix = random_matrix(8, 12)
    stack = torch.stack([torch.zeros(8, 12), matrix])
    result = orthogonalize(stack, method=method, dtype=dtype)
    assert torch.equal(result[0], torch.zeros(8, 12, dtype=dtype))
    assert torch.equal(result[1], orthogonalize(matrix, method=method, dtype=dtype))
    assert result.isfinite().all()


# optimizers.md (7), pytorch PR #194664, Advanced_Optimizers PR #15
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", [*NUMBER_FORMATS, torch.float64])
@pytest.mark.parametrize("shape", [(8, 12), (12, 8), (8, 8), (2, 12, 8)])
def test_the_matrix_given_is_left_as_it_is(
    method: Method, dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    matrix = random_matrix(*shape).to(dtype)
    before = matrix.clone()
    result = orthogonalize(matrix, method=method, dtype=dtype)
    assert torch.equal(matrix, before)
    assert result.untyped_storage().data_ptr() != matrix.untyped_storage().data_ptr()


# optimizers.md (7), Advanced_Optimizers PR #15
def test_a_matrix_whose_entries_share_memory_is_taken() -> None:
    # An iteration in place would fail on such a matrix, or write every entry at once.
    shared = torch.tensor(3.0).expand(6, 6)
    result = orthogonalize(shared, method="exact12", dtype=torch.float32)
    assert torch.allclose(result, torch.full((6, 6), 1 / 6), atol=1e-6)  # rank one: u v^T


# optimizers.md (8): stacks and padding
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", NUMBER_FORMATS)
@pytest.mark.parametrize("shape", [(64, 128), (128, 64), (64, 64)])
def test_a_stack_gives_the_bits_of_its_matrices_one_by_one(
    method: Method, dtype: torch.dtype, shape: tuple[int, int]
) -> None:
    stack = random_matrix(6, *shape)
    together = orthogonalize(stack, method=method, dtype=dtype)
    one_by_one = [orthogonalize(matrix, method=method, dtype=dtype) for matrix in stack]
    assert torch.equal(together, torch.stack(one_by_one))


def test_any_number_of_leading_dimensions_is_a_stack() -> None:
    stack = random_matrix(6, 8, 12)
    nested = orthogonalize(stack.view(2, 3, 8, 12), dtype=torch.float32)
    assert torch.equal(nested, orthogonalize(stack, dtype=torch.float32).view(2, 3, 8, 12))


# optimizers.md (8): stacks and padding
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", NUMBER_FORMATS)
def test_columns_of_zeros_change_nothing_and_stay_zero(method: Method, dtype: torch.dtype) -> None:
    matrix = random_matrix(64, 128)
    padded = torch.nn.functional.pad(matrix, (0, 32))
    result = orthogonalize(padded, method=method, dtype=dtype)
    assert torch.equal(result[:, :128], orthogonalize(matrix, method=method, dtype=dtype))
    assert torch.equal(result[:, 128:], torch.zeros(64, 32, dtype=dtype))


# optimizers.md (8): stacks and padding
@pytest.mark.parametrize("method", METHODS)
def test_rows_of_zeros_change_nothing_and_stay_zero(method: Method) -> None:
    matrix = random_matrix(64, 128).double()
    padded = torch.nn.functional.pad(matrix, (0, 0, 0, 8))
    result = orthogonalize(padded, method=method)
    # The products have another size, so that sums may be taken in another order: fp64 rounding.
    assert (result[:64] - orthogonalize(matrix, method=method)).abs().max() < 1e-12
    assert torch.equal(result[64:], torch.zeros(8, 128, dtype=torch.float64))


# optimizers.md (9): the floor of the norm
@pytest.mark.parametrize("dtype", NUMBER_FORMATS)
def test_far_below_eps_the_result_shrinks_with_the_matrix(dtype: torch.dtype) -> None:
    matrix = random_matrix(48, 48)
    tiny = orthogonalize(matrix * 1e-20, dtype=dtype).double()
    # Where s^3 is nothing beside s, each of the five steps multiplies by 3.4445.
    expected = matrix.double() * 1e-20 / 1e-7 * 3.4445**5
    tolerance = 1e-5 if dtype is torch.float32 else 3 * 2**-8  # bf16 rounds input and products
    assert (tiny - expected).norm() / expected.norm() < tolerance
    # Measured 3.8e-10 of a full step with torch's Muon.
    full = orthogonalize(matrix, dtype=dtype).double()
    assert (tiny.norm() / full.norm()).item() == pytest.approx(3.8e-10, rel=0.05)


# optimizers.md (9): the floor of the norm
def test_eps_is_the_least_norm_to_divide_by() -> None:
    matrix = random_matrix(24, 48)
    tiny = matrix / matrix.norm() * 1e-10
    lower = orthogonalize(tiny, eps=1e-12, dtype=torch.float32)
    assert (lower - orthogonalize(matrix, dtype=torch.float32)).abs().max() < 1e-5
    at_the_floor = orthogonalize(tiny * 1e3, eps=1e-7, dtype=torch.float32)
    assert (at_the_floor - lower).abs().max() < 1e-5


def test_one_step_of_kj5_is_its_polynomial_of_the_singular_values() -> None:
    matrix = torch.diag(torch.tensor([3.0, 4.0], dtype=torch.float64))  # norm 5
    result = orthogonalize(matrix, num_steps=1)
    expected = [3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5 for s in (0.6, 0.8)]
    assert result.diag().tolist() == pytest.approx(expected, abs=1e-12)
    assert result[0, 1] == result[1, 0] == 0


@pytest.mark.parametrize("method", METHODS)
def test_naming_the_number_of_steps_a_method_has_changes_nothing(method: Method) -> None:
    matrix = random_matrix(8, 12)
    num_steps = 12 if method == "exact12" else 5
    named = orthogonalize(matrix, method=method, num_steps=num_steps, dtype=torch.float32)
    assert torch.equal(named, orthogonalize(matrix, method=method, dtype=torch.float32))


# The choice of the number format
@pytest.mark.parametrize("is_fast", [True, False])
def test_products_are_in_bf16_exactly_where_the_device_is_fast_at_it(
    is_fast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def has_fast_bf16(device: torch.device) -> bool:
        asked.append(device)
        return is_fast

    monkeypatch.setattr("speedtronic.optim.polar.has_fast_bf16", has_fast_bf16)
    expected = torch.bfloat16 if is_fast else torch.float32
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        matrix = random_matrix(8, 12).to(dtype)
        assert product_dtype(matrix) is expected
        assert orthogonalize(matrix).dtype is expected
    assert set(asked) == {CPU}


def test_fp64_stays_fp64_even_where_bf16_is_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("speedtronic.optim.polar.has_fast_bf16", lambda device: True)
    matrix = random_matrix(16, 24).double()
    result = orthogonalize(matrix, method="exact12")
    assert result.dtype is torch.float64
    assert (result - polar_factor(matrix)).abs().max() < 1e-12


@pytest.mark.parametrize(
    ("update", "options", "message"),
    [
        (torch.ones(4), {}, "orthogonalize needs a matrix, got shape (4,)"),
        (torch.ones(()), {}, "orthogonalize needs a matrix, got shape ()"),
        (
            torch.ones(2, 2, dtype=torch.complex64),
            {},
            "orthogonalize needs real floating point, got torch.complex64",
        ),
        (
            torch.ones(2, 2, dtype=torch.int64),
            {},
            "orthogonalize needs real floating point, got torch.int64",
        ),
        (
            torch.ones(2, 2),
            {"method": "svd"},
            "method must be one of kj5, quintic5, polar_express, exact12, got 'svd'",
        ),
        (
            torch.ones(2, 2),
            {"method": "exact12", "num_steps": 5},
            "num_steps is for kj5; exact12 has 12 steps of its own, got 5; leave it out",
        ),
        (torch.ones(2, 2), {"num_steps": 0}, "num_steps must be at least 1, got 0"),
    ],
)
def test_what_cannot_be_orthogonalized_is_refused(
    update: Tensor, options: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        orthogonalize(update, **options)  # type: ignore[arg-type]
