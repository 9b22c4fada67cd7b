"""Command lines of the small tools: one path and ``key=value`` words, checked like settings.

The training command is Hydra's; these tools need no composition.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from typing import TypeVar

from pydantic import ConfigDict

from speedtronic.core.errors import ConfigError, SpeedtronicError
from speedtronic.core.settings import Settings, unknown_key


class ToolArguments(Settings):
    """Base of a tool's arguments: like settings, but numbers may come as text."""

    model_config = ConfigDict(strict=False)


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


def run_tool(main: Callable[[Sequence[str]], int], *, usage: str) -> int:
    """Run a tool on ``sys.argv`` and return its exit status; errors become one line on stderr."""
    argv = sys.argv[1:]
    if any(word in ("-h", "--help") for word in argv):
        sys.stdout.write(f"usage: {usage}\n")
        return 0
    try:
        return main(argv)
    except SpeedtronicError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_status
    except KeyboardInterrupt:
        return 130
