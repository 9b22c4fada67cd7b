"""The errors a user can meet, each with the exit status the command line ends with.

A message is one line with four parts: which setting or file, what rule, which value, what to do.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class SpeedtronicError(Exception):
    """A fault of the run itself: the command line prints one line and exits with status 1."""

    exit_status = 1


class ConfigError(SpeedtronicError, ValueError):
    """Something the user gave is wrong: one line, exit status 2."""

    exit_status = 2


class DataError(ConfigError):
    """A data file is missing, undecodable, too short or does not fit the settings."""


class RunFolderError(ConfigError):
    """A run folder is owned by another process, holds another run or cannot be written."""


class MissingExtraError(ConfigError):
    """A chosen feature needs an optional package; the message names the install command."""


class CheckpointError(SpeedtronicError):
    """A checkpoint could not be written or read."""


class IncompatibleCheckpointError(CheckpointError, ConfigError):
    """A readable checkpoint belongs to another model or setup; the message names the tensors."""

    exit_status = 2


class NonFiniteError(SpeedtronicError):
    """Too many attempts in a row gave a non-finite loss or gradient."""


class FallbackWarning(UserWarning):
    """A promised fallback was taken; the runtime turns it into an event and a result field."""


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name closest to a misspelt one, or None when nothing is close.

    Example:
        >>> nearest("lrr", ["lr", "betas"])
        'lr'
    """
    matches = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return matches[0] if matches else None
