"""The arithmetic of an optimizer race: runs grouped into settings, and what they answer.

Pure functions. A setting is what differs between runs except the seed; its number is the mean over
the seeds of the held-out loss at the end.
"""

from __future__ import annotations

import json
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from racing.runs import Run

_OPTIMIZER = "optimizer."
_DATA = "data."
# Of the section data, what leaves the held-out tokens as they are.
_SAME_HELD_OUT = frozenset(
    {
        *("data.target_batch_size", "data.shuffle", "data.drop_last", "data.seed"),
        *("data.num_workers", "data.prefetch_factor", "data.pin_memory"),
    }
)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The runs that differ in nothing but their seed."""

    optimizer: str
    """Short name."""
    steps: int
    """Updates of each run."""
    values: Mapping[str, Any]
    """What tells this setting from its siblings, by dotted key."""
    runs: Sequence[Run]
    """At least one, each with a seed of its own, in the order of seeds."""
    wanted_seeds: int
    """Most seeds that a setting of this optimizer has at this number of steps."""

    @property
    def losses(self) -> list[float]:
        """Final held-out losses in the order of seeds, nats."""
        return [run.loss for run in self.runs]

    @property
    def mean(self) -> float:
        """Mean final held-out loss over the seeds, nats."""
        return statistics.fmean(self.losses)

    @property
    def deviation(self) -> float | None:
        """Sample standard deviation (n - 1) over the seeds, nats; None for one seed."""
        return statistics.stdev(self.losses) if len(self.runs) > 1 else None

    @property
    def step_s(self) -> float | None:
        """Median seconds of an update over all seeds; None when nothing was recorded."""
        seconds = [value for run in self.runs for value in run.step_s]
        return statistics.median(seconds) if seconds else None

    @property
    def is_complete(self) -> bool:
        """Whether no seed is missing: one that diverged must not make the others look good."""
        return len(self.runs) == self.wanted_seeds


@dataclass(frozen=True, kw_only=True)
class Answer:
    """How many steps an optimizer needs for the baseline's best loss."""

    optimizer: str
    baseline: Setting
    """The baseline's best setting at its longest horizon."""
    reached: Setting | None
    """Best setting of the shortest horizon whose mean is at most the baseline's; None: nowhere."""
    closest: Setting
    """The setting with the lowest mean of all."""
    shorter_steps: int | None = None
    """The horizon below ``reached``; None when no shorter one was run."""
    estimated_steps: float | None = None
    """Where the loss is met between those two, linear in the logarithm of steps."""

    @property
    def steps_ratio(self) -> float | None:
        """Steps of ``reached`` as a part of the baseline's."""
        return self.reached.steps / self.baseline.steps if self.reached else None

    @property
    def time_ratio(self) -> float | None:
        """Training time of ``reached`` as a part of the baseline's; None when not recorded."""
        if not (self.reached and self.reached.step_s and self.baseline.step_s):
            return None
        return (self.reached.steps * self.reached.step_s) / (
            self.baseline.steps * self.baseline.step_s
        )


# ---------------------------------------------------------------------------- grouping


def keep_newest(runs: Sequence[Run]) -> tuple[list[Run], list[Run]]:
    """Keep one run for each setting, number of steps and seed: the one that started last.

    Returns:
        The runs that count, and the older ones.
    """
    by_time = sorted(runs, key=lambda run: (run.created, str(run.folder)))
    newest = {(_identity(run), run.seed): run for run in by_time}
    kept = {id(run) for run in newest.values()}
    return (
        [run for run in runs if id(run) in kept],
        [run for run in runs if id(run) not in kept],
    )


def group_runs(runs: Sequence[Run]) -> list[Setting]:
    """Group runs by everything in which they differ except their seed.

    Args:
        runs: One for each setting, number of steps and seed.

    Returns:
        The settings by optimizer, steps and values.
    """
    groups: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        groups[_identity(run)].append(run)
    wanted: dict[tuple[str, int], int] = defaultdict(int)
    for members in groups.values():
        place = (members[0].optimizer, members[0].steps)
        wanted[place] = max(wanted[place], len(members))
    settings = [
        Setting(
            optimizer=first.optimizer,
            steps=first.steps,
            values={key: first.config[key] for key in _told_by(first, runs) if key in first.config},
            runs=sorted(members, key=lambda run: run.seed),
            wanted_seeds=wanted[first.optimizer, first.steps],
        )
        for members in groups.values()
        for first in members[:1]
    ]
    return sorted(settings, key=_order)


def find_other_differences(runs: Sequence[Run]) -> dict[str, list[Any]]:
    """Return what differs beside optimizer, steps and seed: dotted key to its values.

    Where this is not empty the race compares more than optimizers.
    """
    return {
        key: _unequal([run.config.get(key) for run in runs])
        for key in _varying(runs)
        if not key.startswith(_OPTIMIZER)
    }


def changes_held_out(key: str) -> bool:
    """Return whether runs that differ in a dotted key are measured on different tokens."""
    is_data = key.startswith(_DATA) and key not in _SAME_HELD_OUT
    return is_data or key == "evaluation.max_batches"


def find_rate_key(settings: Sequence[Setting], optimizer: str) -> str | None:
    """Return the dotted key of the learning rate that an optimizer's settings sweep.

    Where several or none is swept: ``optimizer.muon_lr`` before ``optimizer.lr``.
    """
    own = [setting for setting in settings if setting.optimizer == optimizer]
    known = own[0].runs[0].config if own else {}
    swept = {key for setting in own for key in setting.values if _is_rate(key)}
    if len(swept) == 1:
        return swept.pop()
    choices = ["optimizer.muon_lr", "optimizer.lr"]
    return next((key for key in choices if isinstance(known.get(key), float | int)), None)


def _is_rate(key: str) -> bool:
    name = key.removeprefix(_OPTIMIZER)
    return key.startswith(_OPTIMIZER) and (name == "lr" or name.endswith("_lr"))


def _identity(run: Run) -> str:
    return json.dumps([run.optimizer, run.steps, run.config], sort_keys=True, default=str)


def _told_by(run: Run, runs: Sequence[Run]) -> list[str]:
    """Return the keys that tell a run from others: of its optimizer's, or of all runs."""
    own = [other for other in runs if other.optimizer == run.optimizer]
    inside = [key for key in _varying(own) if key.startswith(_OPTIMIZER)]
    return inside + [key for key in _varying(runs) if not key.startswith(_OPTIMIZER)]


def _varying(runs: Sequence[Run]) -> list[str]:
    keys = sorted({key for run in runs for key in run.config})
    return [key for key in keys if len(_unequal([run.config.get(key) for run in runs])) > 1]


def _unequal(values: Iterable[Any]) -> list[Any]:
    return list({json.dumps(value, default=str): value for value in values}.values())


def _order(setting: Setting) -> tuple[Any, ...]:
    values = [
        (key, 0, value, "")
        if isinstance(value, int | float)
        else (key, 1, 0, json.dumps(value, default=str))
        for key, value in setting.values.items()
    ]
    return setting.optimizer, setting.steps, values


# ---------------------------------------------------------------------------- answers


def find_bests(settings: Iterable[Setting], optimizer: str) -> dict[int, Setting]:
    """Return an optimizer's best setting at each number of steps, the fewest steps first.

    The best has the lowest mean of those that lack no seed.
    """
    bests: dict[int, Setting] = {}
    for setting in settings:
        if setting.optimizer != optimizer or not setting.is_complete:
            continue
        best = bests.get(setting.steps)
        if best is None or setting.mean < best.mean:
            bests[setting.steps] = setting
    return dict(sorted(bests.items()))


def answer_race(settings: Sequence[Setting], *, baseline: str) -> list[Answer]:
    """Return, for each other optimizer, in how many steps it reaches the baseline's best loss.

    Args:
        settings: Of all optimizers.
        baseline: Short name; must have a setting.
    """
    *_, target = find_bests(settings, baseline).values()
    others = sorted({setting.optimizer for setting in settings} - {baseline})
    return [_answer(find_bests(settings, other), target) for other in others]


def _answer(bests: Mapping[int, Setting], target: Setting) -> Answer:
    closest = min(bests.values(), key=lambda setting: setting.mean)
    shorter: Setting | None = None
    for setting in bests.values():
        if setting.mean <= target.mean:
            return Answer(
                optimizer=setting.optimizer,
                baseline=target,
                reached=setting,
                closest=closest,
                shorter_steps=shorter.steps if shorter else None,
                estimated_steps=_estimate(shorter, setting, target.mean) if shorter else None,
            )
        shorter = setting
    return Answer(optimizer=closest.optimizer, baseline=target, reached=None, closest=closest)


def _estimate(shorter: Setting, longer: Setting, loss: float) -> float:
    return interpolate_steps(
        loss,
        shorter_steps=shorter.steps,
        shorter_loss=shorter.mean,
        longer_steps=longer.steps,
        longer_loss=longer.mean,
    )


def interpolate_steps(
    loss: float, *, shorter_steps: int, shorter_loss: float, longer_steps: int, longer_loss: float
) -> float:
    """Return the steps at which a loss is met between two runs, linear in the logarithm of steps.

    Args:
        loss: At most ``shorter_loss`` and at least ``longer_loss``, nats.
        shorter_steps: Updates of the shorter run.
        shorter_loss: Its final loss, nats.
        longer_steps: Updates of the longer run.
        longer_loss: Its final loss, nats; below ``shorter_loss``.

    Example:
        >>> round(interpolate_steps(2.5, shorter_steps=100, shorter_loss=3.0, longer_steps=400,
        ...     longer_loss=2.0), 6)
        200.0
    """
    part = (shorter_loss - loss) / (shorter_loss - longer_loss)
    return shorter_steps * math.pow(longer_steps / shorter_steps, part)
