"""Who may write a run folder: one process, named, and nobody blocked by the dead."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from speedtronic.core.errors import RunFolderError
from speedtronic.run_folder.claim import claim_folder

RACE = """
    import sys, time
    from speedtronic.core.errors import RunFolderError
    from speedtronic.run_folder.claim import claim_folder
    folder, start = sys.argv[1], float(sys.argv[2])
    time.sleep(max(0.0, start - time.time()))
    try:
        claim = claim_folder(folder)
    except RunFolderError as error:
        print("lost", error)
    else:
        print("won")
        time.sleep(3.0)
        claim.release()
"""
HOLD = """
    import sys, time
    from speedtronic.run_folder.claim import claim_folder
    claim = claim_folder(sys.argv[1])
    print("held", flush=True)
    time.sleep(60)
"""


def start(script: str, *arguments: object) -> subprocess.Popen[str]:
    words = [sys.executable, "-c", textwrap.dedent(script), *map(str, arguments)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True)


def test_one_of_eight_racing_processes_wins(tmp_path: Path) -> None:
    begin = time.time() + 2.0
    racers = [start(RACE, tmp_path / "run", begin) for _ in range(8)]
    answers = [racer.communicate(timeout=60)[0] for racer in racers]
    assert sum(answer.startswith("won") for answer in answers) == 1
    losers = [answer for answer in answers if answer.startswith("lost")]
    assert len(losers) == 7
    winner = racers[next(i for i, answer in enumerate(answers) if answer.startswith("won"))].pid
    assert all(f"is in use by process {winner} on {socket.gethostname()}" in a for a in losers)


def test_the_owner_is_written_with_pid_host_and_start_and_removed_at_the_end(
    tmp_path: Path,
) -> None:
    with claim_folder(tmp_path / "run") as claim:
        owner = json.loads(claim.folder.owner_json.read_text())
        assert owner["pid"] == os.getpid()
        assert owner["host"] == socket.gethostname()
        assert owner["started"].startswith("20")
    assert not claim.folder.owner_json.exists()
    assert claim.folder.lock.exists()


def test_a_killed_owner_does_not_block_and_is_named(tmp_path: Path) -> None:
    holder = start(HOLD, tmp_path)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(RunFolderError, match=rf"in use by process {holder.pid} on .* since 20"):
        claim_folder(tmp_path)
    holder.send_signal(signal.SIGKILL)
    holder.communicate()
    with claim_folder(tmp_path) as claim:
        assert claim.previous_owner is not None
        assert claim.previous_owner.startswith(f"process {holder.pid} on ")


def test_a_clean_end_leaves_no_previous_owner(tmp_path: Path) -> None:
    claim_folder(tmp_path).release()
    with claim_folder(tmp_path) as claim:
        assert claim.previous_owner is None


def test_one_process_may_claim_twice_and_keeps_it_until_the_last_release(tmp_path: Path) -> None:
    outer = claim_folder(tmp_path)
    with claim_folder(f"{tmp_path}/"):
        pass
    assert outer.folder.owner_json.exists()
    assert start(RACE, tmp_path, 0).communicate()[0].startswith("lost")
    outer.release()
    outer.release()
    assert start(RACE, tmp_path, 0).communicate()[0] == "won\n"


def test_a_link_and_its_target_are_one_folder(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "link").symlink_to("run")
    with claim_folder(tmp_path / "link"):
        answer = start(RACE, tmp_path / "run", 0).communicate()[0]
    assert answer.startswith("lost")


def test_a_folder_that_cannot_be_made_is_named_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(RunFolderError, match=r"file/run cannot be written: .*; choose another"):
        claim_folder(tmp_path / "file" / "run")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder_is_named_with_the_reason(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(RunFolderError, match="cannot be written: Permission denied"):
            claim_folder(tmp_path)
    finally:
        tmp_path.chmod(0o700)


def test_moving_aside_takes_the_first_free_number_and_frees_the_name(tmp_path: Path) -> None:
    run = tmp_path / "run"
    (tmp_path / "run.bak-1").mkdir()
    claim = claim_folder(run)
    (run / "result.json").write_text("{}")
    assert claim.move_aside() == tmp_path / "run.bak-2"
    assert (tmp_path / "run.bak-2" / "result.json").read_text() == "{}"
    assert not (tmp_path / "run.bak-2" / ".lock.json").exists()
    assert not run.exists()
    with claim_folder(run) as fresh:
        assert [path.name for path in sorted(run.iterdir())] == [".lock", ".lock.json"]
        assert fresh.previous_owner is None


def test_a_lock_file_that_moves_away_while_waiting_is_not_mistaken_for_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """overwrite=true in another process renames the folder between opening and locking."""
    from speedtronic.run_folder import claim as module

    run, moved = tmp_path / "run", tmp_path / "run.bak-1"
    real = module.FileLock
    renamed: list[Path] = []

    class RenamedWhileLocking(real):  # type: ignore[misc, valid-type]
        def _acquire(self) -> None:
            super()._acquire()
            if not renamed:
                renamed.append(run.rename(moved))

    monkeypatch.setattr(module, "FileLock", RenamedWhileLocking)
    with claim_folder(run):
        assert start(RACE, run, 0).communicate()[0].startswith("lost")
        assert start(RACE, moved, 0).communicate()[0] == "won\n"


def test_a_folder_of_something_else_is_never_claimed(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")

    with pytest.raises(RunFolderError, match="holds files that are no run's"):
        claim_folder(tmp_path)

    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
    (tmp_path / "run.json").write_text("{}")
    claim_folder(tmp_path).release()


def test_a_model_folder_of_another_program_is_no_run(tmp_path: Path) -> None:
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        (tmp_path / name).write_text("{}")
    with pytest.raises(RunFolderError, match="holds files that are no run's"):
        claim_folder(tmp_path)
