"""Any tree of the promised values goes through a file and comes back, value and type."""

from __future__ import annotations

import json
import math
import tempfile
from pathlib import Path
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from speedtronic.checkpoint.codec import decode, encode
from speedtronic.checkpoint.manager import CheckpointManager

DTYPES = [
    *(torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.uint8),
    *(torch.bool, torch.complex64),
]


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    """Draw a small tensor: any number of dimensions, empty ones, strided and transposed views."""
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    dtype = draw(st.sampled_from(DTYPES))
    seed = draw(st.integers(0, 2**31))
    generator = torch.Generator().manual_seed(seed)
    values = torch.randint(0, 2, (*shape, 2), generator=generator).to(dtype)
    view = values[..., 1] if draw(st.booleans()) else values.movedim(-1, 0)
    return view.mT if view.ndim >= 2 and draw(st.booleans()) else view


keys = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.binary()
    | st.sampled_from(DTYPES)
    | tensors()
)
trees = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(keys, inner, max_size=3)
        | st.dictionaries(st.sampled_from(["$", "tensor", "items"]), inner, max_size=3)
    ),
    max_leaves=12,
)


def same(left: Any, right: Any) -> bool:
    """Compare value, type, order of keys, and NaN with NaN."""
    if type(left) is not type(right):
        return False
    if isinstance(left, torch.Tensor):
        return left.dtype == right.dtype and left.shape == right.shape and torch.equal(left, right)
    if isinstance(left, dict):
        return (
            len(left) == len(right)
            and all(same(a, b) for a, b in zip(left, right, strict=True))
            and all(same(a, b) for a, b in zip(left.values(), right.values(), strict=True))
        )
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, float):
        both_nan = math.isnan(left) and math.isnan(right)
        return both_nan or (left == right and math.copysign(1, left) == math.copysign(1, right))
    return bool(left == right)


@given(st.dictionaries(st.text(), trees, max_size=4))
@settings(max_examples=200, deadline=None)
def test_every_tree_comes_back_through_strict_json(state: dict[str, Any]) -> None:
    encoded = encode(state)
    text = json.dumps(encoded.tree, allow_nan=False)
    assert same(decode(json.loads(text), encoded.tensors), state)


@given(
    st.dictionaries(st.text(max_size=5), tensors(), max_size=3),
    st.dictionaries(st.sampled_from(["optimizer", "rng", "extra"]), trees, max_size=2),
)
@settings(max_examples=40, deadline=None)
def test_every_state_comes_back_from_the_disk(
    model: dict[str, torch.Tensor], rest: dict[str, Any]
) -> None:
    state = {**rest, "model": model}
    with tempfile.TemporaryDirectory() as folder:
        manager = CheckpointManager(Path(folder) / "c", async_save=False)
        manager.save(1, state)
        manager.close()
        assert same(manager.load_latest(), state)


@given(st.lists(st.tuples(st.integers(0, 30), st.floats(0, 1) | st.none()), max_size=8))
@settings(max_examples=25, deadline=None)
def test_the_best_and_the_last_are_always_kept(saves: list[tuple[int, float | None]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        manager = CheckpointManager(Path(folder) / "c", async_save=False, keep_last=2, keep_best=1)
        best = math.inf
        for step, (_, metric) in enumerate(saves):
            manager.save(step, {"step": step}, metric=metric)
            best = min(best, math.inf if metric is None else metric)
            kept = [manager.load(path)["step"] for path in manager.paths()]
            assert kept[-2:] == list(range(max(0, step - 1), step + 1))
            assert len(kept) <= 3
            if best < math.inf:
                found = manager.best_path()
                assert found is not None
                assert saves[manager.load(found)["step"]][1] == best
