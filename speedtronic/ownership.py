"""Owning a run folder: one process at a time, nothing lost, every step once in the records."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import torch

from speedtronic.config import SpeedtronicConfig
from speedtronic.core.errors import RunFolderError
from speedtronic.run_folder.claim import FolderClaim, claim_folder
from speedtronic.run_folder.layout import RunFolder, read_json
from speedtronic.run_folder.records import supersede_records


class RunOwner:
    """Gives a session or a fit its run folder, and the process the settings of the run.

    Args:
        folder: The run folder; nothing is touched before ``hold`` or a fit.
        config: The configuration of this start.
        resume: Whether to continue the run in the folder.
    """

    def __init__(self, folder: RunFolder, *, config: SpeedtronicConfig, resume: bool) -> None:
        self.folder = folder
        self._config = config
        self._resume = resume
        self._first_step: int | None = None
        self._is_new_here = not resume
        self._is_held = False

    def continue_from(self, step: int) -> None:
        """Let the next fit move records of later steps out of the way: it will make them again."""
        self._first_step = step

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Own the folder for one fit, inside or outside of a session that holds it.

        Raises:
            RunFolderError: another process owns it, it holds a run that would be lost, or it
                cannot be written.
        """
        with self.hold():
            if self._first_step is not None:
                supersede_records(self.folder, after_step=self._first_step)
                self._first_step = None  # records of this process's own fits stay
            yield

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Own the folder and put the run's process settings in force; may be nested.

        Raises:
            RunFolderError: as for a fit.
        """
        if self._is_held:
            yield
            return
        with self._claim(), self._settings():
            self._is_held, self._is_new_here = True, False
            try:
                yield
            finally:
                self._is_held = False

    def _settings(self) -> AbstractContextManager[None]:
        deterministic = self._config.trainer.deterministic
        return process_settings(num_threads=self.num_threads, deterministic=deterministic)

    @property
    def num_threads(self) -> int | None:
        """CPU threads of this start; None leaves torch's choice.

        A resumed run computes with the threads it was started with, unless the configuration names
        a number: sums in another order differ in their last bits.
        """
        wanted = self._config.trainer.num_threads
        return recorded_threads(self.folder) if wanted is None and self._resume else wanted

    def _claim(self) -> FolderClaim:
        claim = claim_folder(self.folder.path)
        if not self._is_new_here or not self.folder.holds_run():
            return claim
        if self._config.overwrite:
            claim.move_aside()
            return claim_folder(self.folder.path)
        steps = self.folder.recorded_steps()
        claim.release()
        raise RunFolderError(
            f"{self.folder.path} holds a run (step {steps}); use resume=true to continue it or"
            " overwrite=true to move it aside"
        )


@contextmanager
def process_settings(*, num_threads: int | None, deterministic: bool) -> Iterator[None]:
    """Put thread count and determinism in force, and back afterwards."""
    threads, was_deterministic = (
        torch.get_num_threads(),
        torch.are_deterministic_algorithms_enabled(),
    )
    if num_threads is not None:
        torch.set_num_threads(num_threads)
    torch.use_deterministic_algorithms(deterministic or was_deterministic)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(was_deterministic)


def recorded_threads(folder: RunFolder) -> int | None:
    """Return the CPU threads a run was started with, None when it does not say."""
    facts = (read_json(folder.run_json) or {}).get("facts", {})
    threads = facts.get("threads")
    return threads if isinstance(threads, int) else None
