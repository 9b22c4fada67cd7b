"""Page-locked memory where there is a CUDA device."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

from speedtronic.core.errors import FallbackWarning
from speedtronic.data.loader import TokenLoader
from speedtronic.data.pinning import resolve_pin_memory
from speedtronic.data.synthetic import build_synthetic_data


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_pinning_without_a_cuda_device_is_one_visible_fallback():
    with pytest.warns(FallbackWarning, match=r"data.pin_memory=true needs a CUDA device") as caught:
        data = build_synthetic_data(
            num_tokens=1000, block_size=8, micro_batch_size=2, seed=1, pin_memory=True
        )
    assert len(caught) == 1
    assert next(iter(data.evaluation))["labels"].shape == (2, 8)


def test_not_pinning_warns_of_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert resolve_pin_memory(wanted=False) is False


@pytest.mark.gpu
@pytest.mark.parametrize("prefetch_factor", [0, 2])
def test_pinned_batches_hold_the_same_ids(prefetch_factor):
    tokens = np.arange(101, dtype=np.uint16)
    options = {"block_size": 4, "micro_batch_size": 3, "seed": 1}
    plain = iter(TokenLoader(tokens, **options))
    pinned = iter(TokenLoader(tokens, **options, pin_memory=True, prefetch_factor=prefetch_factor))
    for _ in range(20):
        expected, got = next(plain), next(pinned)
        for name in ("input_ids", "labels"):
            assert got[name].is_pinned()
            assert torch.equal(got[name], expected[name])
            on_gpu = got[name].to("cuda", non_blocking=True)
            assert torch.equal(on_gpu.cpu(), expected[name])
    plain.close()
    pinned.close()
