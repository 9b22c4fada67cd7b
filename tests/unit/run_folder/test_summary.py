"""What a run says at its end, and the commands it offers."""

from __future__ import annotations

import io
import shlex
from pathlib import Path

import pytest
from rich.console import Console

from speedtronic.run_folder.commands import program_command, resume_command, shown_path
from speedtronic.run_folder.layout import RunFolder
from speedtronic.run_folder.records import ResultRecord
from speedtronic.run_folder.summary import render_summary

RESULT = ResultRecord(
    "completed",
    steps=300,
    tokens=614_400,
    final_loss=1.73314,
    final_eval_loss=1.7702,
    best_eval_loss=1.76018,
    best_eval_step=200,
    elapsed_s=182.3,
    tokens_per_sec=3370.2,
    skipped_steps=2,
    fallbacks=["compile: no compiler, running eagerly"],
)


def printed(folder: Path, *, terminal: bool = False, **given: object) -> str:
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=80, color_system=None)
    render_summary(RESULT, folder=RunFolder(folder), console=console, **given)  # type: ignore[arg-type]
    return out.getvalue()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "outputs" / ("long" * 15) / "run"
    (folder / "tensorboard").mkdir(parents=True)
    (folder / "checkpoints").mkdir()
    (folder / "curves.png").touch()
    return folder


def test_plain_text_has_one_unbroken_line_a_fact(run: Path) -> None:
    command = resume_command(run, program="speedtronic")
    lines = printed(run, resume=command, sample="def f():").splitlines()
    assert lines == [
        "status:        completed at step 300",
        "final loss:    1.7331",
        "held-out loss: 1.7702",
        "best held-out: 1.7602 at step 200",
        "speed:         3,370 tokens/s, 614,400 tokens in 3 min 2 s",
        "skipped:       2 attempts",
        "fallbacks:     compile: no compiler, running eagerly",
        f"folder:        {run}",
        "in it:         checkpoints/, curves.png",
        f"resume:        speedtronic run_dir={run} resume=true",
        f"TensorBoard:   tensorboard --logdir {run}/tensorboard",
        "sample:",
        "def f():",
    ]


def test_a_terminal_gets_a_panel_of_80_columns_and_commands_that_can_be_copied(run: Path) -> None:
    command = resume_command(run, program="speedtronic")
    text = printed(run, terminal=True, resume=command)
    panel = [row for row in text.splitlines() if row[:1] in "╭│╰"]
    assert {len(row) for row in panel} == {80}
    assert "completed" in panel[0]
    assert f"resume:        {command}\n" in text


def test_a_sample_cannot_steer_the_terminal_or_the_markup(run: Path) -> None:
    text = printed(run, terminal=True, sample="[bold]a\x1b[31m\x07b\n")
    assert text.endswith(
        "sample:\n[bold]a\N{REPLACEMENT CHARACTER}[31m\N{REPLACEMENT CHARACTER}b\n\n"
    )


def test_a_failed_run_names_its_error_and_leaves_unknown_numbers_out(tmp_path: Path) -> None:
    out = io.StringIO()
    record = ResultRecord("failed", error="3 bad steps", exact=False)
    console = Console(file=out, width=80)
    render_summary(record, folder=RunFolder(tmp_path), console=console)
    assert out.getvalue().splitlines() == [
        "status:        failed at step 0",
        "error:         3 bad steps",
        "speed:         0 tokens in 0.0 s",
        "exact:         no: this run may differ in its last bits when repeated",
        f"folder:        {tmp_path}",
    ]


@pytest.mark.parametrize("name", ["run", "a b", "a=b", "it's", "$x", "ünï"])
def test_the_resume_command_survives_a_shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    line = resume_command(
        tmp_path / name, program="speedtronic", allow_targets=["nets.A", "nets.B"]
    )
    assert shlex.split(line) == [
        "speedtronic",
        f"run_dir={name}",
        "resume=true",
        "extras.allow_targets=[nets.A,nets.B]",
    ]


def test_the_program_is_shown_as_it_was_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert program_command("scripts/train.py") == "python scripts/train.py"
    assert program_command(str(tmp_path / "my script.py")) == "python 'my script.py'"
    assert program_command("/usr/bin/speedtronic") == "speedtronic"


def test_paths_are_relative_below_the_working_directory_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert shown_path(tmp_path / "a" / "b") == "a/b"
    assert shown_path("/elsewhere") == "/elsewhere"
