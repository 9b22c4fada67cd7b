"""Planning one run: compose, check and claim, before any file.

The plan holds everything the command line does not have to ask again: the configuration, the owned
folder, the words Hydra gets, and what a resume changed.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict, read_write
from omegaconf.errors import OmegaConfBaseException

from speedtronic.command import Command, absolute, folder_override
from speedtronic.config.load import load_config, unknown_override
from speedtronic.config.overrides import (
    Override,
    explain_composition,
    keep_effective,
    unknown_key_in,
)
from speedtronic.config.resume import (
    Change,
    SavedRun,
    Tree,
    asked_keys,
    check_compatible,
    check_secrets,
    merge_resumed,
    next_segment,
    read_saved_run,
)
from speedtronic.core.errors import ConfigError, RunFolderError
from speedtronic.run_folder.claim import FolderClaim, claim_folder
from speedtronic.run_folder.commands import resume_command
from speedtronic.run_folder.layout import RunFolder, find_resumable

if TYPE_CHECKING:
    from speedtronic.config import SpeedtronicConfig

# Hydra 1.4 warns about the argument that 1.3 wants.
VERSION_BASE: dict[str, Any] = (
    {"version_base": "1.3"} if hydra.__version__.startswith("1.3.") else {}
)
_JOB_NAME = "cli"  # Hydra's own name for a task of speedtronic.cli
_MAX_LISTED_RUNS = 3


@dataclass(frozen=True)
class RunPlan:
    """A single run that was found to be right, and whose folder this process owns."""

    config: SpeedtronicConfig
    folder: RunFolder
    claim: FolderClaim
    argv: tuple[str, ...]
    """What Hydra gets."""
    segment: str | None = None
    """Name of the folder below ``.hydra`` for a resumed segment."""
    merged: Tree | None = None
    """The configuration of a resumed segment."""
    notes: tuple[str, ...] = ()
    """What became of an earlier run here, one line each, for the log."""
    warnings: tuple[str, ...] = ()
    """What the user should know before the run starts."""


@dataclass(frozen=True)
class _Place:
    """Where a run goes, and what may happen to a run that is there."""

    folder: RunFolder
    resume: bool
    overwrite: bool = False
    cfg: DictConfig | None = None
    """What the command line composes to, where that was needed to know the rest."""


@dataclass(frozen=True)
class _Draft:
    """A composed configuration whose values are not checked yet."""

    cfg: DictConfig
    """With Hydra's own section."""
    overrides: tuple[str, ...]
    merged: Tree | None = None
    changes: tuple[Change, ...] = ()
    notes: tuple[str, ...] = ()


Compose = Callable[[Sequence[str]], DictConfig]
"""Overrides to configuration, with Hydra's own section in it."""


# Planning a single run ----------------------------------------------------------------------------


def plan_run(command: Command, *, conf: Path) -> RunPlan | None:
    """Compose, check and claim a run; nothing is written when anything is wrong.

    Returns:
        The plan, or None when the configuration itself asks for a multirun.

    Raises:
        ConfigError: An override, a setting or a change on resume is wrong.
        RunFolderError: The folder holds a run, belongs to another process or cannot be written.
    """
    with _one_line_for_folders(), _composing(command, conf=conf) as compose, ExitStack() as undo:
        place = _find_place(command, compose)
        if place is None:
            return None
        if command.sweep_dir is not None:
            typed = command.sweep_dir
            raise ConfigError(f"sweep_dir is for a multirun, got {typed}; add -m or use run_dir=R")
        folder = place.folder
        if not place.resume and not place.overwrite:
            _refuse_to_mix(folder)
        # A folder that is not there yet is made only when all the rest is known to be right.
        claim = _claim(folder, undo) if folder.path.is_dir() else None
        saved = None
        if place.resume:
            saved = read_saved_run(folder.hydra, config_json=folder.config_json)
        draft = _draft(command, place, saved, compose)
        config = _check(draft, folder)
        claim = claim or _claim(folder, undo)
        notes = [*draft.notes, *_note_dead_owner(claim, folder)]
        if not place.resume:
            backup = _make_room(folder, claim, overwrite=place.overwrite)
            if backup is not None:
                notes.append(f"moved the earlier run to {backup}")
                claim = _claim(folder, undo)
        undo.pop_all()
    segment = next_segment(folder.hydra) if saved is not None else None
    more = [] if segment is None else [f"hydra.output_subdir=.hydra/{segment}"]
    pinned = folder_override("hydra.run.dir", str(folder.path))
    return RunPlan(
        config=config,
        folder=folder,
        claim=claim,
        argv=(*command.flags, *draft.overrides, pinned, *more),
        segment=segment,
        merged=draft.merged,
        notes=tuple(notes),
        warnings=tuple(_warn(command, config, place)),
    )


@contextmanager
def _one_line_for_folders() -> Iterator[None]:
    """Planning only looks at folders: what the system refuses there is told in one line."""
    try:
        yield
    except OSError as error:
        place = error.filename or "the working directory"
        raise RunFolderError(
            f"run folder cannot be used: {place}: {error.strerror}; choose another run_dir"
        ) from error


def _find_place(command: Command, compose: Compose) -> _Place | None:
    if command.resume and command.run_dir is not None and "${" not in command.run_dir:
        # What is typed may only make sense on top of the saved overrides: do not compose it alone.
        return _Place(RunFolder(Path(command.run_dir)), resume=True)
    cfg = compose(command.hydra_overrides)
    if cfg.hydra.mode == RunMode.MULTIRUN:
        return None
    configured = OmegaConf.select(cfg, "output_dir") or OmegaConf.select(cfg, "run.output_dir")
    if command.run_dir is None and isinstance(configured, str):
        path = absolute(configured)
    else:
        path = absolute(_resolve_run_dir(cfg))
    resume = command.resume or cfg.get("resume") is True
    return _Place(RunFolder(Path(path)), resume, cfg.get("overwrite") is True, cfg)


def _resolve_run_dir(cfg: DictConfig) -> str:
    with _hydra_config(cfg):
        try:
            return str(cfg.hydra.run.dir)
        except OmegaConfBaseException as error:
            raise ConfigError(f"hydra.run.dir: {str(error).splitlines()[0]}") from error


def _refuse_to_mix(folder: RunFolder) -> None:
    if folder.path.exists() and not folder.path.is_dir():
        raise RunFolderError(f"run folder {folder.path} is a file; choose another run_dir")
    if folder.holds_run():
        raise RunFolderError(
            f"{folder.path} holds a run (step {folder.recorded_steps()}); use resume=true to "
            "continue it or overwrite=true to move it aside"
        )


def _claim(folder: RunFolder, undo: ExitStack) -> FolderClaim:
    claim = claim_folder(folder.path)
    undo.callback(claim.release)
    return claim


def _note_dead_owner(claim: FolderClaim, folder: RunFolder) -> list[str]:
    if claim.previous_owner is None or not folder.holds_run():
        return []
    return [f"took the folder over from {claim.previous_owner}, which ended without releasing it"]


def _make_room(folder: RunFolder, claim: FolderClaim, *, overwrite: bool) -> Path | None:
    """Clear a claimed folder for a fresh start; a run in it moves to the returned place."""
    if folder.holds_run() and overwrite:
        return claim.move_aside()
    _refuse_to_mix(folder)
    # Left by a start that failed before its first step; Hydra writes it anew.
    shutil.rmtree(folder.hydra, ignore_errors=True)
    return None


def _draft(command: Command, place: _Place, saved: SavedRun | None, compose: Compose) -> _Draft:
    if saved is None:
        cfg = place.cfg if place.cfg is not None else compose(command.hydra_overrides)
        return _Draft(cfg, command.overrides)
    parsed = [Override.parse(text) for text in command.overrides]
    for_hydra = [override.text for override in parsed if override.is_hydra]
    # A key that the first start had to add with + is there now; a person changes it without.
    added = {key.key for key in map(Override.parse, saved.overrides) if key.text.startswith("+")}
    given = [
        f"+{override.text}"
        if override.key in added and not override.text.startswith(("+", "~"))
        else override.text
        for override in parsed
        if not override.is_hydra
    ]
    before = compose([*for_hydra, *saved.overrides])
    choices = _choices(before)
    kept = keep_effective(saved.overrides, given, choices=choices)
    after = compose([*for_hydra, *kept, *given])
    merged = merge_resumed(
        saved.config,
        before=_tree(before),
        after=_tree(after),
        asked=asked_keys(given, choices=choices),
    )
    regrouped = [
        f"resume override {group}: {choices.get(group)} -> {option}"
        for group, option in _choices(after).items()
        if choices.get(group) != option
    ]
    changed = [f"resume override {change}" for change in merged.changes]
    kept_values = [
        f"kept saved value {change.key}: {change.before} (the configuration files say"
        f" {change.after} now)"
        for change in (merged.drift if saved.is_composed else ())
    ]
    return _Draft(
        after,
        (*for_hydra, *kept, *given),
        merged=merged.config,
        changes=merged.changes,
        notes=(*regrouped, *changed, *kept_values),
    )


def _check(draft: _Draft, folder: RunFolder) -> SpeedtronicConfig:
    cfg = draft.cfg
    with read_write(cfg.hydra.runtime), open_dict(cfg.hydra.runtime):
        cfg.hydra.runtime.output_dir = str(folder.path)
    with _hydra_config(cfg):
        check_secrets(draft.merged or {})
        config = load_config(cfg if draft.merged is None else OmegaConf.create(draft.merged))
    if config.resume_strict and folder.holds_run():
        check_compatible(draft.changes, run_dir=str(folder.path))
    return config


def _warn(command: Command, config: SpeedtronicConfig, place: _Place) -> Iterator[str]:
    keys = {Override.parse(text).key for text in command.overrides}
    if keys & {"max_steps", "run.max_steps"} and config.data.max_steps is not None:
        yield f"run.max_steps has no effect: data.max_steps={config.data.max_steps} goes first"
    if not place.resume or command.run_dir is not None or place.folder.holds_run():
        return
    yield "resume=true without run_dir=R starts a new run"
    for run in find_resumable(place.folder.path.parent, limit=_MAX_LISTED_RUNS):
        yield f"to continue from step {run.step:,}: {resume_command(run.path)}"


def _tree(cfg: DictConfig) -> Tree:
    tree: Any = OmegaConf.to_container(cfg, resolve=False)
    return {str(key): value for key, value in tree.items() if key != "hydra"}


def _choices(cfg: DictConfig) -> dict[str, str | None]:
    return {
        group: option
        for group, option in cfg.hydra.runtime.choices.items()
        if not group.startswith("hydra/")
    }


# Hydra --------------------------------------------------------------------------------------------


@contextmanager
def _composing(command: Command, *, conf: Path) -> Iterator[Compose]:
    """Give a function that composes as Hydra's main would, without making folders."""
    extra: list[str] = []
    if command.extra_folder is not None:
        folder = absolute(command.extra_folder)
        if not Path(folder).is_dir():
            raise ConfigError(f"--config-dir must name a folder, got {folder}; correct the path")
        extra = [f"hydra.searchpath=['file://{folder}']"]

    def compose(overrides: Sequence[str]) -> DictConfig:
        try:
            return hydra.compose(
                command.config_name, overrides=[*extra, *overrides], return_hydra_config=True
            )
        except Exception as error:
            # Composition runs no code of a run: whatever Hydra objects to was typed by the user.
            raise ConfigError(explain(error, overrides)) from error

    source = command.config_folder or str(conf)
    opened: AbstractContextManager[Any]
    if source.startswith("pkg://"):
        module = source.removeprefix("pkg://")
        opened = hydra.initialize_config_module(module, job_name=_JOB_NAME, **VERSION_BASE)
    else:
        opened = hydra.initialize_config_dir(source, job_name=_JOB_NAME, **VERSION_BASE)
    with opened:
        yield compose


@contextmanager
def _hydra_config(cfg: DictConfig) -> Iterator[None]:
    """Let ``${hydra:...}`` resolve."""
    singleton = HydraConfig.instance()
    before = singleton.cfg
    singleton.set_config(cfg)
    try:
        yield
    finally:
        singleton.cfg = before


def explain(error: Exception, overrides: Sequence[str]) -> str:
    """Return one line for a mistake that Hydra found, with the nearest key.

    Args:
        error: What Hydra raised.
        overrides: What was typed.
    """
    message = str(error) or type(error).__name__
    key = unknown_key_in(message)
    if key is None:
        return explain_composition(message)
    values = [parsed.value for parsed in map(Override.parse, overrides) if parsed.key == key]
    return unknown_override(key, _plain_value(values[-1] if values else None))


def _plain_value(text: str | None) -> Any:
    try:
        return json.loads(text or "null")
    except ValueError:
        return text
