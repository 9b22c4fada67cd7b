"""Command lines of the small tools: one path and ``key=value`` words, checked like settings.

The training command is Hydra's; these tools need no composition.
"""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import TypeVar

from pydantic import ConfigDict

from speedtronic.core.errors import ConfigError, SpeedtronicError
from speedtronic.core.settings import Settings, unknown_key


class ToolArguments(Settings):
    """Base of a tool's arguments: like settings, but numbers may come as text."""

    model_config = ConfigDict(strict=False)


_INTERRUPTED = 130
_KEY = re.compile(r"[a-z_]+(\.[a-z_]+)*")
ArgumentsT = TypeVar("ArgumentsT", bound=ToolArguments)


def parse_arguments(
    cls: type[ArgumentsT], argv: Sequence[str], *, positional: str, usage: str
) -> ArgumentsT:
    """Return the checked arguments of a tool.

    Args:
        cls: Fields are the tool's keys; ``data_path`` is written ``data.path``.
        argv: Words after the program's name.
        positional: The one field that is given without its key.
        usage: Shown when the positional word is missing.

    Raises:
        ConfigError: a word is unknown, given twice or has a wrong value.
    """
    known = {name.replace("_", "."): name for name in cls.model_fields} | {
        name: name for name in cls.model_fields
    }
    given: dict[str, str] = {}
    for word in argv:
        key, equals, value = word.partition("=")
        if not (equals and _KEY.fullmatch(key)):
            key, value = positional, word
        if key not in known:
            raise ConfigError(unknown_key("", key, value, known))
        name = known[key]
        if name in given:
            raise ConfigError(f"{key} must be given once, got {given[name]!r} and {value!r}")
        given[name] = value
    if positional not in given:
        raise ConfigError(f"{positional} must be given; usage: {usage}")
    return cls(**given)


def run_tool(
    tool: Callable[[Sequence[str]], int], *, usage: str, argv: Sequence[str] | None = None
) -> int:
    """Run a tool and return its exit status; errors and warnings become one line each on stderr.

    Args:
        tool: Takes the words after the program's name.
        usage: What ``--help`` shows.
        argv: The words; those of this process when None.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    if any(word in ("-h", "--help") for word in words):
        sys.stdout.write(f"usage: {usage}\n")
        return 0
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        try:
            return tool(words)
        except (SpeedtronicError, OSError) as error:
            if os.environ.get("HYDRA_FULL_ERROR") == "1":
                raise
            sys.stderr.write(f"error: {error}\n")
            return error.exit_status if isinstance(error, SpeedtronicError) else 1
        except KeyboardInterrupt:
            return _INTERRUPTED


def _show_warning(message: Warning | str, *_where: object, **_more: object) -> None:
    sys.stderr.write(f"warning: {message}\n")
