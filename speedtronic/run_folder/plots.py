"""Curves of a run as one picture: training and held-out loss above, learning rate below."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.axes import Axes
    from numpy.typing import NDArray

_MAX_POINTS = 2000
"""Points a drawn line has at most: about one a pixel."""
_SMOOTHING_SHARE = 0.02
"""Half width of the smoothing window, as a share of the recorded steps."""
_GROWTH = 5
"""Points from the start for each point of half width: the steep beginning is smoothed less."""
_MIN_SMOOTHED = 12
"""Below this many points the raw curve is drawn strong and nothing is smoothed."""
_MAX_MARKS = 60
"""Evaluations up to which each gets its own mark."""
_MAX_TITLE = 80
_INK, _MUTED, _GRID = "#1f2933", "#66727f", "#e4e8ec"
_TRAIN, _HELD_OUT, _RATE = "#2563a8", "#d9480f", "#5f3dc4"


@dataclass
class Curves:
    """The numbers of a picture; NaN where a record had none."""

    steps: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    eval_steps: list[float] = field(default_factory=list)
    eval_losses: list[float] = field(default_factory=list)

    @property
    def empty(self) -> bool:
        """Whether there is nothing to draw."""
        return not self.steps and not self.eval_steps


def read_curves(metrics_path: Path) -> Curves:
    """Read the train_step and eval records of a metrics file; unreadable lines are passed over."""
    curves = Curves()
    for record in _records(metrics_path):
        step = record.get("step")
        if not isinstance(step, int):
            continue
        if record.get("event") == "train_step":
            curves.steps.append(step)
            curves.losses.append(_number(record.get("loss")))
            curves.rates.append(_number(record.get("lr")))
        elif record.get("event") == "eval":
            curves.eval_steps.append(step)
            curves.eval_losses.append(_number(record.get("loss")))
    return curves


def draw_curves(
    metrics_path: Path, out_path: Path, *, title: str = "", loss_unit: str = "nats per token"
) -> Path | None:
    """Draw curves.png from a metrics file.

    Gaps (records without a number) stay gaps. A long run is drawn with a few thousand points; the
    faint band then shows the range of the raw loss.

    Args:
        metrics_path: The metrics.jsonl of a run.
        out_path: The PNG to write or replace.
        title: The run's name.
        loss_unit: What the loss is measured in; empty when unknown.

    Returns:
        ``out_path``, or None when there is nothing to draw yet.
    """
    curves = read_curves(metrics_path) if metrics_path.exists() else Curves()
    if curves.empty:
        return None
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.0, 6.0), dpi=150, facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.add_gridspec(2, 1, height_ratios=[3.2, 1.0])
    loss_axes = figure.add_subplot(grid[0])
    rate_axes = figure.add_subplot(grid[1], sharex=loss_axes)
    _draw_loss(loss_axes, curves)
    loss_axes.set_ylabel(f"loss ({loss_unit})" if loss_unit else "loss", color=_MUTED)
    _draw_rate(rate_axes, curves)
    loss_axes.set_title(
        _shorten(title) or "Training",
        loc="left",
        color=_INK,
        fontsize=13,
        fontweight="bold",
        pad=12,
    )
    loss_axes.tick_params(labelbottom=False)
    rate_axes.set_xlabel("step (optimizer updates)", color=_MUTED)
    _limit_steps(rate_axes, curves)
    temporary = out_path.with_name(f".{out_path.name}.tmp.png")
    try:
        figure.savefig(temporary, format="png")
        temporary.replace(out_path)
    finally:
        temporary.unlink(missing_ok=True)
    return out_path


def smooth(values: NDArray[np.float64], *, half_width: int) -> NDArray[np.float64]:
    """Average over a centred window, so that the curve does not lag; gaps stay gaps.

    The window grows from nothing at the start, where a loss falls steeply.

    Args:
        values: (N,) numbers, NaN for a gap.
        half_width: Points on each side, once a run is five times as long.

    Example:
        >>> import numpy as np
        >>> smooth(np.array([9.0, 9.0, 9.0, 9.0, 9.0, 3.0, 6.0, 9.0]), half_width=1).tolist()
        [9.0, 9.0, 9.0, 9.0, 9.0, 6.0, 6.0, 7.5]
    """
    import numpy as np

    positions = np.arange(len(values))
    reach = np.minimum(half_width, positions // _GROWTH)
    left, right = positions - reach, np.minimum(positions + reach, len(values) - 1) + 1
    finite = np.isfinite(values)
    sums = np.concatenate([[0.0], np.cumsum(np.where(finite, values, 0.0))])
    counts = np.concatenate([[0], np.cumsum(finite)])
    means = (sums[right] - sums[left]) / np.maximum(counts[right] - counts[left], 1)
    return np.where(finite, means, np.nan)


def _draw_loss(axes: Axes, curves: Curves) -> None:
    import numpy as np

    steps, losses = np.asarray(curves.steps), np.asarray(curves.losses)
    smoothed = len(losses) >= _MIN_SMOOTHED
    if smoothed:
        middle, low, high = _downsample(losses)
        positions = _downsample(steps)[0]
        axes.plot(positions, middle, color=_TRAIN, alpha=0.38, linewidth=0.9)
        if len(losses) > _MAX_POINTS:
            axes.fill_between(positions, low, high, color=_TRAIN, alpha=0.12, linewidth=0)
        average = smooth(losses, half_width=max(2, round(_SMOOTHING_SHARE * len(losses))))
        axes.plot(
            positions,
            _downsample(average)[0],
            color=_TRAIN,
            linewidth=2.0,
            label="training (smoothed)",
        )
    elif len(losses):
        axes.plot(
            steps, losses, color=_TRAIN, linewidth=2.0, marker="o", markersize=4, label="training"
        )
    _draw_held_out(axes, curves)
    _limit_losses(axes, losses, curves.eval_losses)
    _style(axes)
    axes.legend(frameon=False, loc="upper right", labelcolor=_INK, fontsize=10)


def _draw_held_out(axes: Axes, curves: Curves) -> None:
    known = [
        (step, loss)
        for step, loss in zip(curves.eval_steps, curves.eval_losses, strict=True)
        if math.isfinite(loss)
    ]
    if not known:
        return
    step, best = min(known, key=lambda point: point[1])
    label = f"held-out (best {best:.4g} at step {step:,.0f})"
    axes.plot(*zip(*known, strict=True), color=_HELD_OUT, linewidth=1.4,
              marker="o" if len(known) <= _MAX_MARKS else "", markersize=6,
              markeredgecolor="white", markeredgewidth=1.0, label=label, zorder=3)  # fmt: skip
    axes.plot([step], [best], marker="o", markersize=9, markerfacecolor="white",
              markeredgecolor=_HELD_OUT, markeredgewidth=2.0, zorder=4)  # fmt: skip


def _draw_rate(axes: Axes, curves: Curves) -> None:
    import numpy as np

    rates = np.asarray(curves.rates)
    marker = "o" if len(rates) == 1 else ""
    if len(rates):
        positions = _downsample(np.asarray(curves.steps))[0]
        axes.plot(
            positions,
            _downsample(rates)[0],
            color=_RATE,
            linewidth=1.6,
            marker=marker,
            markersize=4,
        )
    axes.set_ylabel("learning rate", color=_MUTED)
    axes.ticklabel_format(axis="y", style="sci", scilimits=(-2, 3), useMathText=True)
    axes.yaxis.get_offset_text().set(color=_MUTED, fontsize=9)
    finite = rates[np.isfinite(rates)]
    axes.set_ylim(0, 1.12 * float(finite.max()) if len(finite) and finite.max() > 0 else 1)
    axes.yaxis.set_major_locator(_few_ticks())
    _style(axes)


def _style(axes: Axes) -> None:
    axes.grid(visible=True, color=_GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    for name, spine in axes.spines.items():
        spine.set_visible(name in {"left", "bottom"})
        spine.set_color(_GRID)
    axes.tick_params(colors=_MUTED, length=0, labelsize=9)


def _limit_steps(axes: Axes, curves: Curves) -> None:
    from matplotlib.ticker import MaxNLocator, StrMethodFormatter

    first, last = min([*curves.steps, *curves.eval_steps]), max([*curves.steps, *curves.eval_steps])
    margin = max(0.5, 0.015 * (last - first))
    axes.set_xlim(first - margin, last + margin)
    axes.xaxis.set_major_locator(
        MaxNLocator(nbins=8, steps=[1, 2, 5, 10], integer=True, min_n_ticks=1)
    )
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))


def _limit_losses(axes: Axes, losses: NDArray[np.float64], held_out: list[float]) -> None:
    """Keep the bulk of the curve readable: a few early or broken outliers may leave the picture."""
    import numpy as np

    finite = losses[np.isfinite(losses)]
    points = np.asarray([loss for loss in held_out if math.isfinite(loss)])
    if not len(finite) and not len(points):
        axes.set_ylim(0, 1)
        return
    body = np.concatenate([np.quantile(finite, [0.0, 0.995]) if len(finite) else finite, points])
    low, high = float(body.min()), float(body.max())
    if len(finite):
        high = max(high, min(float(finite[0]), 3 * high))
    margin = 0.07 * (high - low) or max(0.05 * abs(high), 1e-3)
    axes.set_ylim(low - 1.6 * margin, high + margin)


def _downsample(
    values: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Reduce to 2,000 buckets at most: means, minima and maxima; a bucket of gaps is a gap."""
    import numpy as np

    if len(values) <= _MAX_POINTS:
        return values, values, values
    edges = np.linspace(0, len(values), _MAX_POINTS + 1).astype(int)[:-1]
    finite = np.isfinite(values)
    counts = np.add.reduceat(finite.astype(float), edges)
    sums = np.add.reduceat(np.where(finite, values, 0.0), edges)
    gaps = counts == 0
    means = np.where(gaps, np.nan, sums / np.maximum(counts, 1.0))
    low = np.where(gaps, np.nan, np.minimum.reduceat(np.where(finite, values, np.inf), edges))
    high = np.where(gaps, np.nan, np.maximum.reduceat(np.where(finite, values, -np.inf), edges))
    return means, low, high


def _few_ticks() -> Any:
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(nbins=4)


def _records(path: Path) -> Iterator[dict[str, Any]]:
    with path.open("rb") as lines:
        for line in lines:
            try:
                record = json.loads(line)
            except ValueError:
                continue
            if isinstance(record, dict):
                yield record


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else math.nan


def _shorten(title: str) -> str:
    plain = title.replace("$", r"\$")
    return plain if len(plain) <= _MAX_TITLE else plain[: _MAX_TITLE - 3] + "..."
