"""python -m speedtronic.checkpoint: lists, verifies, exports; what is wrong is one line."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from speedtronic.checkpoint.__main__ import main
from speedtronic.checkpoint.manager import CheckpointManager
from speedtronic.core.errors import ConfigError


@pytest.fixture
def run(tmp_path: Path) -> Path:
    manager = CheckpointManager(tmp_path / "run" / "checkpoints", keep_last=None)
    for step, metric in {10: 0.5, 20: 0.25, 30: None}.items():
        state = {"model": {"w": torch.full((500,), float(step))}, "config": {"seed": 1}}
        manager.save(step, state, metric=metric)
    manager.close()
    return tmp_path / "run"


def damage(run: Path, step: int) -> None:
    (run / "checkpoints" / f"step_{step:012d}" / "state.safetensors").write_bytes(b"x")


def table(text: str) -> list[list[str]]:
    return [re.split(r"\s{2,}", line.strip()) for line in text.splitlines()]


def test_whole_checkpoints_are_listed_with_status_zero(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(run)]) == 0
    header, *rows = table(capsys.readouterr().out)
    assert header == ["step", "size", "metric", "age", "state"]
    assert [row[0] for row in rows] == ["10", "20", "30"]
    assert all(re.fullmatch(r"2\.\d kB", row[1]) for row in rows)
    assert [row[2] for row in rows] == ["0.5000", "0.2500", "-"]
    assert all(re.fullmatch(r"\d+ s", row[3]) for row in rows)
    assert [row[4:] for row in rows] == [["ok"], ["ok", "best"], ["ok", "latest"]]


def test_damage_is_named_with_status_one(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damage(run, 20)
    (run / "checkpoints" / "step_000000000030" / "meta.json").unlink()
    assert main([str(run)]) == 1
    rows = table(capsys.readouterr().out)[1:]
    assert rows[0][4:] == ["ok", "best, latest"]
    assert rows[1][4].startswith("damaged: state.safetensors has 1 bytes, meta.json says ")
    assert rows[2] == [
        *("30", "?", "-", "?"),
        "damaged: meta.json cannot be read: No such file or directory",
    ]


def test_one_checkpoint_can_be_asked_for(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damage(run, 30)
    assert main([str(run), "checkpoint=best"]) == 0
    assert [row[0] for row in table(capsys.readouterr().out)] == ["step", "20"]
    assert main([str(run), "checkpoint=30"]) == 1
    capsys.readouterr()
    assert main([str(run), "checkpoint=latest"]) == 0
    assert re.fullmatch(
        r"warning: skipped a damaged checkpoint: .*30: state\.safetensors has 1 bytes, .*\n",
        capsys.readouterr().err,
    )
    assert main([str(run / "checkpoints" / "step_000000000010")]) == 0


def test_what_was_set_aside_is_mentioned_and_no_damage(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (run / "checkpoints" / "step_000000000020.damaged-1").mkdir()
    assert main([str(run)]) == 0
    assert capsys.readouterr().out.endswith(
        "step_000000000020.damaged-1 was damaged and is set aside; delete it when you like\n"
    )


@pytest.mark.parametrize(
    ("age_s", "text"), [(0, "0 s"), (90, "2 min"), (7300, "2 h"), (200_000, "2 d")]
)
def test_ages_are_rounded_to_one_unit(
    run: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    age_s: int,
    text: str,
) -> None:
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + age_s)
    main([str(run), "checkpoint=30"])
    assert table(capsys.readouterr().out)[1][3] == text


def test_a_terminal_gets_a_drawn_table(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    damage(run, 20)
    assert main([str(run)]) == 1
    text = capsys.readouterr().out
    assert "┏" in text
    assert "0.2500" in text
    assert "damaged" in text


def test_the_best_weights_are_exported(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "w.safetensors"
    assert main([str(run), f"export={out}"]) == 0
    assert load_file(out)["w"].unique().tolist() == [20.0]
    assert (tmp_path / "w.json").read_text() == '{\n  "seed": 1\n}\n'
    source = run / "checkpoints" / "step_000000000020"
    assert capsys.readouterr().out == f"wrote {out} and {tmp_path / 'w.json'} from {source}\n"
    assert main([str(run), f"export={tmp_path / 'v.safetensors'}", "checkpoint=latest"]) == 0
    assert load_file(tmp_path / "v.safetensors")["w"].unique().tolist() == [30.0]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["RUN", "export=TMP/w.safetensors"], "error: export never overwrites a file, "),
        (["RUN", "export=TMP/w.pt"], "error: export must end in .safetensors, got "),
        (
            ["RUN", "checkpoint=7"],
            "error: checkpoint must be best, latest or one of the steps 10, ",
        ),
        (["RUN", "exprt=x"], "error: exprt: unknown key, got 'x'; did you mean 'export'?"),
        (["RUN", "other"], "error: run must be given once, got "),
        (
            ["RUN", "export="],
            "error: export: must be text of at least 1 character or null, got ''; ",
        ),
        (
            ["export=x.safetensors"],
            "error: run must be given; usage: python -m speedtronic.checkpoint RUN",
        ),
        (["TMP"], "error: TMP holds no checkpoints; give a run folder that has saved one"),
        (
            ["TMP/gone"],
            "error: TMP/gone is no folder; give a run folder or a folder of checkpoints",
        ),
        ([], "error: run must be given; usage: python -m speedtronic.checkpoint RUN"),
    ],
)
def test_what_the_user_got_wrong_is_one_line_and_status_two(
    run: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    message: str,
) -> None:
    (tmp_path / "w.safetensors").write_text("mine")

    def fill(text: str) -> str:
        return text.replace("RUN", str(run)).replace("TMP", str(tmp_path))

    arguments = [fill(word) for word in words]
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    wanted = message if "RUN" in message else fill(message)
    assert captured.err.startswith(wanted)
    assert captured.err.count("\n") == 1


def test_the_full_error_is_shown_on_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    with pytest.raises(ConfigError):
        main([str(tmp_path)])


def test_a_folder_with_an_equals_sign_is_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "lr=1"
    CheckpointManager(run / "checkpoints", async_save=False).save(1, {"step": 1})
    assert main([str(run)]) == 0
    assert table(capsys.readouterr().out)[1][0] == "1"


def test_the_module_runs_from_the_shell_without_torch(run: Path) -> None:
    command = [sys.executable, "-X", "importtime", "-m", "speedtronic.checkpoint", str(run)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "speedtronic.core.arguments" in imported
    assert "torch" not in imported


def test_help_says_how_to_use_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    assert capsys.readouterr().out.startswith("usage: python -m speedtronic.checkpoint RUN")
