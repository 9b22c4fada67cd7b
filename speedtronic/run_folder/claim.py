"""One owner for a run folder: a file lock that the kernel drops however its process dies."""

from __future__ import annotations

import os
import socket
import time
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any

from filelock import FileLock, Timeout

from speedtronic.core.errors import RunFolderError
from speedtronic.core.files import write_json
from speedtronic.run_folder.layout import RunFolder, read_json

_MOVED_FOLDER_RETRIES = 20
_OWNER_FILE_WAIT_S = 0.5
"""How long to wait for a new owner to write its name; it does so right after it gets the lock."""


class FolderClaim:
    """The right to write a run folder; a context manager, or call ``release``."""

    def __init__(self, folder: RunFolder, lock: Any, *, previous_owner: str | None) -> None:
        self.folder = folder
        self.previous_owner = previous_owner
        """The owner that died without releasing, in words; None after a clean end."""
        self._lock = lock
        self._held = True

    def release(self) -> None:
        """Give the folder back; calling it again does nothing."""
        if not self._held:
            return
        self._held = False
        if self._lock.lock_counter == 1:
            self.folder.owner_json.unlink(missing_ok=True)
        self._lock.release()

    def move_aside(self) -> Path:
        """Rename the claimed folder to the first free ``R.bak-N`` and give the claim up.

        Returns:
            The new place of the old run.

        Raises:
            RunFolderError: The folder cannot be renamed.
        """
        source = self.folder.path
        self.folder.owner_json.unlink(missing_ok=True)
        for number in range(1, 10_000):
            target = source.with_name(f"{source.name}.bak-{number}")
            if target.exists() or target.is_symlink():
                continue
            try:
                source.rename(target)
            except OSError as error:
                raise RunFolderError(
                    f"overwrite=true cannot move {source} to {target}: {error.strerror}; "
                    "choose another run_dir"
                ) from error
            self._held = False
            self._lock.release()
            return target
        raise RunFolderError(f"{source} has 9999 backups already; delete some of {source}.bak-*")

    def __enter__(self) -> FolderClaim:
        """Return the claim itself."""
        return self

    def __exit__(
        self,
        _type: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        """Release the folder."""
        self.release()


def claim_folder(path: str | os.PathLike[str]) -> FolderClaim:
    """Become the one owner of a run folder, which is made when it is missing.

    The same process may claim a folder again; the folder is free when every claim is released.
    A lock whose owner died, also by ``kill -9``, does not block.

    Args:
        path: The run folder.

    Raises:
        RunFolderError: Another process owns the folder (named with pid, host and start), or it
            cannot be created or written.
    """
    folder = RunFolder(Path(os.path.realpath(path)))
    shown = Path(path)
    try:
        for _ in range(_MOVED_FOLDER_RETRIES):
            claim = _try_claim(folder, shown)
            if claim is not None:
                return claim
    except OSError as error:
        raise RunFolderError(
            f"run folder {shown} cannot be written: {error.strerror or error}; "
            "choose another with run_dir=PATH"
        ) from error
    raise RunFolderError(f"run folder {shown} is being moved by other processes; start again")


def _try_claim(folder: RunFolder, shown: Path) -> FolderClaim | None:
    """Claim once; None when the lock file was moved away (``overwrite=true``) in between."""
    if folder.is_foreign():
        raise RunFolderError(
            f"run folder {shown} holds files that are no run's; a run needs a folder of its own:"
            " choose another run_dir"
        )
    folder.path.mkdir(parents=True, exist_ok=True)
    folder.lock.touch()
    before = folder.lock.stat()
    lock = FileLock(folder.lock, timeout=0, is_singleton=True, thread_local=False)
    try:
        lock.acquire()
    except Timeout:
        raise RunFolderError(
            f"run folder {shown} is in use by {_wait_for_owner(folder)}; "
            "stop that run or choose another run_dir"
        ) from None
    if not _same_file(folder.lock, before):
        lock.release()
        return None
    if lock.lock_counter > 1:
        return FolderClaim(folder, lock, previous_owner=None)
    previous = read_json(folder.owner_json)
    try:
        write_json(folder.owner_json, _this_process())
    except OSError:
        lock.release()
        raise
    return FolderClaim(folder, lock, previous_owner=None if previous is None else _name(previous))


def _same_file(path: Path, before: os.stat_result) -> bool:
    try:
        return os.path.samestat(path.stat(), before)
    except FileNotFoundError:
        return False


def _this_process() -> dict[str, Any]:
    started = datetime.now(UTC).isoformat(timespec="seconds")
    return {"pid": os.getpid(), "host": socket.gethostname(), "started": started}


def _wait_for_owner(folder: RunFolder) -> str:
    deadline = time.monotonic() + _OWNER_FILE_WAIT_S
    while time.monotonic() < deadline:
        owner = read_json(folder.owner_json)
        if owner is not None and not _is_dead(owner):
            return _name(owner)
        time.sleep(0.02)
    return "another process"


def _is_dead(owner: dict[str, Any]) -> bool:
    """Return whether the named process is known to be gone, so that the name is an old owner's."""
    pid = owner.get("pid")
    if owner.get("host") != socket.gethostname() or not isinstance(pid, int):
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False


def _name(owner: dict[str, Any]) -> str:
    return f"process {owner.get('pid')} on {owner.get('host')} since {owner.get('started')}"
