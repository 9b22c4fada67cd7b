"""Orthogonalisation: a matrix becomes a nearby one whose singular values are about 1.

Legend: R rows, C columns of a matrix; leading dimensions are a stack of independent matrices.
"""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor

from speedtronic.core.hardware import has_fast_bf16
from speedtronic.optim.matrices import MATRIX_DIMENSIONS

Method: TypeAlias = Literal["kj5", "quintic5", "polar_express", "exact12"]
METHODS: tuple[Method, ...] = get_args(Method)
Coefficients: TypeAlias = tuple[float, float, float]

_NUM_KJ_STEPS = 5
# Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/: steep at zero.
_KJ: Coefficients = (3.4445, -4.7750, 2.0315)
_NEWTON_SCHULZ: Coefficients = (2.0, -1.5, 0.5)
_SETS: dict[Method, tuple[Coefficients, ...]] = {
    "kj5": (_KJ,) * _NUM_KJ_STEPS,
    # Tuned step by step by leloykun (Emerging-Optimizers): the closest of the five-step sets.
    "quintic5": (
        (4.0848, -6.8946, 2.9270),
        (3.9505, -6.3029, 2.6377),
        (3.7418, -5.5913, 2.3037),
        (2.8769, -3.1427, 1.2046),
        (2.8366, -3.0525, 1.2012),
    ),
    # Amsel et al. 2025, https://arxiv.org/abs/2505.16932, as used by modded-nanogpt.
    "polar_express": (
        (8.156554524902461, -22.48329292557795, 15.878769915207462),
        (4.042929935166739, -2.808917465908714, 0.5000178451051316),
        (3.8916678022926607, -2.772484153217685, 0.5060648178503393),
        (3.285753657755655, -2.3681294933425376, 0.46449024233003106),
        (2.3465413258596377, -1.7097828382687081, 0.42323551169305323),
    ),
    # Plain Newton-Schulz, run until it has converged.
    "exact12": (_NEWTON_SCHULZ,) * 12,
}
# Polar Express is fitted to singular values below 1 / 1.02 of the norm.
_NORM_MARGIN: dict[Method, float] = {"polar_express": 1.02}


def orthogonalize(
    update: Tensor,
    *,
    method: Method = "kj5",
    num_steps: int | None = None,
    dtype: torch.dtype | None = None,
    eps: float = 1e-7,
) -> Tensor:
    """Replace a matrix by a nearby semi-orthogonal one.

    Iterates ``X <- aX + (bA + cA^2)X`` with ``A = XX^T`` on the wide orientation. With ``kj5`` most
    singular values land between 0.68 and 1.14; those that start near zero (square matrices have
    some) stay smaller. In bf16 ``kj5`` has the bits of ``torch.optim.Muon``.

    Args:
        update: Matrix or stack of matrices, (..., R, C), floating point; it is left as it is.
        method: Coefficients; relative distances to the polar factor of a random 128 x 512 matrix
            are 0.22 (kj5), 0.02 (quintic5), 0.09 (polar_express), 4e-7 (exact12, in fp32).
        num_steps: Iterations of ``kj5``; each costs 2 products R x R x C and one R x R x R, for R
            <= C. None: 5. The other methods have their own number.
        dtype: Number format of the products; None: see ``product_dtype``.
        eps: Least Frobenius norm to divide by, so that zeros stay zeros. Far below it an update
            shrinks: torch does the same.

    Returns:
        New tensor with the shape of ``update`` in the number format of the products.

    Raises:
        ValueError: ``update`` has fewer than two dimensions or is not of real floating point, the
            method is unknown, or ``num_steps`` is given for another method than ``kj5``.

    Example:
        >>> grad_RC = torch.randn(64, 256, generator=torch.Generator().manual_seed(0))
        >>> values = torch.linalg.svdvals(orthogonalize(grad_RC, dtype=torch.float32))
        >>> bool((values > 0.6).all() and (values < 1.3).all())
        True
    """
    _check_matrices(update)
    coefficients = coefficients_of(method, num_steps=num_steps)
    is_tall = update.shape[-2] > update.shape[-1]
    x = (update.mT if is_tall else update).to(dtype or product_dtype(update))
    norm = torch.linalg.vector_norm(x, dim=(-2, -1), keepdim=True)
    if method in _NORM_MARGIN:
        norm = norm * _NORM_MARGIN[method]
    x = x / norm.clamp(min=eps)  # never in place: x may be the caller's tensor
    multiply_add = torch.addmm if x.ndim == MATRIX_DIMENSIONS else _batched_multiply_add
    for a, b, c in coefficients:
        gram = x @ x.mT
        polynomial = multiply_add(gram, gram, gram, beta=b, alpha=c)
        x = multiply_add(x, polynomial, x, beta=a)
    return x.mT if is_tall else x


def coefficients_of(method: Method, *, num_steps: int | None = None) -> tuple[Coefficients, ...]:
    """Return a method's coefficients (a, b, c), one triple an iteration.

    Raises:
        ValueError: as ``orthogonalize``.
    """
    if method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}, got {method!r}")
    if num_steps is not None and type(num_steps) is not int:
        raise ValueError(f"num_steps must be a whole number, got {num_steps!r}")
    if num_steps is None or num_steps == len(_SETS[method]):
        return _SETS[method]
    if method != "kj5":
        raise ValueError(
            f"num_steps is for kj5; {method} has {len(_SETS[method])} steps of its own,"
            f" got {num_steps}; leave it out"
        )
    if num_steps < 1:
        raise ValueError(f"num_steps must be at least 1, got {num_steps}")
    return (_KJ,) * num_steps


def product_dtype(matrix: Tensor) -> torch.dtype:
    """Return the number format to iterate in: bf16 where the device is fast at it, else fp32.

    fp64 stays fp64.
    """
    if matrix.dtype is torch.float64:
        return torch.float64
    return torch.bfloat16 if has_fast_bf16(matrix.device) else torch.float32


def _batched_multiply_add(
    added: Tensor, left: Tensor, right: Tensor, *, beta: float = 1.0, alpha: float = 1.0
) -> Tensor:
    """Return ``beta * added + alpha * left @ right`` over any number of leading dimensions."""
    product = torch.baddbmm(
        added.flatten(0, -3), left.flatten(0, -3), right.flatten(0, -3), beta=beta, alpha=alpha
    )
    return product.view(added.shape)


def _check_matrices(update: Tensor) -> None:
    if update.ndim < MATRIX_DIMENSIONS:
        raise ValueError(f"orthogonalize needs a matrix, got shape {tuple(update.shape)}")
    if not update.is_floating_point():
        raise ValueError(f"orthogonalize needs real floating point, got {update.dtype}")
