"""Durable files: written aside, flushed, then renamed, so that a reader never sees half a file.

Only the standard library is used here, so that the command line stays quick.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import uuid
from pathlib import Path
from typing import Any

# Some network and FUSE file systems cannot flush a directory; the rename itself is still atomic.
_NO_DIRECTORY_FLUSH = frozenset({errno.EINVAL, errno.ENOTSUP, errno.ENOSYS, errno.EBADF})


def unique_suffix() -> str:
    """Return 32 hexadecimal digits that no other call returns; no training RNG is drawn."""
    return uuid.uuid4().hex


def write_atomic(path: str | os.PathLike[str], data: bytes | str) -> None:
    """Write a file that holds its old or its new content at any moment, also after a power cut.

    Missing parent folders are made. Text is written as UTF-8 with its line endings kept. A symbolic
    link is replaced by a file. When anything fails, the old file stays and nothing is left behind.

    Args:
        path: The file to write or replace.
        data: Its whole content.

    Raises:
        OSError: The folder is missing permission or space.
    """
    target = Path(path)
    content = data.encode("utf-8") if isinstance(data, str) else data
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name[:100]}.tmp-{unique_suffix()}")
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    fsync_dir(target.parent)


def write_json(path: str | os.PathLike[str], obj: Any) -> None:
    r"""Write an object as strict, indented JSON, atomically.

    Args:
        path: The file to write or replace.
        obj: Plain dicts with string keys, lists, strings, finite numbers, booleans and None.

    Raises:
        ValueError: A number is NaN or infinite, which JSON cannot say.
        TypeError: Something is no JSON value.
        OSError: The folder is missing permission or space.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_json(Path(folder) / "a.json", {"steps": 3})
        ...     (Path(folder) / "a.json").read_text()
        '{\n  "steps": 3\n}\n'
    """
    write_atomic(path, json.dumps(obj, indent=2, allow_nan=False) + "\n")


def fsync_dir(path: str | os.PathLike[str]) -> None:
    """Flush a folder's entries, so that files made or renamed in it survive a power cut.

    File systems that cannot do that are left as they are.
    """
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_DIRECTORY_FLUSH:
            raise
    finally:
        os.close(descriptor)


def sha256_file(path: str | os.PathLike[str]) -> str:
    """Return the SHA-256 of a file as 64 hexadecimal digits, without holding it in memory."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
