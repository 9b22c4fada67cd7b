"""checkpoint/tensor_files: exact bytes, owned memory, copies that are reused, NaN found."""

from __future__ import annotations

import errno
import math
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from speedtronic.checkpoint.folder import DamagedCheckpointError
from speedtronic.checkpoint.tensor_files import (
    TensorCopies,
    name_of_nan,
    read_aliases,
    read_tensors,
    write_tensors,
)

FILE = "state.safetensors"


def same_bits(left: Tensor, right: Tensor) -> bool:
    if left.dtype != right.dtype or left.shape != right.shape:
        return False
    if left.numel() == 0:
        return True
    as_bytes = [
        tensor.contiguous().reshape(-1).view(torch.uint8).tolist() for tensor in (left, right)
    ]
    return as_bytes[0] == as_bytes[1]


@contextmanager
def file_size_limit(size_bytes: int) -> Iterator[None]:
    """Let every write beyond a size fail, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


DTYPES = [
    *(torch.bool, torch.uint8, torch.int8, torch.uint16, torch.int16, torch.uint32, torch.int32),
    *(torch.uint64, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64),
    *(torch.complex64, torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2),
    *(torch.float8_e5m2fnuz, torch.float8_e8m0fnu, torch.float4_e2m1fn_x2),
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_is_written_and_read_bit_for_bit(tmp_path: Path, dtype: torch.dtype) -> None:
    raw = torch.arange(96, dtype=torch.uint8) % 2 if dtype == torch.bool else torch.arange(96)
    vector = raw.to(torch.uint8).view(dtype)
    tensors = {"vector": vector, "matrix": vector.view(2, -1), "empty": vector[:0].view(0, 3)}
    if dtype != torch.float4_e2m1fn_x2:
        tensors["scalar"] = vector[1].reshape(())
    copies = TensorCopies().take({FILE: tensors})[FILE]
    write_tensors(tmp_path / FILE, copies)
    result = read_tensors(tmp_path / FILE)
    assert {
        name: same_bits(result[name], tensor) for name, tensor in tensors.items()
    } == dict.fromkeys(tensors, True)


def test_odd_layouts_are_written_with_their_own_values(tmp_path: Path) -> None:
    flat = torch.arange(24.0)
    cube = flat.view(2, 3, 4)
    tensors = {
        "transposed": cube.transpose(0, 2),
        "strided": flat[1::5],
        "reversed dims": cube.permute(2, 0, 1)[1:3],
        "expanded": torch.tensor([[7.0]]).expand(2, 3),
        "conjugate": torch.tensor([1 + 2j]).conj(),
        "needs grad": nn.Parameter(torch.ones(2)),
        "image": torch.arange(16.0).view(1, 4, 2, 2).to(memory_format=torch.channels_last),
    }
    copies = TensorCopies().take({FILE: tensors})[FILE]
    write_tensors(tmp_path / FILE, copies)
    result = read_tensors(tmp_path / FILE)
    for name, tensor in tensors.items():
        assert torch.equal(result[name], tensor.detach().resolve_conj()), name
    assert result["strided"].tolist() == [1.0, 6.0, 11.0, 16.0, 21.0]


def test_copies_do_not_follow_their_sources() -> None:
    weight = nn.Parameter(torch.ones(3))
    copy = TensorCopies().take({FILE: {"w": weight}})[FILE]["w"]
    with torch.no_grad():
        weight.fill_(2)
    assert copy.tolist() == [1.0, 1.0, 1.0]
    assert not copy.requires_grad


def test_memory_of_the_copies_is_used_again_until_it_is_freed() -> None:
    copies = TensorCopies()
    first = copies.take({FILE: {"w": torch.ones(3), "v": torch.ones(2)}})[FILE]
    second = copies.take({FILE: {"w": torch.full((3,), 2.0), "v": torch.ones(4)}})[FILE]
    assert second["w"] is first["w"]
    assert second["w"].tolist() == [2.0, 2.0, 2.0]
    assert second["v"].shape == (4,)
    assert (
        copies.take({FILE: {"w": torch.ones(3, dtype=torch.int32)}})[FILE]["w"].dtype == torch.int32
    )
    copies.free()
    third = copies.take({FILE: {"w": torch.ones(3)}})[FILE]
    assert third["w"] is not first["w"]


def test_loaded_tensors_do_not_follow_the_file(tmp_path: Path) -> None:
    path = tmp_path / FILE
    write_tensors(path, {"w": torch.ones(1000)})
    mapped = load_file(path)["w"]
    owned = read_tensors(path)["w"]
    content = path.read_bytes()
    start = len(content) - 4000
    with path.open("r+b") as file:
        file.seek(start)
        file.write(torch.full((1000,), 2.0).numpy().tobytes())
    assert mapped[0] == 2.0, "the trap is gone: the library no longer maps files"
    assert owned.tolist() == [1.0] * 1000


def test_a_file_beyond_the_limit_of_the_disk_is_an_os_error(tmp_path: Path) -> None:
    with file_size_limit(100_000), pytest.raises(OSError, match=r"state.safetensors: .*too large"):
        write_tensors(tmp_path / FILE, {"w": torch.ones(100_000)})


def test_the_file_is_flushed_to_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(
            errno.ENOSPC,
            "No space left on device",
            str(Path(f"/proc/self/fd/{descriptor}").readlink()),
        )

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space left on device") as caught:
        write_tensors(tmp_path / FILE, {"w": torch.ones(1)})
    assert caught.value.filename == str(tmp_path / FILE)


@pytest.mark.parametrize(
    "content", [b"", b"\x00" * 7, b"\xff" * 100, b"\x08\0\0\0\0\0\0\0garbage!"]
)
def test_a_file_of_another_kind_is_damaged(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE).write_bytes(content)
    with pytest.raises(DamagedCheckpointError, match=r"state\.safetensors cannot be read: "):
        read_tensors(tmp_path / FILE)


def test_aliases_are_empty_in_files_of_others(tmp_path: Path) -> None:
    save_file({"w": torch.ones(1)}, tmp_path / FILE, metadata={"format": "pt"})
    assert read_aliases(tmp_path / FILE) == {}


FLOATS = [
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64),
    *(torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz),
]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("position", [0, 5, -1])
def test_one_nan_among_many_is_found_in_every_float(dtype: torch.dtype, position: int) -> None:
    values = torch.linspace(-1, 1, 12)
    good = values.clone().to(dtype)
    values[position] = math.nan
    assert name_of_nan({"good": good}) is None
    assert name_of_nan({"good": good, "bad": values.to(dtype)}) == "bad"


def test_a_nan_beyond_the_first_million_elements_is_found() -> None:
    values = torch.zeros(2_500_000)
    values[2_400_000] = math.nan
    assert name_of_nan({"x": values}) == "x"
    assert name_of_nan({"x": values.to(torch.bfloat16)}) == "x"


def test_a_nan_with_the_sign_bit_is_found_in_bfloat16() -> None:
    negative_nan = torch.tensor([0xFFC0 - 0x10000], dtype=torch.int16).view(torch.bfloat16)
    assert name_of_nan({"x": negative_nan}) == "x"


def test_infinity_integers_and_empty_tensors_are_no_nan() -> None:
    infinite = torch.tensor([math.inf, -math.inf])
    tensors = {
        "mask": infinite,
        "bf16": infinite.to(torch.bfloat16),
        "int": torch.tensor([-1]),
        "empty": torch.empty(0),
        "bool": torch.tensor(True),
        "nibbles": torch.full((2,), 255, dtype=torch.uint8).view(torch.float4_e2m1fn_x2),
        "scalar": torch.tensor(1.0),
    }
    assert name_of_nan(tensors) is None
