"""Text corpora: Python's standard library, which every machine has, and the user's own files.

A corpus is tokenised once and then mapped from the cache.
"""

from __future__ import annotations

import glob
import hashlib
import io
import os
import sysconfig
import tokenize
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Unpack, cast

import numpy as np

from speedtronic.core.errors import DataError
from speedtronic.core.files import sha256_file
from speedtronic.core.types import JSON, Tokenizer
from speedtronic.data.assemble import Loading, LoadingOptions, assemble
from speedtronic.data.cache import CacheEntry, cache_key, cached_entry
from speedtronic.data.loaded import LoadedData
from speedtronic.data.splitting import held_out_period, is_held_out, tail_start
from speedtronic.data.stream import TokenStream
from speedtronic.data.tokenizers import build_tokenizer, tokenizer_from_dict, tokenizer_key

_EXCLUDED_FOLDERS = frozenset({"idlelib", "site-packages", "dist-packages"})
_EXCLUDED_PREFIX = "test"

PathsLike = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


@dataclass(frozen=True)
class Corpus:
    """Files to read as text, in order."""

    source: str
    """What the corpus is, for run.json."""
    paths: tuple[Path, ...]
    """The files."""
    decode: Callable[[Path, bytes], str | None]
    """Turns a file's bytes into text; None leaves the file out."""


def build_stdlib_data(
    *, path: str | None = None, tokenizer: str = "byte", **loading: Unpack[LoadingOptions]
) -> LoadedData:
    """Build data from the ``*.py`` files of a Python standard library.

    Args:
        path: Folder of the library; None for the running interpreter's.
        tokenizer: ``byte``, ``char`` (vocabulary of the whole text) or ``file:PATH``.
        **loading: How samples become batches, see ``Loading``.

    Raises:
        DataError: there is no such file or too little text.
    """
    return build_corpus_data(stdlib_corpus(path), tokenizer=tokenizer, loading=Loading(**loading))


def build_text_data(
    *, path: PathsLike, tokenizer: str = "byte", **loading: Unpack[LoadingOptions]
) -> LoadedData:
    """Build data from UTF-8 text files; line endings are kept.

    Args:
        path: A file, a pattern, a folder (all ``*.txt`` below it), or a list of those.
        tokenizer: ``byte``, ``char`` (vocabulary of the whole text) or ``file:PATH``.
        **loading: How samples become batches, see ``Loading``.

    Raises:
        DataError: a file is missing or no UTF-8, or there is too little text.
    """
    return build_corpus_data(text_corpus(path), tokenizer=tokenizer, loading=Loading(**loading))


def stdlib_corpus(path: str | None = None) -> Corpus:
    """Return the ``*.py`` files of a standard library, sorted by relative path.

    Files and folders named ``test*``, ``idlelib``, ``site-packages`` and ``dist-packages`` are left
    out, and so is what cannot be decoded by PEP 263.

    Raises:
        DataError: the folder holds no such file.
    """
    root = Path(sysconfig.get_path("stdlib") if path is None else path).expanduser()
    found = {file.relative_to(root).as_posix(): file for file in _python_files(root)}
    if not found:
        raise DataError(
            f"data.path: there is no *.py file below {root}; give the folder of a Python standard "
            "library, or null for the running interpreter's"
        )
    return Corpus("stdlib", tuple(found[name] for name in sorted(found)), decode_source)


def text_corpus(path: PathsLike) -> Corpus:
    """Return the text files that paths, patterns and folders name, each once.

    Raises:
        DataError: nothing lies there.
    """
    found = [file for name in as_paths(path) for file in find_files(name, patterns=("*.txt",))]
    return Corpus("text", tuple(dict.fromkeys(found)), decode_utf8)


def as_paths(path: PathsLike) -> list[Path]:
    """Return one path or several as a list."""
    return [Path(name) for name in ([path] if isinstance(path, str | os.PathLike) else path)]


def find_files(name: Path, *, patterns: Sequence[str]) -> list[Path]:
    """Return the files a path, a pattern or a folder names, sorted.

    Args:
        name: A file, a folder, or a pattern with ``*``, ``?``, ``[...]`` or ``**``.
        patterns: What to look for below a folder.

    Raises:
        DataError: there is none.
    """
    path = name.expanduser()
    if path.is_dir():
        found = sorted({file for pattern in patterns for file in path.rglob(pattern)})
        found = [file for file in found if file.is_file()]
        missing = f"there is no {' or '.join(patterns)} below the folder {path}"
    elif path.exists():
        return [path]
    elif glob.has_magic(str(path)):
        matches = glob.glob(str(path), recursive=True)  # noqa: PTH207 - Path.glob takes no absolute pattern
        found = [file for file in sorted(map(Path, matches)) if file.is_file()]
        missing = f"no file matches the pattern {path}"
    else:
        found = []
        missing = f"there is no file {path}"
    if not found:
        raise DataError(f"data.path: {missing} (working directory {Path.cwd()}); check the path")
    return found


def decode_source(path: Path, content: bytes) -> str | None:
    """Decode Python source by its byte order mark or coding line (PEP 263); None if that fails."""
    del path
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
        text = content.decode(encoding)
        text.encode("utf-8")  # Some codecs make lone surrogates, which are no text.
    except (SyntaxError, LookupError, ValueError):
        return None
    return text


def decode_utf8(path: Path, content: bytes) -> str:
    """Decode a text file as UTF-8, line endings kept.

    Raises:
        DataError: it is not UTF-8; the message names the offset.
    """
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            f"data.path: {path} is not UTF-8: byte 0x{content[error.start]:02x} at byte offset "
            f"{error.start} ({error.reason}); convert the file to UTF-8 or leave it out"
        ) from error


def read_bytes(path: Path) -> bytes:
    """Return the content of a file.

    Raises:
        DataError: it cannot be read.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(
            f"data.path: cannot read {path}: {error.strerror}; check the path and its permissions"
        ) from error


def read_texts(corpus: Corpus) -> Iterator[tuple[Path, str | None]]:
    """Yield each file of a corpus with its text, None where it cannot be decoded."""
    for path in corpus.paths:
        yield path, corpus.decode(path, read_bytes(path))


def build_corpus_data(corpus: Corpus, *, tokenizer: str, loading: Loading) -> LoadedData:
    """Tokenise and split a corpus, or map what an earlier run left in the cache."""
    fraction = loading.validation_fraction
    digests = [_digest_file(path) for path in corpus.paths]
    key = cache_key(
        source=corpus.source,
        files=cast("JSON", digests),
        tokenizer=tokenizer_key(tokenizer),
        validation_fraction=fraction,
    )
    entry = cached_entry(
        key, lambda: _tokenize(corpus, digests=digests, tokenizer=tokenizer, fraction=fraction)
    )
    live_tokenizer = tokenizer_from_dict(cast("dict[str, JSON]", entry.meta["tokenizer"]))
    return assemble(
        _stream_of(entry, "train"),
        _stream_of(entry, "held_out"),
        tokenizer=live_tokenizer,
        vocab_size=live_tokenizer.vocab_size,
        facts=cast("dict[str, JSON]", entry.meta["facts"]),
        loading=loading,
    )


def _python_files(root: Path) -> Iterator[Path]:
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = [name for name in subfolders if not _is_excluded(name)]
        for name in names:
            if name.endswith(".py") and not _is_excluded(name):
                yield Path(folder, name)


def _is_excluded(name: str) -> bool:
    return name.startswith(_EXCLUDED_PREFIX) or name in _EXCLUDED_FOLDERS


def _digest_file(path: Path) -> str:
    try:
        return sha256_file(path)
    except OSError as error:
        raise DataError(
            f"data.path: cannot read {path}: {error.strerror}; check the path and its permissions"
        ) from error


def _tokenize(corpus: Corpus, *, digests: list[str], tokenizer: str, fraction: float) -> CacheEntry:
    """Read, split and tokenise a corpus."""
    texts: list[str] = []
    for path, digest in zip(corpus.paths, digests, strict=True):
        content = read_bytes(path)
        if hashlib.sha256(content).hexdigest() != digest:
            raise DataError(f"data.path: {path} changed while it was read; start again")
        text = corpus.decode(path, content)
        if text is not None:
            texts.append(text)
    live_tokenizer = _build_for(tokenizer, texts)
    train, held_out = _split(texts, fraction=fraction)
    arrays = {
        "train": _encode(live_tokenizer, train),
        "held_out": _encode(live_tokenizer, held_out),
    }
    facts: dict[str, JSON] = {
        "source": corpus.source,
        "files": len(texts),
        **_measure(texts),
        "skipped": len(corpus.paths) - len(texts),
        "held_out": _describe_split(len(texts), fraction=fraction),
    }
    return CacheEntry(
        arrays={name: array for name, array in arrays.items() if len(array)},
        meta={"facts": facts, "tokenizer": live_tokenizer.to_dict()},
    )


def _build_for(tokenizer: str, texts: list[str]) -> Tokenizer:
    if tokenizer == "char":
        # Of the whole text, held-out part included: evaluation then meets no unknown character.
        characters = set().union(*map(set, texts)) if texts else set()
        return build_tokenizer(tokenizer, text="".join(characters))
    return build_tokenizer(tokenizer)


def _split(texts: list[str], *, fraction: float) -> tuple[list[str], list[str]]:
    period = held_out_period(len(texts), fraction=fraction)
    if period is not None:
        held_out = [text for index, text in enumerate(texts) if is_held_out(index, period=period)]
        train = [text for index, text in enumerate(texts) if not is_held_out(index, period=period)]
        return train, held_out
    joined = "".join(texts)
    cut = tail_start(len(joined), fraction=fraction)
    return [joined[:cut]], [joined[cut:]]


def _describe_split(num_files: int, *, fraction: float) -> str:
    if fraction == 0:
        return "nothing"
    period = held_out_period(num_files, fraction=fraction)
    return (
        "tail of the text"
        if period is None
        else f"every file whose number is a multiple of {period}"
    )


def _encode(tokenizer: Tokenizer, texts: Iterable[str]) -> np.ndarray:
    pieces = [tokenizer.encode(text) for text in texts]
    return np.concatenate(pieces) if pieces else np.empty(0, np.uint16)


def _measure(texts: list[str]) -> dict[str, JSON]:
    """Return size and checksum of the joined text in UTF-8."""
    digest = hashlib.sha256()
    size_bytes = 0
    for text in texts:
        encoded = text.encode("utf-8")
        digest.update(encoded)
        size_bytes += len(encoded)
    return {"bytes": size_bytes, "sha256": digest.hexdigest()}


def _stream_of(entry: CacheEntry, name: str) -> TokenStream:
    return TokenStream([entry.arrays[name]] if name in entry.arrays else [])
