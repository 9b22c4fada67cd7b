"""A command line, taken apart: Hydra's options, the overrides, and the folders they name.

Nothing is composed here and no file is looked at.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from hydra._internal.utils import get_args_parser
from hydra.core.override_parser.types import Quote, QuotedString

from speedtronic.config.overrides import Override
from speedtronic.core.errors import ConfigError

CONFIG_NAME = "config"
_RUN_DIR_KEYS = ("run_dir", "hydra.run.dir", "output_dir", "run.output_dir")
_SWEEP_DIR_KEYS = ("sweep_dir", "hydra.sweep.dir")


@dataclass(frozen=True)
class Command:
    """A command line, taken apart."""

    flags: tuple[str, ...]
    """Hydra's options with their values."""
    overrides: tuple[str, ...]
    """Overrides in Hydra's own words, without the run folder."""
    run_dir: str | None
    """The run folder, absolute, as far as the command line names one."""
    sweep_dir: str | None
    """The folder of a multirun, as typed, or None."""
    is_multirun: bool
    """Whether ``-m`` or ``hydra.mode=MULTIRUN`` was given."""
    is_question: bool
    """Whether it only asks for help or for the configuration."""
    config_folder: str | None
    """``--config-path``."""
    extra_folder: str | None
    """``--config-dir``."""
    config_name: str
    """``--config-name``."""

    @property
    def resume(self) -> bool:
        """Whether the command line itself says ``resume=true``."""
        parsed = map(Override.parse, self.overrides)
        given = [override.value or "" for override in parsed if override.key == "resume"]
        return bool(given) and given[-1].lower() == "true"

    @property
    def hydra_overrides(self) -> tuple[str, ...]:
        """All overrides for Hydra, the run folder among them."""
        if self.run_dir is None:
            return self.overrides
        return (*self.overrides, folder_override("hydra.run.dir", self.run_dir))


def read_command(argv: Sequence[str]) -> Command:
    """Take a command line apart and replace the short forms ``run_dir=`` and ``sweep_dir=``.

    Raises:
        ConfigError: An option is unknown; a folder is given twice, empty, or for the other kind
            of run.
    """
    parser = get_args_parser()
    parser.error = _refuse_option  # type: ignore[method-assign]  # one line instead of the usage
    arguments = parser.parse_intermixed_args(list(argv))
    if arguments.experimental_rerun is not None:
        raise ConfigError("--experimental-rerun is not supported; use run_dir=R resume=true")
    overrides = [Override.parse(text) for text in arguments.overrides]
    is_multirun = arguments.multirun or any(
        override.key == "hydra.mode" and (override.value or "").upper() == "MULTIRUN"
        for override in overrides
    )
    asks = ("help", "hydra_help", "cfg", "info", "shell_completion")
    is_question = any(getattr(arguments, name) for name in asks)
    run_dir = _one_folder(overrides, _RUN_DIR_KEYS)
    sweep_dir = _one_folder(overrides, _SWEEP_DIR_KEYS)
    if is_multirun and run_dir is not None:
        raise ConfigError(f"run_dir is for one run, got {run_dir}; use sweep_dir=S with -m")
    kept = [override.text for override in overrides if not _names_folder(override)]
    if sweep_dir is not None:
        kept.append(folder_override("hydra.sweep.dir", absolute(sweep_dir)))
    return Command(
        flags=tuple(_flags(arguments)),
        overrides=tuple(kept),
        run_dir=None if run_dir is None else absolute(run_dir),
        sweep_dir=sweep_dir,
        is_multirun=is_multirun,
        is_question=is_question,
        config_folder=_config_folder(arguments.config_path),
        extra_folder=arguments.config_dir,
        config_name=arguments.config_name or CONFIG_NAME,
    )


def _refuse_option(message: str) -> NoReturn:
    raise ConfigError(f"{message}; --hydra-help lists the options, --help the configuration")


def _config_folder(typed: str | None) -> str | None:
    return typed if typed is None or typed.startswith("pkg://") else absolute(typed)


def _flags(arguments: Any) -> Iterator[str]:
    """Write Hydra's options again, without the overrides between them."""
    if arguments.config_path is not None:
        yield from ("--config-path", str(_config_folder(arguments.config_path)))
    for name in ("config_name", "config_dir", "package", "cfg", "info"):
        value = getattr(arguments, name)
        if value is not None:
            yield from (f"--{name.replace('_', '-')}", value)
    for name in ("help", "hydra_help", "resolve", "run", "multirun", "shell_completion"):
        if getattr(arguments, name):
            yield f"--{name.replace('_', '-')}"


def _names_folder(override: Override) -> bool:
    keys = (*_RUN_DIR_KEYS, *_SWEEP_DIR_KEYS)
    return override.key in keys and override.value not in (None, "null")


def _one_folder(overrides: Sequence[Override], keys: Sequence[str]) -> str | None:
    """Return the folder given under any of its names."""
    found: dict[str, str] = {}
    for override in overrides:
        if override.key in keys and _names_folder(override):
            typed = _unquote(override.value or "")
            if not typed:
                key = override.key
                raise ConfigError(f"{key} must name a folder, got nothing; write {key}=PATH")
            found.setdefault(absolute(typed), typed)
    if len(found) > 1:
        raise ConfigError(f"{keys[0]} is given twice: {' and '.join(found.values())}; give one")
    return next(iter(found.values()), None)


def _unquote(value: str) -> str:
    if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"":
        return value[1:-1].replace(f"\\{value[0]}", value[0])
    return value


def absolute(typed: str) -> str:
    """Return a typed path from the root, with its links as typed."""
    return os.path.abspath(os.path.expanduser(typed))  # noqa: PTH100, PTH111 - keeps links as typed


def folder_override(key: str, folder: str) -> str:
    """Return the override that sets a key to a folder, quoted for Hydra."""
    return f"{key}={QuotedString(text=folder, quote=Quote.single).with_quotes()}"
