"""The picture of a run: from one point to hundreds of thousands, with gaps."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from speedtronic.run_folder.plots import draw_curves, read_curves, smooth

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(scope="module", autouse=True)
def _fonts(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Let matplotlib open its font files, which it keeps open, before leaks are counted."""
    folder = tmp_path_factory.mktemp("fonts")
    draw_curves(
        write(folder / "m.jsonl", [step(1, 1.0), step(1000, 1.0)]), folder / "c.png", title="a"
    )


def write(path: Path, records: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def step(number: int, loss: float | None) -> dict[str, Any]:
    return {"event": "train_step", "step": number, "loss": loss, "lr": 1e-3 / number}


def test_curves_hold_training_and_held_out_records_with_gaps(tmp_path: Path) -> None:
    records = [
        {"event": "train_start", "step": 0},
        step(1, 2.0),
        step(2, None),
        {"event": "eval", "step": 2, "loss": 1.5},
    ]
    path = write(tmp_path / "m.jsonl", records)
    path.write_text(path.read_text() + '{"event": "train_st')
    curves = read_curves(path)
    assert curves.steps == [1, 2]
    assert curves.losses[0] == 2.0
    assert math.isnan(curves.losses[1])
    assert curves.rates == [1e-3, 5e-4]
    assert (curves.eval_steps, curves.eval_losses) == ([2], [1.5])


@pytest.mark.parametrize(
    "records",
    [
        [step(1, 2.5)],
        [step(1, None)],
        [step(number, 0.0) for number in range(1, 50)],
        [step(number, None if 10 < number < 20 else 3 / number) for number in range(1, 40)],
        [{"event": "eval", "step": 100, "loss": 2.0}],
        [step(1, 1e30), *(step(number, 2.0) for number in range(2, 30))],
    ],
    ids=["one point", "only a gap", "flat", "a gap", "only evaluation", "an outlier"],
)
def test_any_run_with_a_record_is_drawn(tmp_path: Path, records: list[dict[str, Any]]) -> None:
    out = tmp_path / "curves.png"
    assert draw_curves(write(tmp_path / "m.jsonl", records), out, title="a $run$") == out
    assert out.read_bytes().startswith(PNG)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["curves.png", "m.jsonl"]


def test_a_long_run_gives_a_small_picture(tmp_path: Path) -> None:
    records = [step(number, 2 + 1 / number) for number in range(1, 30_000)]
    out = tmp_path / "curves.png"
    draw_curves(write(tmp_path / "m.jsonl", records), out, title="long")
    assert out.stat().st_size < 300_000


def test_nothing_to_draw_leaves_no_file(tmp_path: Path) -> None:
    out = tmp_path / "curves.png"
    assert draw_curves(tmp_path / "missing.jsonl", out) is None
    assert draw_curves(write(tmp_path / "m.jsonl", [{"event": "train_start"}]), out) is None
    assert not out.exists()


def test_smoothing_keeps_a_line_and_does_not_lag() -> None:
    line = np.linspace(5.0, 1.0, 200)
    inner = smooth(line, half_width=10)[60:-10]
    np.testing.assert_allclose(inner, line[60:-10], atol=1e-12)


def test_smoothing_passes_over_gaps() -> None:
    values = np.full(100, 2.0)
    values[40:45] = np.nan
    out = smooth(values, half_width=10)
    assert np.isnan(out[40:45]).all()
    np.testing.assert_allclose(np.delete(out, range(40, 45)), 2.0, atol=1e-12)
