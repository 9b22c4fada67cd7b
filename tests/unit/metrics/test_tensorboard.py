"""The TensorBoard hook, read back with TensorBoard's own reader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import metadata

from speedtronic.metrics.tensorboard import TensorBoardHook


def read(folder: Path) -> EventAccumulator:
    accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0})
    accumulator.Reload()
    return accumulator


def scalars(folder: Path, tag: str) -> list[tuple[int, float]]:
    return [(event.step, event.value) for event in read(folder).Scalars(tag)]


def play(hook: TensorBoardHook, *steps: int, loss: float = 2.0) -> None:
    for step in steps:
        hook.on_event("train_step", {"step": step, "loss": loss, "lr": 0.5, "tokens": step * 10})


def test_scalars_stand_at_their_true_steps(tmp_path: Path) -> None:
    hook = TensorBoardHook(tmp_path)

    play(hook, 10, 20, 25)
    hook.on_event("train_stats", {"step": 20, "grad_norm": 1.5, "lr/decayed": 0.25})
    hook.on_event("eval", {"step": 25, "loss": 1.5, "perplexity": 4.5, "accuracy": 0.5})
    hook.close()

    assert scalars(tmp_path, "train/loss") == [(10, 2.0), (20, 2.0), (25, 2.0)]
    assert scalars(tmp_path, "train/lr") == [(10, 0.5), (20, 0.5), (25, 0.5)]
    assert scalars(tmp_path, "train/tokens") == [(10, 100.0), (20, 200.0), (25, 250.0)]
    assert scalars(tmp_path, "train/grad_norm") == [(20, 1.5)]
    assert scalars(tmp_path, "train/lr/decayed") == [(20, 0.25)]
    assert scalars(tmp_path, "eval/loss") == [(25, 1.5)]
    assert scalars(tmp_path, "eval/perplexity") == [(25, 4.5)]
    assert scalars(tmp_path, "eval/accuracy") == [(25, 0.5)]


def test_what_was_written_is_there_before_the_file_is_closed(tmp_path: Path) -> None:
    hook = TensorBoardHook(tmp_path)

    play(hook, 10)

    assert scalars(tmp_path, "train/loss") == [(10, 2.0)]
    hook.close()


def test_a_text_sample_keeps_its_lines(tmp_path: Path) -> None:
    hook = TensorBoardHook(tmp_path)

    hook.on_event("eval", {"step": 7, "loss": 1.0, "sample": "def f(x):\n    return *x*"})
    hook.close()

    (event,) = read(tmp_path).Tensors("eval/sample")
    assert event.step == 7
    assert event.tensor_proto.string_val == [b"    def f(x):\n        return *x*"]
    assert list(read(tmp_path).PluginTagToContent("text")) == ["eval/sample"]


def test_a_resumed_run_goes_on_in_the_same_folder_and_hides_the_lost_steps(
    tmp_path: Path,
) -> None:
    first = TensorBoardHook(tmp_path)
    play(first, 1, 2, 3, 4, loss=1.0)
    first.close()
    second = TensorBoardHook(tmp_path, purge_step=3)
    play(second, 3, 4, 5, loss=2.0)
    second.close()

    expected = [(1, 1.0), (2, 1.0), (3, 2.0), (4, 2.0), (5, 2.0)]
    assert scalars(tmp_path, "train/loss") == expected


def test_two_files_of_the_same_second_do_not_collide(tmp_path: Path) -> None:
    hooks = [TensorBoardHook(tmp_path), TensorBoardHook(tmp_path)]
    for hook in hooks:
        play(hook, 1)
        hook.close()

    assert len(list(tmp_path.iterdir())) == 2


def test_nothing_is_written_without_an_event(tmp_path: Path) -> None:
    TensorBoardHook(tmp_path / "tensorboard").close()

    assert not (tmp_path / "tensorboard").exists()


def read_hparams(folder: Path) -> dict[str, Any]:
    contents = read(folder).PluginTagToContent(metadata.PLUGIN_NAME)
    start = metadata.parse_session_start_info_plugin_data(contents[metadata.SESSION_START_INFO_TAG])
    return {name: getattr(value, value.WhichOneof("kind")) for name, value in start.hparams.items()}


def test_hparams_are_written_at_the_end_into_the_run_itself(tmp_path: Path) -> None:
    settings = {
        "optimizer": {"lr": 0.003, "betas": [0.9, 0.95], "fused": None},
        "compile": False,
        "precision": {"mode": "bf16"},
    }
    hook = TensorBoardHook(tmp_path, hparams=settings)

    play(hook, 1)
    with pytest.raises(KeyError):
        read_hparams(tmp_path)
    hook.on_event("train_end", {"step": 1})
    hook.close()

    assert read_hparams(tmp_path) == {
        "optimizer.lr": 0.003,
        "optimizer.betas": "[0.9, 0.95]",
        "optimizer.fused": "None",
        "compile": False,
        "precision.mode": "bf16",
    }
    experiment = metadata.parse_experiment_plugin_data(
        read(tmp_path).PluginTagToContent(metadata.PLUGIN_NAME)[metadata.EXPERIMENT_TAG]
    )
    metrics = [(info.name.group, info.name.tag) for info in experiment.metric_infos]
    assert metrics == [("", "train/loss"), ("", "eval/loss")]  # of this run, not of a subfolder
    assert [path for path in tmp_path.iterdir() if path.is_dir()] == []


def test_no_hparams_are_written_when_none_are_given(tmp_path: Path) -> None:
    hook = TensorBoardHook(tmp_path)
    hook.on_event("train_end", {"step": 1})
    hook.close()

    with pytest.raises(KeyError):
        read(tmp_path).PluginTagToContent(metadata.PLUGIN_NAME)
