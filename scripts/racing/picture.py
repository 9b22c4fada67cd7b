"""The picture of an optimizer race: loss against learning rate, and loss over steps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from racing.settings import Answer, Setting, find_bests, find_rate_key
from racing.words import write_key, write_short_answer, write_value, write_values

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_INK, _MUTED, _GRID = "#1f2933", "#5b6673", "#e4e8ec"
# Okabe and Ito 2008, https://jfly.uni-koeln.de/color/: told apart with every kind of colour vision.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
_MARKS = ("o", "s", "^", "D", "v", "P", "X")  # one more than colours: pairs repeat after 42
_FIRST_PART = 0.25
"""Part of the longest run whose losses may leave the picture: they fall too steeply to compare."""
_LEGEND_FROM = 0.42
"""Part of the longest run from which on the legend stands above the curves."""
_LEGEND_LINE = 0.085
"""Height of a line of the legend as a part of the panel."""
_RATE_TICKS = ((2.3, (1.0, 2.0, 5.0)), (3.5, (1.0, 3.0)))
"""Up to so many decades on the axis, which multiples of the powers of ten are labelled."""
_GOAL_LINE = 0.055
"""Height of a line of text at the bottom of the panel, as a part of it."""


@dataclass(frozen=True, kw_only=True)
class Lane:
    """One optimizer in the picture."""

    optimizer: str
    settings: Sequence[Setting]
    bests: Mapping[int, Setting]
    rate_key: str | None
    colour: str
    mark: str


def draw_race(
    settings: Sequence[Setting], *, answers: Sequence[Answer], baseline: str, path: Path
) -> None:
    """Draw race.png.

    Left: final loss against learning rate at the longest horizon that all optimizers have. Right:
    held-out loss over steps of each optimizer's best setting, and final losses of shorter runs.

    Args:
        settings: Of all optimizers.
        answers: Of the others than the baseline.
        baseline: Short name; drawn first.
        path: The PNG to write or replace.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    lanes = _make_lanes(settings, baseline)
    figure = Figure(figsize=(9.0, 4.4 + 0.2 * len(answers)), dpi=200, facecolor="white")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, gridspec_kw={"width_ratios": [1, 1.25]})
    _draw_rates(left, lanes)
    _draw_steps(right, lanes, answers)
    head_inches = _write_head(figure, lanes, answers)
    top = 1 - (head_inches + 0.45) / figure.get_figheight()
    figure.subplots_adjust(left=0.072, right=0.985, bottom=0.12, top=top, wspace=0.17)
    temporary = path.with_name(f".{path.name}.tmp.png")
    try:
        figure.savefig(temporary, format="png")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _make_lanes(settings: Sequence[Setting], baseline: str) -> list[Lane]:
    names = sorted({setting.optimizer for setting in settings}, key=lambda name: name != baseline)
    return [
        Lane(
            optimizer=name,
            settings=[setting for setting in settings if setting.optimizer == name],
            bests=find_bests(settings, name),
            rate_key=find_rate_key(settings, name),
            colour=_COLOURS[index % len(_COLOURS)],
            mark=_MARKS[index % len(_MARKS)],
        )
        for index, name in enumerate(names)
    ]


def _draw_rates(axes: Axes, lanes: Sequence[Lane]) -> None:
    common = set.intersection(*(set(lane.bests) for lane in lanes))
    drawn: list[Setting] = []
    for lane in lanes:
        drawn += _draw_rate_line(axes, lane, steps=max(common or lane.bests))
    axes.set_xscale("log")
    axes.set_xlabel("peak learning rate", color=_MUTED)
    axes.set_ylabel("held-out loss (nats per token)", color=_MUTED)
    place = f"after {max(common):,} steps" if common else "after the longest runs"
    _style(axes, title=f"Loss by learning rate, {place}")
    axes.margins(x=0.07)
    _tick_rates(axes)
    losses = [loss for setting in drawn for loss in setting.losses]
    if losses:
        room = max(losses) - min(losses) or 0.1
        # Above the points, so that the legend never hides one.
        height = 1.08 * room / (1 - _LEGEND_LINE * len(lanes))
        axes.set_ylim(min(losses) - 0.06 * room, min(losses) - 0.06 * room + 1.06 * height)
        axes.legend(frameon=False, fontsize=9, labelcolor=_INK, loc="upper right")


def _draw_rate_line(axes: Axes, lane: Lane, *, steps: int) -> list[Setting]:
    """Draw one optimizer; where more than the rate is swept, each rate shows its best setting."""
    bests: dict[float, Setting] = {}
    for setting in lane.settings:
        rate = setting.runs[0].config.get(lane.rate_key or "")
        if setting.steps != steps or not isinstance(rate, int | float) or rate <= 0:
            continue
        if rate not in bests or setting.mean < bests[rate].mean:
            bests[rate] = setting
    if not bests:
        return []
    rates = sorted(bests)
    label = f"{lane.optimizer}: {write_key(lane.rate_key or '')}"
    means = [bests[rate].mean for rate in rates]
    axes.plot(rates, means, color=lane.colour, linewidth=1.8, zorder=2)
    points = [(rate, loss) for rate in rates for loss in bests[rate].losses]
    axes.plot(*zip(*points, strict=True), linestyle="", color=lane.colour, marker=lane.mark,
              markersize=5.5, markeredgecolor="white", markeredgewidth=0.8, zorder=3)  # fmt: skip
    axes.plot([], [], color=lane.colour, linewidth=1.8, marker=lane.mark, markersize=5.5,
              markeredgecolor="white", markeredgewidth=0.8, label=label)  # fmt: skip
    return list(bests.values())


def _draw_steps(axes: Axes, lanes: Sequence[Lane], answers: Sequence[Answer]) -> None:
    for lane in lanes:
        _draw_curve(axes, lane)
    _draw_shorter(axes, lanes)
    reached = [answer for answer in answers if answer.reached is not None]
    _limit_steps(axes, lanes, num_lines=len(reached))
    for answer in answers[:1]:
        _draw_target(axes, answer.baseline)
    for line, answer in enumerate(reached):
        colour = next(lane.colour for lane in lanes if lane.optimizer == answer.optimizer)
        _draw_goal(axes, answer, colour=colour, line=line)
    axes.set_xlabel("steps (optimizer updates)", color=_MUTED)
    _style(axes, title="Loss over steps, best setting of each")
    axes.legend(frameon=False, fontsize=9, labelcolor=_INK, loc="upper right")


def _draw_curve(axes: Axes, lane: Lane) -> None:
    """Draw mean and range over the seeds of the best setting of the longest horizon."""
    best = lane.bests[max(lane.bests)]
    curves = [run.curve for run in best.runs]
    steps = sorted(set.intersection(*(set(curve) for curve in curves)))
    rows = [[curve[step] for curve in curves] for step in steps]
    values = write_values(best.values)
    label = f"{lane.optimizer}{f', {values}' if values else ''}"
    axes.fill_between(steps, [min(row) for row in rows], [max(row) for row in rows],
                      color=lane.colour, alpha=0.18, linewidth=0)  # fmt: skip
    axes.plot(steps, [sum(row) / len(row) for row in rows], color=lane.colour, linewidth=1.8,
              label=label)  # fmt: skip
    axes.plot([best.steps], [best.mean], color=lane.colour, marker=lane.mark, markersize=7.5,
              markeredgecolor="white", markeredgewidth=1.0, zorder=4)  # fmt: skip


def _draw_shorter(axes: Axes, lanes: Sequence[Lane]) -> None:
    for lane in lanes:
        shorter = [lane.bests[steps] for steps in sorted(lane.bests)[:-1]]
        if not shorter:
            continue
        axes.plot([setting.steps for setting in shorter], [setting.mean for setting in shorter],
                  linestyle="", marker=lane.mark, markersize=6.5, markerfacecolor="white",
                  markeredgecolor=lane.colour, markeredgewidth=1.7, zorder=4,
                  label=f"{lane.optimizer}, end of a shorter run")  # fmt: skip


def _draw_target(axes: Axes, target: Setting) -> None:
    axes.axhline(target.mean, color=_MUTED, linewidth=1.0, linestyle=(0, (4, 3)), zorder=1)
    axes.annotate(f"{target.optimizer}'s best {target.mean:.3f}", color=_MUTED, fontsize=9,
                  xy=(0, target.mean), xycoords=("axes fraction", "data"), xytext=(5, 3),
                  textcoords="offset points", va="bottom")  # fmt: skip


def _draw_goal(axes: Axes, answer: Answer, *, colour: str, line: int) -> None:
    """Draw in how many steps an optimizer reaches the baseline's best loss."""
    if answer.reached is None:
        return
    steps = answer.reached.steps
    bottom, right = axes.get_ylim()[0], axes.get_xlim()[1]
    axes.plot([steps, steps], [bottom, answer.reached.mean], color=colour, linewidth=1.2,
              linestyle=(0, (2, 2)), zorder=1)  # fmt: skip
    is_left = steps > right / 2
    axes.annotate(f"{steps} steps, {answer.steps_ratio:.2f} times", color=colour, fontsize=9,
                  xy=(steps, _GOAL_LINE * line + 0.015), xycoords=("data", "axes fraction"),
                  xytext=(-5 if is_left else 5, 0), textcoords="offset points",
                  ha="right" if is_left else "left", va="bottom")  # fmt: skip


def _limit_steps(axes: Axes, lanes: Sequence[Lane], *, num_lines: int) -> None:
    """Set the limits: room for lines of text below the losses, and for the legend above them."""
    from matplotlib.ticker import MaxNLocator

    bests = [best for lane in lanes for best in lane.bests.values()]
    longest = max(best.steps for best in bests)
    points = [(best.steps, loss) for best in bests for loss in best.losses]
    points += [point for best in bests for run in best.runs for point in run.curve.items()]
    shown = [loss for step, loss in points if step >= _FIRST_PART * longest]
    beside_legend = [loss for step, loss in points if step >= _LEGEND_FROM * longest]
    room = (max(shown) - min(shown)) or 0.1
    low = min(shown) - (0.08 + 1.2 * _GOAL_LINE * num_lines) * room
    num_labels = len(axes.get_legend_handles_labels()[1])
    free = max(0.3, 1 - _LEGEND_LINE * num_labels)
    axes.set_ylim(low, max(low + (max(beside_legend) - low) / free, *shown))
    axes.set_xlim(0, 1.03 * longest)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 5, 10], integer=True))


def _write_head(figure: Figure, lanes: Sequence[Lane], answers: Sequence[Answer]) -> float:
    """Write title and answers; return their height in inches."""
    *names, last = [lane.optimizer for lane in lanes]
    title = f"{', '.join(names)} and {last}" if names else last
    lines = [write_short_answer(answer).replace("$", r"\$") for answer in answers]
    height = figure.get_figheight()
    figure.text(0.012, 1 - 0.12 / height, f"Optimizer race: {title}", va="top", color=_INK,
                fontsize=13, fontweight="bold")  # fmt: skip
    figure.text(0.012, 1 - 0.42 / height, "\n".join(lines), va="top", color=_MUTED, fontsize=9.5,
                linespacing=1.35)  # fmt: skip
    return 0.42 + 0.19 * len(lines)


def _tick_rates(axes: Axes) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    low, high = axes.get_xlim()
    decades = math.log10(high / low)
    parts = next((subs for limit, subs in _RATE_TICKS if decades <= limit), (1.0,))
    axes.xaxis.set_major_locator(LogLocator(subs=parts))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: write_value(float(value))))
    axes.xaxis.set_minor_formatter(NullFormatter())


def _style(axes: Axes, *, title: str) -> None:
    axes.set_title(title, loc="left", color=_INK, fontsize=10.5, pad=8)
    axes.grid(visible=True, color=_GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    for name, spine in axes.spines.items():
        spine.set_visible(name in {"left", "bottom"})
        spine.set_color(_GRID)
    axes.tick_params(which="both", colors=_MUTED, length=0, labelsize=9)
