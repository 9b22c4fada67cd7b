"""Owning a run folder while a fit writes into it, and making its records continue cleanly."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from speedtronic.run_folder.claim import claim_folder
from speedtronic.run_folder.layout import RunFolder
from speedtronic.run_folder.records import supersede_records


class RunOwner:
    """Gives ``Trainer.fit`` its folder: one process at a time, every step once in metrics.jsonl."""

    def __init__(self, folder: RunFolder) -> None:
        """Note the folder; nothing is touched before a fit."""
        self._folder = folder
        self._first_step: int | None = None

    def continue_from(self, step: int) -> None:
        """Let the next fit move records of later steps out of the way: it will make them again."""
        self._first_step = step

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Claim the folder for one fit.

        Raises:
            RunFolderError: another process owns it, or it cannot be written.
        """
        with claim_folder(self._folder.path):
            if self._first_step is not None:
                supersede_records(self._folder, after_step=self._first_step)
                self._first_step = None  # records of this process's own fits stay
            yield
