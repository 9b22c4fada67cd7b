"""Muon: momentum, made orthogonal, is the update of a matrix.

Legend: R rows (outputs), C columns (inputs) of a matrix, N matrices of a stack.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from speedtronic.optim.cautious import Caution, cautious_decay_, cautious_mask
from speedtronic.optim.grouping import ParameterGroup
from speedtronic.optim.matrices import (
    Layout,
    as_matrices,
    as_stack,
    from_matrices,
    matrix_shape,
    split_rows,
)
from speedtronic.optim.muon_groups import (
    SCALES,
    Scale,
    check_muon_group,
    layout_of,
    row_splits_of,
)
from speedtronic.optim.polar import Method, orthogonalize, product_dtype
from speedtronic.optim.rescaling import Rescaling, even_out_neurons, rescale_rows_and_columns
from speedtronic.optim.tagged import Algorithm, State, TaggedOptimizer, gradient_of

# Stacking pays while one product is too small to keep the cores busy; above, it only copies.
_MAX_STACKED_SIDE = 256
# On the CPU a stack should stay in the cache of its core and below what malloc gives back to the
# system: 48 matrices of 128 x 128 to 512 x 128 in three stacks took 4,100 page faults a step.
_MAX_STACKED_NUMBERS_CPU = 2**18


@dataclass(slots=True)
class _Block:
    """One matrix or stack of matrices of a parameter, as views."""

    weight: Tensor
    gradient: Tensor
    momentum: Tensor
    second_moment: Tensor | None
    layout: Layout
    shape: tuple[int, int]
    """Rows and columns."""


def update_muon(group: ParameterGroup, state: State) -> None:
    """Take one Muon step with the parameters of a group that have a gradient.

    ``M <- lerp(M, G, 1 - momentum)``; ``U = lerp(G, M, momentum)`` with ``nesterov``, else M; W
    shrinks by ``lr * weight_decay``, then loses ``lr * scale(R, C) * orthogonalize(U)``.
    """
    for blocks in _stacks(list(_blocks(group, state))):
        updates = _orthogonal_updates(blocks, _directions(blocks, group), group)
        _apply(blocks, updates, group)


def _blocks(group: ParameterGroup, state: State) -> Iterator[_Block]:
    """Yield the blocks of the parameters of a group that have a gradient, in the order of names.

    In fp32 on several threads the last bit of a product depends on what else is in its stack:
    groups that were built in another order must make the same stacks.
    """
    indices: Sequence[int] = range(len(group["params"]))
    if "param_names" in group:
        indices = sorted(indices, key=group["param_names"].__getitem__)
    for index in indices:
        weight = group["params"][index]
        if weight.grad is None:
            continue
        layout = layout_of(group, index)
        splits = row_splits_of(group, index)
        momentum = _momentum(state[weight], weight)
        parts: list[Any] = [
            split_rows(tensor, layout, splits)
            for tensor in (weight, gradient_of(weight, group), momentum)
        ]
        moments: Any = [None] * max(1, len(splits))
        if group["normuon_beta2"] is not None:
            moments = _second_moment(state[weight], weight, layout)
            moments = torch.split(moments, list(splits) or [moments.shape[-2]], dim=-2)
        for weight_part, gradient, momentum_part, moment in zip(*parts, moments, strict=True):
            shape = matrix_shape(weight_part.shape, layout)
            yield _Block(weight_part, gradient, momentum_part, moment, layout, shape)


def _stacks(blocks: Iterable[_Block]) -> Iterator[list[_Block]]:
    """Yield lists of blocks of one shape that are orthogonalised in one go."""
    stacks: dict[Any, list[_Block]] = {}
    num_stacked: Counter[Any] = Counter()
    for block in blocks:
        if min(block.shape) > _MAX_STACKED_SIDE:
            yield [block]
            continue
        key = (block.shape, block.weight.device, block.weight.dtype)
        stacks.setdefault(key, []).append(block)
        num_stacked[key] += block.weight.numel()
        if num_stacked[key] >= _MAX_STACKED_NUMBERS_CPU and block.weight.device.type == "cpu":
            num_stacked[key] = 0
            yield stacks.pop(key)
    yield from stacks.values()


def _directions(blocks: list[_Block], group: ParameterGroup) -> list[Tensor]:
    """Take the gradients into the momenta and return what is to be orthogonalised."""
    momenta = [block.momentum for block in blocks]
    gradients = [block.gradient.to(block.momentum.dtype) for block in blocks]
    torch._foreach_lerp_(momenta, gradients, 1 - group["momentum"])
    if not group["nesterov"]:
        return momenta
    directions = torch._foreach_lerp(  # noqa: SLF001 - torch has no public name
        gradients, momenta, group["momentum"]
    )
    return list(directions)


def _orthogonal_updates(
    blocks: list[_Block], directions: list[Tensor], group: ParameterGroup
) -> list[Tensor]:
    """Return what is subtracted from each weight, before learning rate and scale."""
    stacked_NRC, sizes = _stack(blocks, directions)
    update_NRC = orthogonalize(
        stacked_NRC,
        method=group["orthogonalization"],
        num_steps=group["ns_steps"],
        dtype=stacked_NRC.dtype,
        eps=group["eps"],
    )
    if group["muon_plus"] is not None:
        update_NRC = rescale_rows_and_columns(update_NRC, mode=group["muon_plus"])
    if group["normuon_beta2"] is not None:
        update_NRC = _even_out(update_NRC, blocks, beta2=group["normuon_beta2"])
    updates = [
        from_matrices(part if block.layout == "stack" else part[0], block.weight, block.layout)
        for part, block in zip(torch.split(update_NRC, sizes), blocks, strict=True)
    ]
    if group["cautious"] != "update":
        return updates
    return [_masked(update, block) for update, block in zip(updates, blocks, strict=True)]


def _masked(update: Tensor, block: _Block) -> Tensor:
    """Leave in an update what agrees with the gradient, each matrix of a stack by itself."""
    if block.layout != "stack":
        return update * cautious_mask(update, block.gradient)
    matrices = zip(update, block.gradient, strict=True)
    return torch.stack([matrix * cautious_mask(matrix, gradient) for matrix, gradient in matrices])


def _apply(blocks: list[_Block], updates: list[Tensor], group: ParameterGroup) -> None:
    """Shrink the weights of one shape and subtract their updates."""
    weights = [block.weight for block in blocks]
    shrinkage = group["lr"] * group["weight_decay"]
    if group["cautious"] == "wd":
        cautious_decay_(weights, updates, shrinkage=shrinkage)
    else:
        torch._foreach_mul_(weights, 1 - shrinkage)
    step_size = group["lr"] * SCALES[group["scale"]](*blocks[0].shape)
    torch._foreach_add_(weights, updates, alpha=-step_size)


def _stack(blocks: list[_Block], directions: list[Tensor]) -> tuple[Tensor, list[int]]:
    """Return the directions as one stack in the number format of the products, and its parts."""
    matrices = [
        as_stack(as_matrices(direction, block.layout))
        for direction, block in zip(directions, blocks, strict=True)
    ]
    dtype = product_dtype(matrices[0])
    sizes = [matrix.shape[0] for matrix in matrices]
    if len(matrices) == 1:
        return matrices[0].to(dtype), sizes
    # One pass that casts and copies, instead of one for each.
    stacked_NRC = matrices[0].new_empty((sum(sizes), *blocks[0].shape), dtype=dtype)
    torch._foreach_copy_(list(torch.split(stacked_NRC, sizes)), matrices)
    return stacked_NRC, sizes


def _even_out(update_NRC: Tensor, blocks: list[_Block], *, beta2: float) -> Tensor:
    views = [block.second_moment for block in blocks]
    moments = [as_stack(moment) for moment in views if moment is not None]
    moment_NR1 = torch.cat(moments)
    evened_NRC = even_out_neurons(update_NRC, moment_NR1, beta2=beta2)
    torch._foreach_copy_(moments, list(torch.split(moment_NR1, [m.shape[0] for m in moments])))
    return evened_NRC


def _momentum(state: dict[str, Any], weight: Tensor) -> Tensor:
    if "momentum_buffer" not in state:
        dtype = torch.promote_types(weight.dtype, torch.float32)
        state["momentum_buffer"] = torch.zeros_like(weight, dtype=dtype)
    buffer: Tensor = state["momentum_buffer"]
    return buffer


def _second_moment(state: dict[str, Any], weight: Tensor, layout: Layout) -> Tensor:
    if "row_second_moment" not in state:
        rows, _ = matrix_shape(weight.shape, layout)
        shape = (weight.shape[0], rows, 1) if layout == "stack" else (rows, 1)
        dtype = torch.promote_types(weight.dtype, torch.float32)
        state["row_second_moment"] = weight.new_zeros(shape, dtype=dtype)
    moment: Tensor = state["row_second_moment"]
    return moment


MUON = Algorithm(
    defaults={
        "lr": 0.03,
        "momentum": 0.95,
        "nesterov": True,
        "weight_decay": 0.1,
        "scale": "original",
        "orthogonalization": "kj5",
        "ns_steps": None,
        "muon_plus": None,
        "normuon_beta2": None,
        "cautious": None,
        "layouts": {},
        "row_splits": {},
        "eps": 1e-7,
    },
    check=check_muon_group,
    update=update_muon,
)


class Muon(TaggedOptimizer):
    """Muon over matrices alone; ``HybridOptimizer`` has AdamW for the other parameters as well."""

    algorithms: ClassVar[Mapping[str, Algorithm]] = {"muon": MUON}

    def __init__(  # noqa: PLR0913 - one argument per hyperparameter
        self,
        params: Any,
        *,
        lr: float = 0.03,
        momentum: float = 0.95,
        nesterov: bool = True,
        weight_decay: float = 0.1,
        scale: Scale = "original",
        orthogonalization: Method = "kj5",
        ns_steps: int | None = None,
        muon_plus: Rescaling | None = None,
        normuon_beta2: float | None = None,
        cautious: Caution | None = None,
        eps: float = 1e-7,
    ) -> None:
        """Check every parameter and every number.

        Args:
            params: Parameters, named parameters or groups, as of any optimizer. A group of named
                parameters may have ``layouts``, how some are read as matrices (needed for three
                dimensions), and ``row_splits``, the rows of independent blocks (a fused q, k, v),
                both by name.
            lr: Learning rate, before the factor of ``scale``.
            momentum: Decay of the average of gradients, which is kept in fp32 at least.
            nesterov: Whether the update looks one step ahead.
            weight_decay: Shrinkage per update, times the learning rate without that factor.
            scale: Factor by shape. ``original``: sqrt(max(1, R / C)); ``match_rms_adamw``: 0.2
                sqrt(max(R, C)); ``spectral_unclamped``: sqrt(R / C).
            orthogonalization: See ``orthogonalize``.
            ns_steps: Iterations of ``kj5``; None means 5.
            muon_plus: What Muon+ evens out, see ``rescale_rows_and_columns``; None leaves it out.
            normuon_beta2: NorMuon's decay, see ``even_out_neurons``; None leaves it out.
            cautious: ``wd`` decays only what the update shrinks; ``update`` masks the update.
            eps: Least norm of an update to divide by.

        Raises:
            ConfigError: as ``check_muon_group``.
        """
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "nesterov": nesterov,
            "weight_decay": weight_decay,
            "scale": scale,
            "orthogonalization": orthogonalization,
            "ns_steps": ns_steps,
            "muon_plus": muon_plus,
            "normuon_beta2": normuon_beta2,
            "cautious": cautious,
            "eps": eps,
        }
        super().__init__(params, defaults)
