"""Resuming a run with its own configuration: read what was saved, replay it, apply what is new.

The saved configuration wins over edited YAML files; what the new command line says wins over both.
The functions on trees are pure: nested dicts with unresolved interpolations go in and out.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from speedtronic.config.load import escape, read_yaml
from speedtronic.config.overrides import SHORTHANDS, Override, is_below
from speedtronic.core.errors import ConfigError
from speedtronic.core.files import write_atomic
from speedtronic.core.settings import REDACTED, is_secret, redact
from speedtronic.run_folder.environment import redact_argv

SEGMENT_PREFIX = "resume-"
MERGED_NAME = "merged.yaml"
"""The configuration as trained, written last into a segment's folder: without it none began."""

Tree = dict[str, Any]
KeyPath = tuple[str, ...]

_OF_ONE_START = (
    "resume",
    "overwrite",
    "resume_strict",
    "output_dir",
    "run.output_dir",
    "extras.allow_targets",
)
"""Keys that always come from the new command line, never from the saved run."""
_LOCKED = (
    "model",
    "precision",
    "data",
    "run.seed",
    "optimizer._target_",
    "optimizer.name",
    "optimizer.decay",
    "optimizer.cautious",
    "optimizer.muon_nesterov",
    "optimizer.muon_ns_steps",
    "optimizer.muon_plus",
    "optimizer.normuon",
    "optimizer.normuon_beta2",
    "optimizer.orthogonalization",
    "optimizer.routing",
    "optimizer.scale",
)
_BEFORE_THE_KEY = {"optimizer.cautious": False}
"""What runs did that were saved before one of the locked keys existed."""
_FREE = ("data.num_workers", "data.prefetch_factor", "data.pin_memory", "data.max_steps")
_MISSING = object()


@dataclass(frozen=True)
class SavedRun:
    """The configuration of a run as its last segment trained it."""

    config: Tree
    """Nested dict, interpolations unresolved."""
    overrides: tuple[str, ...]
    """Overrides of all segments in order, without those that hold for one start only."""
    is_composed: bool = True
    """Whether YAML files and overrides made it; false for a run started from Python."""


@dataclass(frozen=True)
class Change:
    """A setting with its value before and after."""

    path: KeyPath
    before: Any
    after: Any

    @property
    def key(self) -> str:
        """The dotted key."""
        return ".".join(self.path)

    def __str__(self) -> str:
        if is_secret(self.path[-1]):
            return f"{self.key}: {REDACTED} -> {REDACTED}"
        return f"{self.key}: {_show(self.before)} -> {_show(self.after)}"


@dataclass(frozen=True)
class MergedConfig:
    """What a resumed segment trains with, and how that differs from what it was."""

    config: Tree
    """Nested dict, interpolations unresolved."""
    changes: tuple[Change, ...]
    """Saved value and new value, as the command line asked."""
    drift: tuple[Change, ...]
    """Saved value, which holds, and what the edited YAML files say now."""


def read_saved_run(hydra_folder: Path, *, config_json: Path | None = None) -> SavedRun | None:
    """Read the configuration of a run's last segment.

    Args:
        hydra_folder: The run's ``.hydra``.
        config_json: Resolved settings; they serve a run started from Python, without ``.hydra``.

    Returns:
        None when nothing usable was saved.
    """
    is_composed = (hydra_folder / "config.yaml").exists()
    segments = sorted(hydra_folder.glob(f"{SEGMENT_PREFIX}[0-9]*"), reverse=True)
    sources = [(segment / MERGED_NAME, segment / "overrides.yaml") for segment in segments]
    sources.append((hydra_folder / "config.yaml", hydra_folder / "overrides.yaml"))
    for config_path, overrides_path in sources:
        config, overrides = _load(config_path), _load(overrides_path)
        if isinstance(config, dict) and config and isinstance(overrides, list):
            return SavedRun(config, replayable(overrides), is_composed)
    resolved = _load_json(config_json) if config_json is not None else None
    if isinstance(resolved, dict) and resolved:
        return SavedRun(resolved, (), is_composed=False)
    return None


def replayable(overrides: Sequence[str]) -> tuple[str, ...]:
    """Drop the overrides that hold for one start only, Hydra's own ones, and permissions.

    Example:
        >>> replayable(["optimizer=muon", "resume=true", "+extras.allow_targets=[os]", "hydra.x=1"])
        ('optimizer=muon',)
    """
    return tuple(text for text in overrides if not _is_of_one_start(Override.parse(text)))


def _is_of_one_start(override: Override) -> bool:
    if override.is_hydra or override.key == "extras":
        return True
    return any(is_below(override.key, key) for key in _OF_ONE_START)


def next_segment(hydra_folder: Path) -> str:
    """Return the name of the folder for the next segment, ``resume-001`` first."""
    taken = [
        path.name.removeprefix(SEGMENT_PREFIX) for path in hydra_folder.glob(f"{SEGMENT_PREFIX}*")
    ]
    number = 1 + max((int(name) for name in taken if name.isdigit()), default=0)
    return f"{SEGMENT_PREFIX}{number:03d}"


def save_merged(folder: Path, config: Tree) -> None:
    """Keep a segment's configuration beside what Hydra saved; from now on the segment counts."""
    write_atomic(folder / MERGED_NAME, OmegaConf.to_yaml(OmegaConf.create(redact(config))))


def hide_secrets(folder: Path) -> None:
    """Take the values of secret keys out of what Hydra wrote into its folder."""
    for path in folder.glob("*.yaml"):
        written = _load(path)
        hidden = _hide(written)
        if hidden != written:
            write_atomic(path, OmegaConf.to_yaml(OmegaConf.create(hidden)))


def check_secrets(config: Tree) -> None:
    """Refuse a resume that lacks a secret: none is ever saved.

    Raises:
        ConfigError: a secret has to be given again.
    """
    missing = [".".join(path) for path, value in flatten(config).items() if value == REDACTED]
    if missing:
        raise ConfigError(
            f"{missing[0]} is a secret and was not saved with the run; give {missing[0]}=... again"
        )


def _hide(tree: Any) -> Any:
    """Redact secret keys, and overrides of them in lists."""
    if isinstance(tree, Mapping):
        hidden = {key: _hide(value) for key, value in redact(tree).items()}
        if isinstance(hidden.get("override_dirname"), str):  # Hydra's: all overrides in one text
            overrides = hidden["override_dirname"].split(",")
            hidden["override_dirname"] = ",".join(redact_argv(overrides))
        return hidden
    if isinstance(tree, list):
        return [redact_argv([item])[0] if isinstance(item, str) else _hide(item) for item in tree]
    return tree


def asked_keys(given: Sequence[str], *, choices: Mapping[str, str | None]) -> tuple[str, ...]:
    """Return the keys a command line sets explicitly.

    A group counts when it gets another option than before: naming the same one again asks for
    nothing.

    Args:
        given: The new overrides.
        choices: The option of each group as the saved overrides chose it.
    """
    overrides = [Override.parse(text) for text in given]
    return tuple(
        override.key
        for override in overrides
        if not override.is_hydra and choices.get(override.key, _MISSING) != override.value
    )


def merge_resumed(saved: Tree, *, before: Tree, after: Tree, asked: Sequence[str]) -> MergedConfig:
    """Apply to a saved configuration what a new command line changes, and nothing else.

    Args:
        saved: The configuration as last trained.
        before: What the saved overrides compose to with the YAML files of today.
        after: The same with the new overrides added.
        asked: Keys set explicitly; they hold even where ``before`` has their value already.

    Returns:
        The merged configuration. Keys of one start only (``resume``, ``extras.allow_targets``)
        come from ``after``.
    """
    saved, before, after = (_without_shorthands(tree) for tree in (saved, before, after))
    merged = copy.deepcopy(saved)
    old, base, new = flatten(saved), flatten(before), flatten(after)
    paths = [path for path in {**base, **new} if not _equal(_at(base, path), _at(new, path))]
    paths += [_path(key) for key in asked]
    for path in [*sorted(paths, key=len), *map(_path, _OF_ONE_START)]:
        _copy_value(merged, after, path)
    final = flatten(merged)
    changes = _compare(old, final, paths={**old, **final})
    drift = _compare(old, base, paths=[path for path in old if path in base])
    kept = [change for change in drift if _equal(_at(final, change.path), change.before)]
    return MergedConfig(config=merged, changes=tuple(changes), drift=tuple(kept))


def changes_between(saved: Tree, present: Tree) -> tuple[Change, ...]:
    """Return the settings that differ between two resolved configurations."""
    before, after = flatten(_without_shorthands(saved)), flatten(_without_shorthands(present))
    return tuple(_compare(before, after, paths={**before, **after}))


def check_compatible(changes: Sequence[Change], *, run_dir: str) -> None:
    """Refuse changes under which a checkpoint would not mean the same any more.

    Raises:
        ConfigError: A model, data, precision or seed setting changed; the message lists each.
    """
    locked = [
        change
        for change in changes
        if _is_locked(change.key)
        and not is_secret(change.path[-1])
        and not _only_names_what_was(change)
    ]
    if locked:
        listed = ", ".join(map(str, locked))
        raise ConfigError(
            f"resume cannot change {listed} (run {run_dir}); drop these overrides, start a new "
            "run, or add resume_strict=false"
        )


def flatten(tree: Mapping[str, Any], prefix: KeyPath = ()) -> dict[KeyPath, Any]:
    """Return the leaves of a nested dict by path; lists and empty dicts are leaves.

    Example:
        >>> flatten({"optimizer": {"lr": 0.1, "betas": [0.9, 0.95]}, "tags": []})
        {('optimizer', 'lr'): 0.1, ('optimizer', 'betas'): [0.9, 0.95], ('tags',): []}
    """
    leaves: dict[KeyPath, Any] = {}
    for key, value in tree.items():
        path = (*prefix, str(key))
        if isinstance(value, Mapping) and value:
            leaves.update(flatten(value, path))
        else:
            leaves[path] = value
    return leaves


def _load(path: Path) -> Any:
    """Return the plain content of a YAML file; None when it is missing or torn."""
    try:
        return OmegaConf.to_container(read_yaml(path), resolve=False)
    except ConfigError:
        return None


def _load_json(path: Path) -> Any:
    """Return the content of a JSON file with its ``${`` as text; None when missing or torn."""
    try:
        return escape(json.loads(path.read_bytes()))
    except (OSError, ValueError):
        return None


def _path(key: str) -> KeyPath:
    return ("run", key) if key in SHORTHANDS else tuple(key.replace("/", ".").split("."))


def _without_shorthands(tree: Tree) -> Tree:
    """Move given root shorthands (``seed``) to their place (``run.seed``)."""
    tree = copy.deepcopy(tree)
    run = tree.setdefault("run", {})
    for key in SHORTHANDS:
        if tree.get(key) is not None and isinstance(run, dict):
            run[key] = tree[key]
            tree[key] = None
    return tree


def _copy_value(target: Tree, source: Tree, path: KeyPath) -> None:
    """Make ``target`` equal ``source`` at a path; where the source has nothing, delete."""
    value = _select(source, path)
    node: Any = target
    for key in path[:-1]:
        if not isinstance(node.get(key), dict):
            if value is _MISSING:
                return
            node[key] = {}
        node = node[key]
    if value is _MISSING:
        node.pop(path[-1], None)
    else:
        node[path[-1]] = copy.deepcopy(value)


def _select(tree: Any, path: KeyPath) -> Any:
    for key in path:
        if not isinstance(tree, Mapping) or key not in tree:
            return _MISSING
        tree = tree[key]
    return tree


def _compare(
    before: Mapping[KeyPath, Any], after: Mapping[KeyPath, Any], *, paths: Iterable[KeyPath]
) -> list[Change]:
    changes = (Change(path, _at(before, path), _at(after, path)) for path in paths)
    return [
        change
        for change in changes
        if change.key not in _OF_ONE_START and not _equal(change.before, change.after)
    ]


def _at(leaves: Mapping[KeyPath, Any], path: KeyPath) -> Any:
    return leaves.get(path, _MISSING)


def _equal(left: Any, right: Any) -> bool:
    """Compare as the settings will see it: tuples are lists, 1 is 1.0, but true is not 1."""
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        return len(left) == len(right) and all(map(_equal, left, right))
    if isinstance(left, bool) != isinstance(right, bool):
        return False
    return bool(left == right)


def _is_locked(key: str) -> bool:
    if any(is_below(key, free) for free in _FREE):
        return False
    return any(is_below(key, locked) for locked in _LOCKED)


def _only_names_what_was(change: Change) -> bool:
    was = _BEFORE_THE_KEY.get(change.key, _MISSING)
    return change.before is _MISSING and was is not _MISSING and _equal(was, change.after)


def _show(value: Any) -> str:
    if value is _MISSING:
        return "absent"
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)
