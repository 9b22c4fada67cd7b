"""What Muon refuses, in its constructor and when a group is added later, word for word."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from speedtronic.core.errors import ConfigError
from speedtronic.optim.muon import Muon
from speedtronic.optim.muon_groups import check_muon_group


def random_tensor(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def random_weight(*shape: int, seed: int = 0) -> nn.Parameter:
    return nn.Parameter(random_tensor(*shape, seed=seed))


def sharded_weight() -> nn.Parameter:
    weight = random_weight(4, 6)
    weight.device_mesh = object()  # as a DTensor has
    return weight


def sparse_weight() -> nn.Parameter:
    return nn.Parameter(torch.eye(3).to_sparse())


UNFIT: list[tuple[Callable[[], nn.Parameter], str]] = [
    (
        lambda: nn.Parameter(torch.ones(6)),
        "parameter w of shape (6,) is no matrix; give it to AdamW, in a group of a"
        " HybridOptimizer with algorithm='adamw'",
    ),
    (
        lambda: nn.Parameter(torch.ones(())),
        "parameter w of shape () is no matrix; give it to AdamW, in a group of a"
        " HybridOptimizer with algorithm='adamw'",
    ),
    (sparse_weight, "parameter w of shape (3, 3) is sparse; train it with SparseAdam"),
    (
        lambda: nn.Parameter(torch.ones(2, 2, dtype=torch.complex64)),
        "parameter w of shape (2, 2) is complex64, not real floating point;"
        " freeze it or train it with another optimizer",
    ),
    (
        lambda: nn.Parameter(torch.ones(2, 2, dtype=torch.int32), requires_grad=False),
        "parameter w of shape (2, 2) is int32, not real floating point;"
        " freeze it or train it with another optimizer",
    ),
    (
        sharded_weight,
        "parameter w of shape (4, 6) is sharded; Muon needs the whole matrix: train it with AdamW",
    ),
    (
        lambda: nn.Parameter(torch.ones(2, 3, 4)),
        "parameter w of shape (2, 3, 4) may be a stack of matrices or a convolution;"
        " name it in layouts as 'stack' or 'flatten'",
    ),
]


# optimizers.md (18): in the constructor and in add_param_group; Moonlight #27, Megatron #5961
@pytest.mark.parametrize(("make_weight", "message"), UNFIT)
def test_what_is_no_whole_real_matrix_is_refused_now_and_later(
    make_weight: Callable[[], nn.Parameter], message: str
) -> None:
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        Muon([("w", make_weight())])
    optimizer = Muon([("a", random_weight(4, 6))])
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        optimizer.add_param_group({"params": [("w", make_weight())]})
    assert [group["param_names"] for group in optimizer.param_groups] == [["a"]]
    unnamed = message.replace("parameter w", "parameter number 1")
    with pytest.raises(ConfigError, match=f"^{re.escape(unnamed)}$"):
        Muon([random_weight(4, 6), make_weight()])


# optimizers.md (18): sparse gradients are refused when they come
def test_a_sparse_gradient_is_refused_before_its_parameter_changes() -> None:
    weight = random_weight(4, 6)
    optimizer = Muon([weight])
    weight.grad = random_tensor(4, 6, seed=1).to_sparse()
    message = (
        "muon takes no sparse gradients, got one for a parameter of shape (4, 6);"
        " build its embedding with sparse=False"
    )
    with pytest.raises(RuntimeError, match=f"^{re.escape(message)}$"):
        optimizer.step()
    assert torch.equal(weight, random_tensor(4, 6))


BAD_VALUES: list[tuple[dict[str, Any], str]] = [
    ({"eps": 0.0}, "eps must be above 0, got 0: a gradient of zeros would give NaN"),
    ({"lr": None}, "lr must be at least 0 and below inf, got None"),
    ({"lr": -0.1}, "lr must be at least 0 and below inf, got -0.1"),
    ({"lr": math.nan}, "lr must be at least 0 and below inf, got nan"),
    ({"lr": math.inf}, "lr must be at least 0 and below inf, got inf"),
    ({"momentum": -0.1}, "momentum must be at least 0 and below 1, got -0.1"),
    ({"momentum": 1.0}, "momentum must be at least 0 and below 1, got 1.0"),
    ({"weight_decay": -1}, "weight_decay must be at least 0 and below inf, got -1"),
    ({"normuon_beta2": 1.0}, "normuon_beta2 must be at least 0 and below 1, got 1.0"),
    ({"eps": -1e-7}, "eps must be at least 0 and below inf, got -1e-07"),
    (
        {"scale": "spectral"},
        "scale must be one of original, match_rms_adamw, spectral_unclamped, got 'spectral'",
    ),
    (
        {"scale": None},
        "scale must be one of original, match_rms_adamw, spectral_unclamped, got None",
    ),
    (
        {"muon_plus": "rows"},
        "muon_plus must be one of None, row, col, row_col, col_row, got 'rows'",
    ),
    ({"cautious": True}, "cautious must be one of None, wd, update, got True"),
    (
        {"orthogonalization": "svd"},
        "orthogonalization, ns_steps: method must be one of kj5, quintic5, polar_express, exact12,"
        " got 'svd'",
    ),
    (
        {"orthogonalization": "quintic5", "ns_steps": 6},
        "orthogonalization, ns_steps: num_steps is for kj5; quintic5 has 5 steps of its own,"
        " got 6; leave it out",
    ),
    ({"ns_steps": 0}, "orthogonalization, ns_steps: num_steps must be at least 1, got 0"),
]


@pytest.mark.parametrize(("values", "message"), BAD_VALUES)
def test_a_value_out_of_its_range_is_refused_now_and_later(
    values: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        Muon([random_weight(4, 6)], **values)
    optimizer = Muon([random_weight(4, 6)])
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        optimizer.add_param_group({"params": [random_weight(4, 6)], **values})
    assert len(optimizer.param_groups) == 1


BAD_LAYOUTS: list[tuple[tuple[int, ...], dict[str, Any], str]] = [
    (
        (4, 6),
        {"layouts": {"v": "matrix"}},
        "layouts: no parameter of the group is named 'v'; give named parameters",
    ),
    (
        (4, 6),
        {"row_splits": {"v": [2, 2], "w": [4], "x": [4]}},
        "row_splits: no parameter of the group is named 'v'; give named parameters",
    ),
    (
        (4, 6),
        {"layouts": {"w": "stack"}},
        "parameter w of shape (4, 6) does not fit the layout 'stack'",
    ),
    (
        (4, 6, 2),
        {"layouts": {"w": "transposed"}},
        "parameter w of shape (4, 6, 2) does not fit the layout 'transposed'",
    ),
    (
        (4, 6, 2),
        {"layouts": {"w": "matrix"}},
        "parameter w of shape (4, 6, 2) does not fit the layout 'matrix'",
    ),
    (
        (4, 6),
        {"row_splits": {"w": [1, 1, 1]}},
        "row_splits [1, 1, 1] of parameter w of shape (4, 6) must be positive and sum to its 4"
        " rows, got 3",
    ),
    (
        (4, 6),
        {"row_splits": {"w": [5, -1]}},
        "row_splits [5, -1] of parameter w of shape (4, 6) must be positive and sum to its 4"
        " rows, got 4",
    ),
    (
        (4, 6),
        {"row_splits": {"w": [4, 0]}},
        "row_splits [4, 0] of parameter w of shape (4, 6) must be positive and sum to its 4"
        " rows, got 4",
    ),
    (
        (4, 6),
        {"layouts": {"w": "transposed"}, "row_splits": {"w": [4]}},
        "row_splits [4] of parameter w of shape (4, 6) must be positive and sum to its 6 rows,"
        " got 4",
    ),
    (
        (2, 4, 6),
        {"layouts": {"w": "stack"}, "row_splits": {"w": [2]}},
        "row_splits [2] of parameter w of shape (2, 4, 6) must be positive and sum to its 4 rows,"
        " got 2",
    ),
]


# Megatron #4731: splits that do not sum to the rows are an error
@pytest.mark.parametrize(("shape", "keys", "message"), BAD_LAYOUTS)
def test_a_layout_or_split_that_does_not_fit_is_refused_now_and_later(
    shape: tuple[int, ...], keys: dict[str, Any], message: str
) -> None:
    group = {"params": [("w", random_weight(*shape))], **keys}
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        Muon([group])
    optimizer = Muon([("a", random_weight(4, 6))])
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        optimizer.add_param_group(group)
    assert len(optimizer.param_groups) == 1


def test_layouts_of_unnamed_parameters_are_refused() -> None:
    message = "layouts: no parameter of the group is named 'w'; give named parameters"
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        Muon([{"params": [random_weight(4, 6)], "layouts": {"w": "matrix"}}])


def test_a_group_that_muon_can_train_passes_the_check() -> None:
    optimizer = Muon([("w", random_weight(4, 6))], normuon_beta2=None, ns_steps=7)
    check_muon_group(optimizer.param_groups[0])
    bad = {**optimizer.param_groups[0], "momentum": 2.0}
    with pytest.raises(ConfigError, match=r"^momentum must be"):
        check_muon_group(bad)


def test_the_defaults_are_those_written_down() -> None:
    group = Muon([random_weight(4, 6)]).param_groups[0]
    assert {key: group[key] for key in group if key != "params"} == {
        "algorithm": "muon",
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
    }
