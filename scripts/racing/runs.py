"""The finished runs of an optimizer race, read from their folders."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from speedtronic.config.groups import conf_folder
from speedtronic.run_folder.layout import RunFolder, read_json

_TARGET = "_target_"
# Who a run is, how long it is (counted apart) and what it writes: none of these makes a setting.
_NO_SETTING = frozenset(
    {
        *("run.name", "run.seed", "run.output_dir", "run.max_steps", "run.max_minutes"),
        *("data.max_steps", "evaluation.every_steps"),
        *("tags", "resume", "resume_strict", "overwrite"),
    }
)
_NO_SETTING_SECTIONS = ("logging.", "checkpoint.", "extras.")


@dataclass(frozen=True, kw_only=True)
class Run:
    """One finished run, as its folder tells it."""

    folder: Path
    created: str = ""
    """Time of the first start, ISO 8601; empty when unknown."""
    optimizer: str
    """Short name."""
    seed: int
    steps: int
    """Updates; the horizon of the schedule."""
    config: Mapping[str, Any]
    """What makes the setting, by dotted key: all but seed, name, steps and the run's records."""
    loss: float
    """Held-out loss at the end, nats."""
    curve: Mapping[int, float] = field(default_factory=dict)
    """Held-out loss by step, nats."""
    step_s: tuple[float, ...] = ()
    """Seconds of an update, one number for each stretch between two train_step records."""


@dataclass(frozen=True)
class LeftOut:
    """A run folder that cannot take part."""

    folder: Path
    reason: str


def read_runs(folder: Path) -> tuple[list[Run], list[LeftOut]]:
    """Read every run folder below a folder.

    Args:
        folder: Where to look, at any depth.

    Returns:
        The finished runs, and the folders left out, each in the order of their paths.
    """
    options = read_options(conf_folder() / "optimizer")
    marks = {path.parent for name in ("config.json", "run.json") for path in folder.rglob(name)}
    read = [_read_run(path, options) for path in sorted(marks)]
    return (
        [found for found in read if isinstance(found, Run)],
        [found for found in read if isinstance(found, LeftOut)],
    )


def read_options(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the named optimizers of a ``conf/optimizer`` folder: name to keys and values."""
    found = {}
    for path in sorted(folder.glob("*.yaml")):
        tree = OmegaConf.to_container(OmegaConf.load(path))
        if isinstance(tree, dict):
            found[path.stem] = {str(key): value for key, value in tree.items()}
    return found


def name_optimizer(section: Mapping[str, Any], options: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the short name of the optimizer a configuration uses.

    Several options may share a settings class: the one that differs from the configuration in the
    fewest values gives the name, the shortest name where they tie. A class that no option has goes
    by its own name.

    Args:
        section: The section ``optimizer`` of a config.json.
        options: Name to keys and values, as ``read_options`` gives them.

    Example:
        >>> options = {"muon": {"_target_": "a.M", "plus": False}, "muon_plus": {"_target_": "a.M",
        ...     "plus": True}}
        >>> name_optimizer({"_target_": "a.M", "lr": 1.0, "plus": True}, options)
        'muon_plus'
    """
    target = str(section.get(_TARGET, ""))
    differences = {
        name: sum(section.get(key) != value for key, value in values.items())
        for name, values in options.items()
        if values.get(_TARGET) == target
    }
    if not differences:
        return target.rpartition(".")[2].removesuffix("Settings") or "unnamed"
    return min(differences, key=lambda name: (differences[name], len(name), name))


def _read_run(path: Path, options: Mapping[str, Mapping[str, Any]]) -> Run | LeftOut:
    folder = RunFolder(path)
    config, result = read_json(folder.config_json), read_json(folder.result_json)
    if config is None:
        return LeftOut(path, "no readable config.json")
    flat = _flatten(config)
    horizon = int(flat.get("data.max_steps") or flat["run.max_steps"])
    if result is None:
        return LeftOut(path, "no readable result.json: unfinished or killed")
    if result.get("status") != "completed":
        reason = f": {result['error']}" if result.get("error") else ""
        return LeftOut(path, f"{result.get('status')} at step {result.get('steps')}{reason}")
    if result.get("steps") != horizon:
        return LeftOut(path, f"stopped at step {result.get('steps')} of {horizon}")
    if not isinstance(result.get("final_eval_loss"), float | int):
        return LeftOut(path, "no final held-out loss in result.json: not measured or not finite")
    records = list(_read_records(path / str(flat.get("logging.json_file"))))
    return Run(
        folder=path,
        created=str((read_json(folder.run_json) or {}).get("created", "")),
        optimizer=name_optimizer(config.get("optimizer", {}), options),
        seed=int(flat["run.seed"]),
        steps=horizon,
        config={key: value for key, value in flat.items() if _makes_setting(key)},
        loss=float(result["final_eval_loss"]),
        curve={
            record["step"]: record["loss"]
            for record in records
            if record.get("event") == "eval" and record.get("loss") is not None
        },
        step_s=tuple(measure_step_seconds(records)),
    )


def measure_step_seconds(records: Iterable[Mapping[str, Any]]) -> list[float]:
    """Return the seconds of an update in each stretch between two train_step records.

    ``steps_per_sec`` counts from the run's start with evaluations in it: differences of the clock
    leave out compilation and other beginnings, and the evaluations of a stretch are taken off.

    Args:
        records: Of a metrics.jsonl, in file order.
    """
    found: list[float] = []
    step, clock_s, evaluation_s = 0, 0.0, 0.0
    for record in records:
        if record.get("event") == "eval":
            evaluation_s += record.get("seconds") or 0.0
        if record.get("event") != "train_step" or not record.get("steps_per_sec"):
            continue
        now_s = record["step"] / record["steps_per_sec"]
        seconds = now_s - clock_s - evaluation_s
        # A resumed run's clock began anew: such a stretch says nothing.
        if record["step"] > step and seconds > 0:
            found.append(seconds / (record["step"] - step))
        step, clock_s, evaluation_s = record["step"], now_s, 0.0
    return found


def _read_records(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of a metrics file; a torn line or a missing file gives none."""
    for line in path.read_bytes().splitlines() if path.is_file() else []:
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict):
            yield record


def _flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return a tree of mappings as dotted keys; lists stay values."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            flat |= _flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _makes_setting(key: str) -> bool:
    return key not in _NO_SETTING and not key.startswith(_NO_SETTING_SECTIONS)
