"""Compare the runs of an optimizer race: ``python scripts/race.py [FOLDER]``.

Train them first, see ``conf/experiment/optimizer_race.yaml`` and ``make race``. Writes table.md,
table.csv and race.png, and says in how many steps each optimizer reaches the baseline's best loss.
"""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from racing.picture import draw_race
from racing.runs import LeftOut, Run, read_runs
from racing.settings import (
    Answer,
    Setting,
    answer_race,
    changes_held_out,
    find_bests,
    find_other_differences,
    group_runs,
    keep_newest,
)
from racing.words import write_answer, write_estimate, write_key, write_value, write_values
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from speedtronic.core.arguments import ToolArguments, parse_arguments, run_tool
from speedtronic.core.errors import ConfigError

FOLDER = "outputs/optimizer_race"
USAGE = f"python scripts/race.py [FOLDER={FOLDER}] [out=FOLDER2] [baseline=adamw]"
_BEST = "best"
_HEADER = ("optimizer", "setting", "steps", "seeds", "loss", "sd", "s/step", _BEST)
_LEFT_ALIGNED = ("optimizer", "setting", _BEST)
_LEGEND = (
    "loss: held-out loss at the end in nats, mean over the seeds; sd: its sample standard deviation"
    " (n - 1); s/step: median seconds of an update; best: lowest mean of the optimizer at that"
    " number of steps."
)


class RaceArguments(ToolArguments):
    """The words of the command."""

    folder: str
    """Where the run folders lie, at any depth."""
    out: str | None = None
    """Folder of table.md, table.csv and race.png; null: the folder of the runs."""
    baseline: str = "adamw"
    """The optimizer whose best loss the others have to reach."""


@dataclass(frozen=True, kw_only=True)
class Race:
    """All that is printed, written and drawn."""

    settings: Sequence[Setting]
    answers: Sequence[Answer]
    baseline: str
    notes: Sequence[str]
    """What a reader must know before believing the numbers."""


def main(argv: Sequence[str]) -> int:
    """Read the runs, write table and picture, print table and answers."""
    is_given = any("=" not in word or word.startswith("folder=") for word in argv)
    words = argv if is_given else [FOLDER, *argv]
    arguments = parse_arguments(RaceArguments, words, positional="folder", usage=USAGE)
    folder = Path(arguments.folder)
    if not folder.is_dir():
        raise ConfigError(f"folder must exist, got {folder}; `make race` trains into {FOLDER}")
    race = judge(*read_runs(folder), baseline=arguments.baseline, folder=folder)
    out = Path(arguments.out or folder)
    out.mkdir(parents=True, exist_ok=True)
    (out / "table.md").write_text(write_markdown(race))
    (out / "table.csv").write_text(write_csv(race.settings))
    draw_race(race.settings, answers=race.answers, baseline=race.baseline, path=out / "race.png")
    show(race)
    print(
        f"written: {', '.join(str(out / name) for name in ('table.md', 'table.csv', 'race.png'))}"
    )
    return 0


def judge(runs: Sequence[Run], left_out: Sequence[LeftOut], *, baseline: str, folder: Path) -> Race:
    """Group the runs and answer the question.

    Args:
        runs: Finished runs.
        left_out: Folders that cannot take part; the notes name them.
        baseline: Short name of an optimizer.
        folder: What the paths in the notes are relative to.

    Raises:
        ConfigError: no run is finished, none of the baseline, or the losses are of different data.
    """
    notes = [f"left out: {item.folder.relative_to(folder)}: {item.reason}" for item in left_out]
    for note in notes if not runs else []:
        print(note)
    if not runs:
        raise ConfigError(f"folder must hold finished runs, got {folder}; `make race` trains them")
    newest, older = keep_newest(runs)
    names = sorted({run.optimizer for run in newest})
    if baseline not in names:
        raise ConfigError(
            f"baseline must be an optimizer of the runs, got {baseline!r};"
            f" there are: {', '.join(names)}"
        )
    if older:
        paths = ", ".join(str(run.folder.relative_to(folder)) for run in older)
        notes.append(f"repeated with the same setting and seed, the newer run counts: not {paths}")
    notes += _name_differences(newest)
    settings = sorted(group_runs(newest), key=lambda setting: setting.optimizer != baseline)
    notes += _name_incomplete(settings)
    answers = answer_race(settings, baseline=baseline)
    return Race(settings=settings, answers=answers, baseline=baseline, notes=notes)


def _name_differences(runs: Sequence[Run]) -> list[str]:
    notes: list[str] = []
    for key, values in find_other_differences(runs).items():
        shown = ", ".join(write_value(value) for value in values)
        if changes_held_out(key):
            raise ConfigError(
                f"folder must hold runs measured on the same tokens, got {key} {shown};"
                " give each race a name= of its own"
            )
        notes.append(f"compares more than optimizers: {key} is {shown}")
    return notes


def _name_incomplete(settings: Sequence[Setting]) -> list[str]:
    return [
        f"never best, because it lacks seeds ({len(setting.runs)} of {setting.wanted_seeds}):"
        f" {setting.optimizer} {write_values(setting.values)}, {setting.steps} steps"
        for setting in settings
        if not setting.is_complete
    ]


# ---------------------------------------------------------------------------- tables


def write_markdown(race: Race) -> str:
    """Return the table, the answers and the notes as Markdown."""
    rule = ["---" if name in _LEFT_ALIGNED else "---:" for name in _HEADER]
    lines = [_HEADER, rule, *(_row(setting, race.settings) for setting in race.settings)]
    escaped = [[cell.replace("|", "\\|") for cell in line] for line in lines]
    parts = [
        "\n".join(f"| {' | '.join(line)} |" for line in escaped),
        _LEGEND,
        "\n".join(f"- {line}" for line in write_conclusions(race)),
        "\n".join(f"- {note}" for note in race.notes),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def write_csv(settings: Sequence[Setting]) -> str:
    """Return the settings as CSV, every number in full and one column for each swept key."""
    keys = sorted({key for setting in settings for key in setting.values})
    file = io.StringIO()
    columns = ["optimizer", "steps", *map(write_key, keys)]
    columns += ["seeds", "mean", "sd", "seconds_per_step", "best", "losses"]
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(columns)
    for setting in settings:
        values = [write_value(setting.values[key]) if key in setting.values else "" for key in keys]
        seeds = " ".join(str(run.seed) for run in setting.runs)
        losses = " ".join(repr(loss) for loss in setting.losses)
        numbers = [setting.mean, setting.deviation, setting.step_s]
        is_best = int(_is_best(setting, settings))
        writer.writerow(
            [setting.optimizer, setting.steps, *values, seeds, *numbers, is_best, losses]
        )
    return file.getvalue()


def write_conclusions(race: Race) -> list[str]:
    """Return the answer lines: the baseline's best, then each other optimizer."""
    if not race.answers:
        return [f"{race.baseline} alone: nothing to compare it with"]
    lines: list[str] = []
    for answer in race.answers:
        estimate = write_estimate(answer)
        lines += [write_answer(answer), *([estimate] if estimate else [])]
    return lines


def show(race: Race) -> None:
    """Print the table, the answers and the notes."""
    console = Console()
    table = Table(header_style="bold", box=SIMPLE_HEAD, collapse_padding=True)
    for name in _HEADER:
        justify: Literal["left", "right"] = "left" if name in _LEFT_ALIGNED else "right"
        table.add_column(name, justify=justify, no_wrap=name != "setting")
    previous: tuple[str, int] | None = None
    for setting in race.settings:
        place = (setting.optimizer, setting.steps)
        if previous not in (None, place):
            table.add_section()
        previous = place
        row = _row(setting, race.settings)
        table.add_row(*row, style="bold green" if row[-1] else None)
    console.print(table)
    for line in [*write_conclusions(race), *race.notes]:
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _row(setting: Setting, settings: Sequence[Setting]) -> list[str]:
    seeds = str(len(setting.runs))
    return [
        setting.optimizer,
        write_values(setting.values),
        str(setting.steps),
        seeds if setting.is_complete else f"{seeds} of {setting.wanted_seeds}",
        f"{setting.mean:.4f}",
        "-" if setting.deviation is None else f"{setting.deviation:.4f}",
        "-" if setting.step_s is None else f"{setting.step_s:.4f}",
        _BEST if _is_best(setting, settings) else "",
    ]


def _is_best(setting: Setting, settings: Sequence[Setting]) -> bool:
    return find_bests(settings, setting.optimizer).get(setting.steps) is setting


if __name__ == "__main__":
    sys.exit(run_tool(main, usage=USAGE))
