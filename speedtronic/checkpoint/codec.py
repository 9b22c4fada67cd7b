"""A nested state as plain JSON beside named tensors, and back; nothing is ever pickled.

JSON values stand for themselves. What JSON cannot say is an object with the key ``"$"``: tuples,
dicts with other keys, NaN and infinity, bytes, torch dtypes and devices, NumPy arrays, tensors.
"""

from __future__ import annotations

import base64
import math
import re
from collections import OrderedDict, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from speedtronic.checkpoint.folder import OPTIM_FILE, STATE_FILE
from speedtronic.core.errors import CheckpointError

_MARK = "$"
_MODEL = "model"
_PLAIN_KEY = re.compile(r"[A-Za-z_][\w.]*")
_DICT_TYPES = (dict, OrderedDict, defaultdict)
# A header entry of a safetensors file with this name is not a tensor.
_RESERVED_NAME = "__metadata__"
# Bytes; a wider NumPy number has no Python number of equal value.
_WORD = 8
# What the safetensors format has a name for.
_DTYPES = frozenset(
    {
        torch.bool,
        torch.uint8,
        torch.int8,
        torch.uint16,
        torch.int16,
        torch.uint32,
        torch.int32,
        torch.uint64,
        torch.int64,
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.float64,
        torch.complex64,
        torch.float8_e4m3fn,
        torch.float8_e4m3fnuz,
        torch.float8_e5m2,
        torch.float8_e5m2fnuz,
        torch.float8_e8m0fnu,
        torch.float4_e2m1fn_x2,
    }
)


@dataclass(frozen=True)
class EncodedState:
    """A state taken apart. The tree is a copy; the tensors are still the caller's own."""

    tree: Any
    """Strict JSON, with references to the tensors."""
    tensors: dict[str, dict[str, Tensor]]
    """Per file, the tensors by name. The model's are named as in its ``state_dict``."""
    aliases: dict[str, str] = field(default_factory=dict)
    """Names of the model's tied tensors, each with the name it is stored under."""


def encode(state: Mapping[str, Any]) -> EncodedState:
    """Take a nested state apart into JSON and tensors.

    Tensors below ``state["model"]`` go to ``state.safetensors``, all others to
    ``optim.safetensors``. Two references to the same elements in the same order (tied weights)
    are stored once. Other views of one storage are stored each with its own elements.

    Args:
        state: Dicts, lists and tuples, nested, of None, booleans, integers, floats, strings,
            bytes, torch dtypes and devices, NumPy numbers and arrays, and tensors. Dict keys are
            strings, integers, floats, booleans or None. NumPy numbers come back as Python numbers,
            and ``OrderedDict`` and ``defaultdict`` as ``dict``, equal to what was given.

    Raises:
        CheckpointError: Anything else; the message names its path.
    """
    encoder = _Encoder()
    try:
        # The model first: a tensor that others refer to as well is stored with it.
        trees = {
            key: encoder.encode(state[key], (key,))
            for key in sorted(state, key=lambda key: key != _MODEL)
        }
    except RecursionError as error:
        raise CheckpointError("cannot save a state that is nested this deeply") from error
    tree = encoder.encode_items({key: trees[key] for key in state}, ())
    return EncodedState(tree=tree, tensors=encoder.tensors, aliases=encoder.aliases)


class _Encoder:
    """One pass over a state: collects tensors, their names and who shares them."""

    def __init__(self) -> None:
        self.tensors: dict[str, dict[str, Tensor]] = {STATE_FILE: {}, OPTIM_FILE: {}}
        self.aliases: dict[str, str] = {}
        self._references: dict[tuple[Any, ...], dict[str, str]] = {}
        self._open: set[int] = set()

    def encode(self, value: Any, path: tuple[Any, ...]) -> Any:
        kind = type(value)
        if value is None or kind in (bool, int, str):
            return value
        if kind is float:
            return value if math.isfinite(value) else {_MARK: "float", "value": repr(value)}
        if isinstance(value, Tensor):
            return self._encode_tensor(value, path)
        if kind in (list, tuple, torch.Size) or kind in _DICT_TYPES:
            return self._encode_container(value, path)
        return self._encode_other(value, path)

    def encode_items(self, encoded: dict[Any, Any], path: tuple[Any, ...]) -> Any:
        """Write a dict whose values are encoded already."""
        if all(type(key) is str for key in encoded) and _MARK not in encoded:
            return encoded
        items = [[self._encode_key(key, path), value] for key, value in encoded.items()]
        return {_MARK: "dict", "items": items}

    def _encode_key(self, key: Any, path: tuple[Any, ...]) -> Any:
        if key is None or type(key) in (bool, int, float, str):
            return self.encode(key, path)
        raise _refusal(path, f"a dict with the {type(key).__name__} key {key!r}")

    def _encode_container(self, value: Any, path: tuple[Any, ...]) -> Any:
        if id(value) in self._open:
            raise _refusal(path, f"a {type(value).__name__} that contains itself")
        self._open.add(id(value))
        try:
            if isinstance(value, dict):
                encoded = {key: self.encode(item, (*path, key)) for key, item in value.items()}
                return self.encode_items(encoded, path)
            items = [self.encode(item, (*path, index)) for index, item in enumerate(value)]
            return items if type(value) is list else {_MARK: "tuple", "items": items}
        finally:
            self._open.discard(id(value))

    def _encode_other(self, value: Any, path: tuple[Any, ...]) -> Any:
        if type(value) is bytes:
            return {_MARK: "bytes", "base64": base64.b64encode(value).decode("ascii")}
        if isinstance(value, torch.dtype):
            return {_MARK: "dtype", "name": str(value).removeprefix("torch.")}
        if isinstance(value, torch.device):
            return {_MARK: "device", "name": str(value)}
        if isinstance(value, np.generic) and value.dtype.kind in "biuf" and value.itemsize <= _WORD:
            return self.encode(value.item(), path)
        if type(value) is np.ndarray:
            return {_MARK: "numpy", "tensor": self._encode_array(value, path)}
        raise _refusal(path, f"a {type(value).__name__}")

    def _encode_array(self, value: np.ndarray, path: tuple[Any, ...]) -> Any:
        try:
            tensor = torch.from_numpy(np.array(value, order="C"))
        except (TypeError, ValueError) as error:
            raise _refusal(path, f"an array of {value.dtype}") from error
        return self._encode_tensor(tensor, path)

    def _encode_tensor(self, value: Tensor, path: tuple[Any, ...]) -> dict[str, str]:
        _check_tensor(value, path)
        identity = _identity(value)
        known = self._references.get(identity)
        if known is not None:
            if path[0] == _MODEL and known["file"] == STATE_FILE:
                self.aliases[_join(path[1:] or path)] = known["name"]
            return known
        file = STATE_FILE if path[0] == _MODEL else OPTIM_FILE
        name = self._free_name(_join((file == STATE_FILE and path[1:]) or path), file)
        self.tensors[file][name] = value.detach()
        reference = {_MARK: "tensor", "file": file, "name": name}
        if value.numel():  # empty tensors all have the address 0
            self._references[identity] = reference
        return reference

    def _free_name(self, name: str, file: str) -> str:
        taken = self.tensors[file]
        number, free = 1, name
        while free in taken or free == _RESERVED_NAME:
            number += 1
            free = f"{name}#{number}"
        return free


def _check_tensor(value: Tensor, path: tuple[Any, ...]) -> None:
    if type(value) not in (Tensor, nn.Parameter, nn.Buffer):
        raise _refusal(path, f"a {type(value).__name__}")
    if value.is_meta:
        raise _refusal(path, "a tensor on the meta device, it holds no values")
    if value.layout != torch.strided:
        raise _refusal(path, f"a tensor with the layout {value.layout}; call .to_dense() first")
    is_lone_nibble = value.dtype == torch.float4_e2m1fn_x2 and value.ndim == 0
    if value.dtype not in _DTYPES or is_lone_nibble:
        raise _refusal(path, f"a {value.ndim}-d tensor of {value.dtype}")


def _identity(value: Tensor) -> tuple[Any, ...]:
    """Return what two tensors share when they are the same elements in the same order."""
    return (
        value.device,
        value.data_ptr(),
        value.dtype,
        value.shape,
        value.stride(),
        value.is_conj(),
        value.is_neg(),
    )


def _refusal(path: tuple[Any, ...], what: str) -> CheckpointError:
    return CheckpointError(f"{_render(path) or 'state'}: cannot save {what}")


def _render(path: tuple[Any, ...]) -> str:
    """Write a path as Python would: ``optimizer.state[0].exp_avg``."""
    text = ""
    for key in path:
        if type(key) is str and _PLAIN_KEY.fullmatch(key):
            text += f".{key}" if text else key
        else:
            text += f"[{key!r}]"
    return text


def _join(path: tuple[Any, ...]) -> str:
    """Return a tensor's name: its path with dots, and lone surrogates, no valid UTF-8, escaped."""
    return ".".join(map(str, path)).encode("utf-8", "backslashreplace").decode("utf-8")


def decode(tree: Any, tensors: Mapping[str, Mapping[str, Tensor]]) -> Any:
    """Put a state together again.

    Args:
        tree: What ``encode`` wrote.
        tensors: Per file, the tensors by name. Two references to one name get the same object.

    Raises:
        CheckpointError: The tree names a tensor that is not there, or a kind this version does not
            know.
    """
    if isinstance(tree, list):
        return [decode(item, tensors) for item in tree]
    if not isinstance(tree, dict):
        return tree
    if _MARK not in tree:
        return {key: decode(item, tensors) for key, item in tree.items()}
    try:
        return _decode_marked(tree, tensors)
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise CheckpointError(
            f"the checkpoint holds an unreadable entry {str(tree)[:200]}"
        ) from error


def _decode_marked(tree: dict[str, Any], tensors: Mapping[str, Mapping[str, Tensor]]) -> Any:
    match tree[_MARK]:
        case "tensor":
            return tensors[tree["file"]][tree["name"]]
        case "tuple":
            return tuple(decode(item, tensors) for item in tree["items"])
        case "dict":
            return {decode(key, {}): decode(item, tensors) for key, item in tree["items"]}
        case "numpy":
            return decode(tree["tensor"], tensors).cpu().numpy()
        case _:
            return _decode_scalar(tree)


def _decode_scalar(tree: dict[str, Any]) -> Any:
    match tree[_MARK]:
        case "float":
            return float(tree["value"])
        case "bytes":
            return base64.b64decode(tree["base64"], validate=True)
        case "device":
            return torch.device(tree["name"])
        case "dtype":
            dtype = getattr(torch, tree["name"])
            if not isinstance(dtype, torch.dtype):
                raise TypeError(tree["name"])
            return dtype
        case other:
            raise ValueError(other)
