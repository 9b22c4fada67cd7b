"""Rescaling an orthogonal update: Muon+ evens out rows and columns, NorMuon rows over time.

Legend: N matrices of a stack, R rows (outputs), C columns (inputs).
"""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor

Rescaling: TypeAlias = Literal["row", "col", "row_col", "col_row"]
RESCALINGS: tuple[Rescaling, ...] = get_args(Rescaling)

_SUM_EPS = 1e-7  # inside the root, as in the paper's code
_NORM_EPS = 1e-10
_AXES = {"row": -1, "col": -2}


def rescale_rows_and_columns(update_NRC: Tensor, *, mode: Rescaling) -> Tensor:
    """Give every row or column the same length, and the whole the norm of an orthogonal matrix.

    The last step is ours: without it ``row`` has the norm sqrt(R) and ``col`` sqrt(C), and each
    mode wants a learning rate of its own.

    Args:
        update_NRC: (..., R, C), nearly orthogonal; it is left as it is.
        mode: What is evened out, in this order.

    Returns:
        New fp32 tensor (fp64 for fp64) with the Frobenius norm sqrt(min(R, C)); zeros stay zeros.

    Source:
        Muon+, https://arxiv.org/abs/2602.21545.
    """
    update_NRC = _at_least_fp32(update_NRC)
    for axis in mode.split("_"):
        squares = update_NRC.square().sum(dim=_AXES[axis], keepdim=True)
        update_NRC = update_NRC * (squares + _SUM_EPS).rsqrt()
    target = min(update_NRC.shape[-2:]) ** 0.5
    rescaled_NRC: Tensor = update_NRC * (target / _norm(update_NRC).clamp(min=_NORM_EPS))
    return rescaled_NRC


def even_out_neurons(update_NRC: Tensor, second_moment_NR1: Tensor, *, beta2: float) -> Tensor:
    """Divide every row by its root mean square over time, keeping the norm of the whole.

    Args:
        update_NRC: (..., R, C), nearly orthogonal; it is left as it is.
        second_moment_NR1: (..., R, 1), the average so far; it is advanced in place.
        beta2: Decay of that average.

    Returns:
        New fp32 tensor (fp64 for fp64); zeros stay zeros.

    Source:
        NorMuon, https://arxiv.org/abs/2510.05491.
    """
    update_NRC = _at_least_fp32(update_NRC)
    second_moment_NR1.lerp_(update_NRC.square().mean(dim=-1, keepdim=True), 1 - beta2)
    evened_NRC = update_NRC / (second_moment_NR1.sqrt() + _NORM_EPS)
    return evened_NRC.mul_(_norm(update_NRC) / (_norm(evened_NRC) + _NORM_EPS))


def _norm(update_NRC: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(update_NRC, dim=(-2, -1), keepdim=True)
    return norm


def _at_least_fp32(update: Tensor) -> Tensor:
    return update.to(torch.promote_types(update.dtype, torch.float32))
