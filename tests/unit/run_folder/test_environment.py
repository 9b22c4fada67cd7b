"""What a run ran on, without importing torch and without secrets."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from speedtronic.run_folder.environment import (
    describe_environment,
    git_state,
    redact_argv,
)


@pytest.mark.parametrize(
    "override",
    [
        "distributed.token=SECRET",
        "+distributed.hub_token=SECRET",
        "++a.api_key=SECRET",
        "a.password='SECRET SECRET'",
        "TOKEN=SECRET",
        "distributed={repo: x, token: SECRET}",
        "logging.hooks=[{name: wandb, api_key: 'SECRET'}]",
        "store=s3://me:SECRET@host/bucket",
        "a.client_secret=SECRET",
    ],
)
def test_what_looks_like_a_secret_is_redacted(override: str) -> None:
    redacted = redact_argv([override])[0]
    assert "SECRET" not in redacted
    assert "***" in redacted


@pytest.mark.parametrize(
    "override",
    [
        "data.tokenizer=byte",
        "data.num_tokens=1000",
        "trainer.loss_normalization=tokens",
        "tokens=200",
        "distributed.token=null",
        "data={tokenizer: byte, num_tokens: 5}",
        "run_dir=outputs/a b",
    ],
)
def test_ordinary_overrides_are_left_alone(override: str) -> None:
    assert redact_argv([override]) == [override]


def test_the_description_names_machine_versions_and_command(tmp_path: Path) -> None:
    facts = describe_environment(["train.py", "seed=1"], cwd=tmp_path)
    assert facts["argv"] == ["train.py", "seed=1"]
    assert facts["cwd"] == str(tmp_path)
    assert facts["pid"] == os.getpid()
    assert facts["python"] == platform.python_version()
    assert facts["versions"]["hydra-core"].startswith("1.")
    assert facts["cpu"]["count"] == os.cpu_count()
    assert facts["cpu"]["model"]


def git(folder: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=n", "-c", "user.email=e@x"]
    subprocess.run(["git", "-C", str(folder), *identity, *arguments], check=True)


def test_git_state_knows_the_commit_and_changes_of_tracked_files_only(tmp_path: Path) -> None:
    assert git_state(tmp_path) is None
    git(tmp_path, "init", "-q")
    assert git_state(tmp_path) is None
    (tmp_path / "a").write_text("1")
    git(tmp_path, "add", "a")
    git(tmp_path, "commit", "-q", "-m", "first")
    (tmp_path / "untracked").write_text("1")
    state = git_state(tmp_path)
    assert state is not None
    assert len(state["sha"]) == 40
    assert state["dirty"] is False
    (tmp_path / "a").write_text("2")
    assert git_state(tmp_path) == {"sha": state["sha"], "dirty": True}


def test_describing_does_not_import_torch() -> None:
    script = (
        "import sys; from speedtronic.run_folder.environment import describe_environment as d;"
        "print(d([])['threads'], 'torch' in sys.modules)"
    )
    assert subprocess.check_output([sys.executable, "-c", script]) == b"None False\n"
