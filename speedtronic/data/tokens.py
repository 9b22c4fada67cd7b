"""Files of token ids: written once, then mapped into memory and never loaded.

A shard is a ``.bin`` file of bare little-endian uint16 or uint32 numbers, or a ``.npy`` file of
one such array. ``tokens.json`` beside the shards says how they were written; without it a ``.bin``
file holds uint16, or uint32 when its name ends in ``.uint32.bin``.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack, cast

import numpy as np

from speedtronic.core.errors import DataError
from speedtronic.core.files import fsync_dir, unique_suffix, write_atomic, write_json
from speedtronic.core.types import JSON, Tokenizer
from speedtronic.data.assemble import Loading, LoadingOptions, assemble
from speedtronic.data.corpus import Corpus, PathsLike, as_paths, find_files, read_texts
from speedtronic.data.loaded import LoadedData
from speedtronic.data.splitting import held_out_period, is_held_out, tail_start
from speedtronic.data.stream import TokenStream
from speedtronic.data.tokenizers import build_tokenizer, smallest_id_type, tokenizer_from_dict

DESCRIPTION = "tokens.json"
DEFAULT_SHARD_TOKENS = 50_000_000
SHARD_SUFFIXES = (".bin", ".npy")
# Up to this many ids are all checked at the start (0.1 s); of more, each batch is when it is read.
CHECK_AT_START_TOKENS = 1 << 27
_SCAN_TOKENS = 1 << 22
_ID_TYPES: dict[str, np.dtype[Any]] = {
    "uint16": np.dtype(np.uint16),
    "uint32": np.dtype(np.uint32),
}


@dataclass(frozen=True)
class Shards:
    """Mapped files of token ids."""

    paths: tuple[Path, ...]
    """The files, in order."""
    arrays: tuple[np.ndarray, ...]
    """Their ids, mapped, all of one type."""
    description: dict[str, Any] | None
    """What ``tokens.json`` says, None where there is none."""


def build_tokens_data(
    *, path: PathsLike, tokenizer: str | None = None, **loading: Unpack[LoadingOptions]
) -> LoadedData:
    """Build data over files of token ids without loading them.

    The tail of the tokens is held out, or every n-th shard where there are many.

    Args:
        path: A shard, a pattern, a folder, or a list of those.
        tokenizer: What the ids stand for; None for the one named in ``tokens.json``. With neither,
            the vocabulary is the largest id plus one.
        **loading: How samples become batches, see ``Loading``.

    Raises:
        DataError: a shard is missing, no array of ids, or holds an id outside the vocabulary.
    """
    options = Loading(**loading)
    shards = open_shards(path)
    live_tokenizer = _resolve_tokenizer(tokenizer, shards)
    vocab_size, id_limit = _resolve_vocabulary(live_tokenizer, shards)
    train, held_out = _split(shards, fraction=options.validation_fraction, id_limit=id_limit)
    num_tokens = sum(len(array) for array in shards.arrays)
    return assemble(
        train,
        held_out,
        tokenizer=live_tokenizer,
        vocab_size=vocab_size,
        facts={
            "source": "tokens",
            "files": len(shards.paths),
            "bytes": num_tokens * shards.arrays[0].itemsize,
            "sha256": cast("JSON", (shards.description or {}).get("sha256")),
            "dtype": str(shards.arrays[0].dtype),
        },
        loading=options,
    )


def open_shards(path: PathsLike) -> Shards:
    """Map every shard that paths, patterns and folders name.

    Raises:
        DataError: a shard is missing or holds no ids, or the shards differ in type.
    """
    found = [file for name in as_paths(path) for file in _find_shards(name)]
    paths = tuple(dict.fromkeys(found))
    description = _read_description(paths[0].parent)
    arrays = tuple(_map_shard(file) for file in paths)
    for file, array in zip(paths, arrays, strict=True):
        if array.dtype != arrays[0].dtype:
            raise DataError(
                f"data.path: shards must have one type, but {paths[0]} holds {arrays[0].dtype} and "
                f"{file} holds {array.dtype}; write them with one vocabulary"
            )
    return Shards(paths=paths, arrays=arrays, description=description)


def write_shards(
    out: Path,
    corpus: Corpus,
    *,
    tokenizer: str = "byte",
    shard_tokens: int = DEFAULT_SHARD_TOKENS,
    suffix: str = ".bin",
) -> dict[str, JSON]:
    """Tokenise a corpus into a folder of shards; the folder appears when it is complete.

    Args:
        out: The folder to make.
        corpus: What to read; one file at a time is in memory.
        tokenizer: ``byte``, ``char`` or ``file:PATH``.
        shard_tokens: Ids in a full shard.
        suffix: ``.bin`` or ``.npy``.

    Returns:
        The content of ``tokens.json``.

    Raises:
        DataError: the folder exists already, or the corpus holds no text.
    """
    if out.exists():
        raise DataError(f"{out} exists already; remove it or name another folder")
    live_tokenizer = _tokenizer_of(corpus, tokenizer=tokenizer)
    temporary = out.with_name(f".{out.name}.tmp-{unique_suffix()}")
    temporary.mkdir(parents=True)
    try:
        ids = _encode_files(corpus, live_tokenizer)
        written = [
            _write_shard(temporary / f"tokens_{number:05d}{suffix}", array)
            for number, array in enumerate(_regroup(ids, size=shard_tokens))
        ]
        if not written:
            raise DataError(f"data.path: there is no text in the {len(corpus.paths)} files")
        description = _describe(written, tokenizer=live_tokenizer, source=corpus.source)
        write_json(temporary / DESCRIPTION, description)
        temporary.rename(out)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    fsync_dir(out.parent)
    return description


def _find_shards(name: Path) -> list[Path]:
    folder = name.expanduser()
    description = _read_description(folder) if folder.is_dir() else None
    if description is None:
        found = find_files(name, patterns=[f"*{suffix}" for suffix in SHARD_SUFFIXES])
    else:
        found = [folder / str(shard["file"]) for shard in description["shards"]]
    for file in found:
        if file.suffix not in SHARD_SUFFIXES:
            raise DataError(
                f"data.path: {file} must end in .bin or .npy; write shards from text with "
                "python -m speedtronic.data OUT path=TEXT"
            )
    return found


def _read_description(folder: Path) -> dict[str, Any] | None:
    path = folder / DESCRIPTION
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise DataError(f"data.path: {path} is not readable ({error}); write it again") from error
    if not isinstance(content, dict) or not {"dtype", "shards", "tokenizer"} <= content.keys():
        raise DataError(
            f"data.path: {path} must have dtype, shards and tokenizer; write it again with "
            "python -m speedtronic.data"
        )
    return content


def _map_shard(path: Path) -> np.ndarray:
    try:
        array = np.load(path, mmap_mode="r") if path.suffix == ".npy" else _map_bare(path)
    except DataError:
        raise
    except (OSError, ValueError, EOFError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise DataError(f"data.path: cannot map {path}: {reason}; check the file") from error
    if array.ndim != 1 or array.dtype not in _ID_TYPES.values():
        raise DataError(
            f"data.path: {path} must be a one-dimensional array of uint16 or uint32, got "
            f"{array.dtype} of shape {array.shape}; convert it with numpy"
        )
    return np.asarray(array)


def _map_bare(path: Path) -> np.ndarray:
    id_type = _type_of_bare(path)
    size_bytes = path.stat().st_size
    if size_bytes == 0 or size_bytes % id_type.itemsize:
        raise DataError(
            f"data.path: {path} must hold {id_type} numbers, but its size is {size_bytes} bytes; "
            f"a file of uint32 without {DESCRIPTION} must end in .uint32.bin"
        )
    return np.memmap(path, dtype=id_type, mode="r")


def _type_of_bare(path: Path) -> np.dtype[Any]:
    description = _read_description(path.parent)
    if description is not None:
        listed = {shard["file"] for shard in description["shards"]}
        if path.name in listed and description["dtype"] in _ID_TYPES:
            return _ID_TYPES[description["dtype"]]
    return _ID_TYPES["uint32" if path.name.endswith(".uint32.bin") else "uint16"]


def _resolve_tokenizer(spec: str | None, shards: Shards) -> Tokenizer | None:
    saved = None if shards.description is None else shards.description["tokenizer"]
    written_with = None if saved is None else tokenizer_from_dict(saved)
    if spec is None:
        return written_with
    if written_with is not None and spec == written_with.name:
        return written_with
    given = build_tokenizer(spec)
    if written_with is not None and not _is_same(given, written_with):
        raise DataError(
            f"data.tokenizer={spec} is not what the tokens in {shards.paths[0].parent} were "
            f"written with ({written_with.name}); leave data.tokenizer null"
        )
    return given


def _is_same(first: Tokenizer, second: Tokenizer) -> bool:
    return {**first.to_dict(), "name": None} == {**second.to_dict(), "name": None} and (
        first.vocab_size == second.vocab_size
    )


def _resolve_vocabulary(tokenizer: Tokenizer | None, shards: Shards) -> tuple[int, int | None]:
    """Return the number of ids and the limit that reading still has to check."""
    if tokenizer is None:
        return max(_largest_id(array) for array in shards.arrays) + 1, None
    vocab_size = tokenizer.vocab_size
    if sum(len(array) for array in shards.arrays) > CHECK_AT_START_TOKENS:
        return vocab_size, vocab_size
    for path, array in zip(shards.paths, shards.arrays, strict=True):
        if _largest_id(array) >= vocab_size:
            position = _first_above(array, limit=vocab_size)
            raise DataError(
                f"data.path: {path} holds id {int(array[position])} at token {position}, but the "
                f"vocabulary of {tokenizer.name} has {vocab_size} ids; give the "
                "data.tokenizer it was written with"
            )
    return vocab_size, None


def _largest_id(array: np.ndarray) -> int:
    return max(int(piece.max()) for _, piece in _pieces(array))


def _first_above(array: np.ndarray, *, limit: int) -> int:
    return next(
        start + int(np.argmax(piece >= limit))
        for start, piece in _pieces(array)
        if int(piece.max()) >= limit
    )


def _pieces(array: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    for start in range(0, len(array), _SCAN_TOKENS):
        yield start, array[start : start + _SCAN_TOKENS]


def _split(
    shards: Shards, *, fraction: float, id_limit: int | None
) -> tuple[TokenStream, TokenStream]:
    names = [str(path) for path in shards.paths]
    period = held_out_period(len(names), fraction=fraction)
    if period is None:
        whole = TokenStream(shards.arrays, names=names, id_limit=id_limit)
        cut = tail_start(len(whole), fraction=fraction)
        return whole.part(0, cut), whole.part(cut, len(whole))
    numbers = range(len(names))
    held_out = [number for number in numbers if is_held_out(number, period=period)]
    train = [number for number in numbers if not is_held_out(number, period=period)]
    return (
        _pick(shards, names, train, id_limit=id_limit),
        _pick(shards, names, held_out, id_limit=id_limit),
    )


def _pick(
    shards: Shards, names: list[str], numbers: list[int], *, id_limit: int | None
) -> TokenStream:
    return TokenStream(
        [shards.arrays[number] for number in numbers],
        names=[names[number] for number in numbers],
        id_limit=id_limit,
    )


def _tokenizer_of(corpus: Corpus, *, tokenizer: str) -> Tokenizer:
    if tokenizer != "char":
        return build_tokenizer(tokenizer)
    characters: set[str] = set()
    for _, text in read_texts(corpus):
        characters.update(text or "")
    return build_tokenizer(tokenizer, text="".join(characters))


def _encode_files(corpus: Corpus, tokenizer: Tokenizer) -> Iterator[np.ndarray]:
    for _, text in read_texts(corpus):
        if text:
            yield tokenizer.encode(text)


def _regroup(arrays: Iterator[np.ndarray], *, size: int) -> Iterator[np.ndarray]:
    """Cut and join arrays into ones of ``size`` ids; the last one may be shorter."""
    held: list[np.ndarray] = []
    room = size
    for array in arrays:
        rest = array
        while len(rest) >= room:
            held.append(rest[:room])
            yield np.concatenate(held)
            rest, held, room = rest[room:], [], size
        if len(rest):
            held.append(rest)
            room -= len(rest)
    if held:
        yield np.concatenate(held)


def _write_shard(path: Path, ids: np.ndarray) -> dict[str, JSON]:
    if path.suffix == ".npy":
        np.save(path, ids)
    else:
        write_atomic(path, ids.tobytes())
    return {
        "file": path.name,
        "tokens": len(ids),
        "sha256": hashlib.sha256(ids.tobytes()).hexdigest(),
    }


def _describe(
    shards: list[dict[str, JSON]], *, tokenizer: Tokenizer, source: str
) -> dict[str, JSON]:
    together = hashlib.sha256("".join(str(shard["sha256"]) for shard in shards).encode("ascii"))
    return {
        "version": 1,
        "source": source,
        "dtype": np.dtype(smallest_id_type(tokenizer.vocab_size)).name,
        "vocab_size": tokenizer.vocab_size,
        "num_tokens": sum(cast("int", shard["tokens"]) for shard in shards),
        "sha256": together.hexdigest(),
        "tokenizer": tokenizer.to_dict(),
        "shards": cast("JSON", shards),
    }
