"""Overrides as text: which key one sets, what a later one takes back, which key a mistake meant.

Nothing here parses values; that is Hydra's part.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from speedtronic.core.errors import nearest

_OVERRIDE = re.compile(r"(?P<prefix>\+\+|\+|~)?(?P<key>[^=]*?)\s*(?:=(?P<value>.*))?", re.DOTALL)
SHORTHANDS = ("name", "seed", "device", "max_steps", "output_dir")
"""Root keys that mean ``run.<key>``."""


@dataclass(frozen=True)
class Override:
    """One word of a command line that changes the configuration."""

    text: str
    """As typed."""
    key: str
    """Dotted key or group, without ``+``, ``~`` and ``@package``."""
    value: str | None
    """The text after ``=``, unparsed; None when there is no ``=``."""

    @classmethod
    def parse(cls, text: str) -> Override:
        """Split an override; never fails, Hydra judges the syntax."""
        match = _OVERRIDE.fullmatch(text)
        if match is None:
            return cls(text=text, key=text, value=None)
        return cls(text=text, key=match["key"].partition("@")[0].strip(), value=match["value"])

    @property
    def is_hydra(self) -> bool:
        """Whether it is about Hydra itself, not about the run."""
        return self.key == "hydra" or self.key.startswith(("hydra.", "hydra/"))


def keep_effective(
    earlier: Sequence[str], later: Sequence[str], *, choices: Mapping[str, str | None]
) -> list[str]:
    """Return earlier overrides without those that a later command line takes back.

    Dropped are a key that is set again (a root shorthand and its ``run.`` key are the same), and
    everything below a group for which another option is chosen now.

    Args:
        earlier: Overrides of the earlier starts, in order.
        later: Overrides of the new command line.
        choices: The option of each group as the earlier overrides chose it.
    """
    parsed = [Override.parse(text) for text in later]
    again = {_full_key(override.key) for override in parsed}
    changed = tuple(
        override.key.replace("/", ".")
        for override in parsed
        if override.key in choices and override.value != choices[override.key]
    )
    kept = []
    for text in earlier:
        key = _full_key(Override.parse(text).key)
        if key not in again and not any(is_below(key, group) for group in changed):
            kept.append(text)
    return kept


def is_below(key: str, parent: str) -> bool:
    """Return whether a dotted key is the parent or lies below it."""
    return key == parent or key.startswith(parent + ".")


def _full_key(key: str) -> str:
    return f"run.{key}" if key in SHORTHANDS else key


def unknown_key_in(message: str) -> str | None:
    """Return the key that Hydra found in no configuration, or None when it said something else."""
    match = re.match(r"Could not (?:override|delete from config\.) '([^'@]+)", message)
    return None if match is None else match[1]


def explain_composition(message: str) -> str:
    """Turn Hydra's many lines about a bad override into one that says what to type."""
    missing = re.match(r"In '[^']*': Could not find '(.+?)/([^/']*)'", message)
    if missing:
        return _missing_option(missing[1], missing[2], message)
    if message.startswith("Ambiguous value"):
        first = message.splitlines()[0]
        return f"{first}: write [a,b] for a list, quote a text, or add -m for one job a value"
    present = re.match(r"Could not append to config\. An item is already at '([^']+)'", message)
    if present:
        return f"{present[1]} is a known key: write {present[1]}=VALUE without +"
    if "override_grammar" in message:
        syntax = " ".join(message.partition("See https")[0].split())
        return f"bad syntax in an override: {syntax}; write key=value, and quote special characters"
    return " ".join(message.split())


def _missing_option(group: str, option: str, message: str) -> str:
    listed = message.partition("Available options in")[2].partition("Config search path")[0]
    options = [line.strip() for line in listed.splitlines()[1:] if line.strip()]
    close = nearest(option, options)
    advice = f"did you mean {close}? " if close else ""
    choice = f"options: {', '.join(options)}" if options else "the group has no such option"
    return f"{group}={option} does not exist; {advice}{choice}"
