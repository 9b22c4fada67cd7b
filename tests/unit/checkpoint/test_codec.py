"""checkpoint/codec: every promised value comes back, ties are kept, the rest is refused."""

from __future__ import annotations

import json
import math
from collections import Counter, OrderedDict, defaultdict, namedtuple
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from speedtronic.checkpoint.codec import decode, encode
from speedtronic.checkpoint.folder import OPTIM_FILE, STATE_FILE
from speedtronic.core.errors import CheckpointError


def there_and_back(state):
    """Go through strict JSON text, as a file does."""
    encoded = encode(state)
    text = json.dumps(encoded.tree, allow_nan=False)
    return decode(json.loads(text), encoded.tensors)


VALUES = {
    "none": None,
    "booleans": [True, False],
    "integers": [0, -1, 2**63, 2**127 + 3],
    "floats": [0.1, 1e-308, 5e-324, 1.7976931348623157e308],
    "texts": ["", "ä", "\ud800", "$", "\n"],
    "tuples": (1, (2,), ()),
    "lists": [[], [[]]],
    "bytes": b"\x00\xff",
    "dtype": torch.bfloat16,
    "device": torch.device("cuda", 1),
    "integer keys": {0: "a", -3: "b"},
    "mixed keys": {None: 1, True: 2, 2: 3, 2.5: 4, "s": 5},
    "marked": {"$": "tensor", "file": "x"},
    "nested": {"a": {1: [({"b": (None,)},)]}},
}


@pytest.mark.parametrize("name", VALUES)
def test_plain_values_come_back_equal_and_of_the_same_type(name: str) -> None:
    result = there_and_back({"value": VALUES[name]})["value"]
    assert result == VALUES[name]
    assert repr(result) == repr(VALUES[name])


def test_non_finite_floats_come_back_as_values_and_as_keys() -> None:
    result = there_and_back({"x": [math.nan, math.inf, -math.inf, -0.0], "k": {math.inf: 1}})
    assert math.isnan(result["x"][0])
    assert result["x"][1:3] == [math.inf, -math.inf]
    assert math.copysign(1.0, result["x"][3]) == -1.0
    assert result["k"] == {math.inf: 1}


def test_the_order_of_keys_is_kept() -> None:
    state = {"z": 1, "model": {"b": torch.ones(1), "a": torch.ones(1)}, "y": {2: 0, 1: 0}}
    result = there_and_back(state)
    assert list(result) == ["z", "model", "y"]
    assert list(result["model"]) == ["b", "a"]
    assert list(result["y"]) == [2, 1]


def test_dict_kinds_and_sizes_come_back_as_plain_dicts_and_tuples() -> None:
    kinds = {"o": OrderedDict(a=1), "d": defaultdict(list, b=[2]), "s": torch.Size([2, 3])}
    result = there_and_back(kinds)
    assert result == {"o": {"a": 1}, "d": {"b": [2]}, "s": (2, 3)}
    assert [type(value) for value in result.values()] == [dict, dict, tuple]


def test_numpy_numbers_become_python_numbers_and_arrays_stay_arrays() -> None:
    state = {
        "f": np.float64(0.1),
        "g": np.float32(0.1),
        "i": np.int64(7),
        "b": np.bool_(True),
        "a": np.arange(6, dtype=np.uint32).reshape(2, 3)[:, ::2],
    }
    result = there_and_back(state)
    assert [type(result[key]) for key in "fgib"] == [float, float, int, bool]
    assert [result[key] for key in "fgib"] == [0.1, 0.10000000149011612, 7, True]
    assert result["a"].dtype == np.uint32
    assert result["a"].tolist() == [[0, 2], [3, 5]]


DTYPES = [
    *(torch.bool, torch.uint8, torch.int8, torch.uint16, torch.int16, torch.uint32, torch.int32),
    *(torch.uint64, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64),
    *(torch.complex64, torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2),
    *(torch.float8_e5m2fnuz, torch.float8_e8m0fnu, torch.float4_e2m1fn_x2),
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_of_the_file_format_is_accepted(dtype: torch.dtype) -> None:
    tensor = torch.zeros(16, dtype=torch.uint8).view(dtype)
    assert there_and_back({"x": tensor})["x"].dtype == dtype


def test_model_tensors_keep_their_names_and_all_others_go_to_the_second_file() -> None:
    state = {
        "optimizer": {"state": {0: {"exp_avg": torch.ones(2)}}},
        "model": {"blocks.0.weight": torch.zeros(2), "head": torch.zeros(1)},
        "rng": {"torch": torch.zeros(3)},
    }
    encoded = encode(state)
    assert list(encoded.tensors[STATE_FILE]) == ["blocks.0.weight", "head"]
    assert list(encoded.tensors[OPTIM_FILE]) == ["optimizer.state.0.exp_avg", "rng.torch"]


def test_names_that_collide_are_told_apart() -> None:
    state = {"a": {"b.c": torch.tensor(1)}, "a.b": {"c": torch.tensor(2)}}
    encoded = encode(state)
    assert list(encoded.tensors[OPTIM_FILE]) == ["a.b.c", "a.b.c#2"]
    result = there_and_back(state)
    assert [int(result["a"]["b.c"]), int(result["a.b"]["c"])] == [1, 2]


def test_the_reserved_header_name_is_not_used_for_a_tensor() -> None:
    encoded = encode({"model": {"__metadata__": torch.ones(1)}})
    assert list(encoded.tensors[STATE_FILE]) == ["__metadata__#2"]


def test_tied_tensors_are_stored_once_and_come_back_as_one_object() -> None:
    weight = nn.Parameter(torch.arange(6.0).reshape(2, 3))
    state = {"optimizer": [weight], "model": {"embedding": weight, "head": weight.detach()}}
    encoded = encode(state)
    assert list(encoded.tensors[STATE_FILE]) == ["embedding"]
    assert encoded.tensors[OPTIM_FILE] == {}
    assert encoded.aliases == {"head": "embedding"}
    result = there_and_back(state)
    assert result["model"]["head"] is result["model"]["embedding"]
    assert result["optimizer"][0] is result["model"]["embedding"]
    assert not result["model"]["head"].requires_grad


def test_different_views_of_one_storage_are_stored_each_with_its_own_elements() -> None:
    flat = torch.arange(6.0)
    state = {
        "model": {
            "head": flat[:2],
            "tail": flat[4:],
            "all": flat,
            "matrix": flat.view(2, 3),
            "square": flat[:4].view(2, 2),
            "transposed": flat[:4].view(2, 2).T,
            "bits": flat.view(torch.int32),
        }
    }
    encoded = encode(state)
    assert list(encoded.tensors[STATE_FILE]) == list(state["model"])
    assert encoded.aliases == {}


def test_empty_tensors_are_never_taken_for_tied() -> None:
    encoded = encode({"model": {"a": torch.empty(0), "b": torch.empty(0)}})
    assert encoded.aliases == {}
    assert list(encoded.tensors[STATE_FILE]) == ["a", "b"]


class Foo:
    """Something no checkpoint holds."""


class Sub(torch.Tensor):
    """A tensor of another kind."""


Point = namedtuple("Point", "x y")
LOOP: list = []
LOOP.append(LOOP)

REFUSED = [
    ({"optimizer": {"state": [{"foo": Foo()}]}}, "optimizer.state[0].foo: cannot save a Foo"),
    ({"a": {0: {"b.c": {1, 2}}}}, "a[0].b.c: cannot save a set"),
    ({"a": {"has space": Path("x")}}, "a['has space']: cannot save a PosixPath"),
    ({"a": lambda: 0}, "a: cannot save a function"),
    ({"a": Point(1, 2)}, "a: cannot save a Point"),
    ({"a": Counter("x")}, "a: cannot save a Counter"),
    ({"a": 1j}, "a: cannot save a complex"),
    ({"a": np.str_("x")}, "a: cannot save a str_"),
    ({"a": np.longdouble(1)}, "a: cannot save a longdouble"),
    ({"a": np.array(["x"])}, "a: cannot save an array of <U1"),
    ({"a": np.array([1.0], dtype=">f8")}, "a: cannot save an array of >f8"),
    ({"a": {(1, 2): 3}}, "a: cannot save a dict with the tuple key (1, 2)"),
    ({"a": LOOP}, "a[0]: cannot save a list that contains itself"),
    ({"a": torch.ones(1).as_subclass(Sub)}, "a: cannot save a Sub"),
    ({"a": torch.ones(1, device="meta")}, "a: cannot save a tensor on the meta device"),
    ({"a": torch.eye(2).to_sparse()}, "a: cannot save a tensor with the layout torch.sparse_coo"),
    (
        {"a": torch.ones(2, dtype=torch.complex128)},
        "a: cannot save a 1-d tensor of torch.complex128",
    ),
    ({1: Foo()}, "[1]: cannot save a Foo"),
    ({(1,): 1}, "state: cannot save a dict with the tuple key (1,)"),
]


@pytest.mark.parametrize(("state", "message"), REFUSED, ids=[text for _, text in REFUSED])
def test_anything_else_is_refused_by_its_path(state: dict, message: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        encode(state)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_state_nested_too_deeply_is_refused() -> None:
    deep: list = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(CheckpointError, match="cannot save a state that is nested this deeply"):
        encode({"a": deep})


def test_the_same_container_twice_is_no_loop() -> None:
    shared = [1]
    assert there_and_back({"a": shared, "b": shared}) == {"a": [1], "b": [1]}


UNREADABLE = [
    {"$": "tensor", "file": "state.safetensors", "name": "gone"},
    {"$": "dtype", "name": "nn"},
    {"$": "os.system", "args": ["true"]},
    {"$": "tuple"},
    {"$": "bytes", "base64": "%"},
]


@pytest.mark.parametrize("tree", UNREADABLE, ids=str)
def test_an_unknown_entry_is_an_error_that_shows_it(tree: dict) -> None:
    with pytest.raises(CheckpointError, match="the checkpoint holds an unreadable entry") as caught:
        decode({"a": [tree]}, {})
    assert str(tree) in str(caught.value)
