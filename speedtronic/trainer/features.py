"""What a model may lack: gradient checkpointing and compilation, each with its fallback."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn

from speedtronic.core.loss import resolve_loss, resolve_splitter
from speedtronic.core.seeding import restore_rng, snapshot_rng

_COMPILED_PREFIX = "_orig_mod."
_MIN_ODD_DIMENSIONS = 2


def unwrap(model: nn.Module) -> nn.Module:
    """Return the module inside a ``torch.compile`` wrapper, or the model itself."""
    return cast("nn.Module", getattr(model, "_orig_mod", model))


def plain_name(name: str) -> str:
    """Return a parameter name as the eager model has it."""
    return name.replace(_COMPILED_PREFIX, "")


def enable_gradient_checkpointing(model: nn.Module, *, setting: bool | int) -> str | None:
    """Ask a model to recompute activations in the backward.

    Calls ``set_gradient_checkpointing(True)``, with ``every_n_layers=n`` for an integer where the
    model takes it.

    Args:
        model: Any module.
        setting: False, True, or the distance of checkpointed layers.

    Returns:
        Why the model runs otherwise than asked, None when it does as asked.
    """
    if setting is False:
        return None
    try:
        hook = cast("Callable[..., None]", model.set_gradient_checkpointing)
        if setting is True or setting == 1:
            hook(True)  # noqa: FBT003 - the contract's call
            return None
        if "every_n_layers" in inspect.signature(hook).parameters:
            hook(True, every_n_layers=setting)  # noqa: FBT003 - the contract's call
            return None
        hook(True)  # noqa: FBT003 - the contract's call
    except Exception as error:  # noqa: BLE001 - the contract: any hook failure continues without it
        return f"training without gradient checkpointing: {describe(error)}"
    return f"every layer is checkpointed: {type(model).__name__} takes no every_n_layers={setting}"


def describe(error: BaseException) -> str:
    """Return type and first line of an error."""
    first_line = next(iter(str(error).strip().splitlines()), "")
    return f"{type(error).__name__}: {first_line}" if first_line else type(error).__name__


def describe_odd_loss(output: Any) -> str | None:
    """Say so when a model's bare output is taken as its loss and looks like something else.

    The contract takes any bare tensor as the loss and averages it. What has two dimensions or
    more is hardly ever one; logits belong into ``{"logits": ...}``.
    """
    if not isinstance(output, Tensor) or output.ndim < _MIN_ODD_DIMENSIONS:
        return None
    return (
        f"the model returned a bare tensor of shape {tuple(output.shape)}: its mean is trained as"
        " the loss, labels have no part in it; return {'logits': ...} or a scalar loss instead"
    )


class EagerForward:
    """From a batch on the device to its scalar loss, through the model as written.

    Args:
        model: The model.
        on_odd_loss: Told once what looks wrong about the first loss.
    """

    def __init__(
        self, model: nn.Module, *, on_odd_loss: Callable[[str], None] | None = None
    ) -> None:
        self._model = model
        self._split = resolve_splitter(unwrap(model))
        self._on_odd_loss = on_odd_loss

    def __call__(self, batch: Any) -> Tensor:
        """Return the loss of one microbatch."""
        call = self._split(batch)
        output = self._model(*call.args, **call.kwargs)
        if self._on_odd_loss is not None:
            reason = describe_odd_loss(output)
            if reason is not None:
                self._on_odd_loss(reason)
            self._on_odd_loss = None
        return resolve_loss(output, batch)


class CompiledForward:
    """The same through ``torch.compile``, until something in it fails.

    The promise: a construction that fails, or any exception from a compiled forward, puts the
    random state back, runs that batch through the eager model and stays there. It is broad, and
    can hide a fault of the model that the eager model does not have.

    Args:
        model: The model as written.
        mode: Mode of ``torch.compile``.
        on_compiled: Told the seconds of the first compiled forward.
        on_fallback: Told why the eager model runs from now on.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        mode: str,
        on_compiled: Callable[[float], None],
        on_fallback: Callable[[str], None],
    ) -> None:
        self._model = model
        self._mode = mode
        self._on_compiled = on_compiled
        self._on_fallback = on_fallback
        self._split = resolve_splitter(model)
        self._eager = EagerForward(model)
        self._forward: Callable[[Any], Tensor] = self._compile_first

    def __call__(self, batch: Any) -> Tensor:
        """Return the loss of one microbatch."""
        return self._forward(batch)

    def _compile_first(self, batch: Any) -> Tensor:
        started = time.perf_counter()
        try:
            self._compiled = torch.compile(self._model, mode=self._mode)
        except Exception as error:  # noqa: BLE001 - the contract: construction failure stays eager
            self._fall_back(error)
            return self._eager(batch)
        self._forward = self._run_compiled
        loss = self._run_compiled(batch)
        if self._forward is not self._eager:
            self._on_compiled(time.perf_counter() - started)
        return loss

    def _run_compiled(self, batch: Any) -> Tensor:
        before = snapshot_rng()
        try:
            call = self._split(batch)
            return resolve_loss(self._compiled(*call.args, **call.kwargs), batch)
        except Exception as error:  # noqa: BLE001 - the contract: any failure reruns eagerly
            restore_rng(before)
            loss = self._eager(batch)  # a fault of the model itself is raised from here
            self._fall_back(error)
            return loss

    def _fall_back(self, error: Exception) -> None:
        self._forward = self._eager
        self._on_fallback(f"the compiled model failed, eager from here: {describe(error)}")
