"""The Makefile: what a bare ``make`` says, and when it installs again; nothing is installed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="needs make")


def make(*arguments: str, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    return subprocess.run(
        ["make", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of what the set-up depends on, older than what a test makes now."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path / name)
        os.utime(tmp_path / name, (1_000_000, 1_000_000))
    return tmp_path


def installs(project: Path, target: str) -> list[str]:
    """Return what ``make`` would install, without doing it."""
    result = make("--dry-run", target, folder=project)
    assert result.returncode == 0, result.stderr
    return re.findall(r"pip install .* -c constraints\.txt (.*)", result.stdout)


def pretend_installed(project: Path, *names: str) -> None:
    (project / ".venv").mkdir(exist_ok=True)
    for name in names:
        (project / ".venv" / f".installed-{name}").touch()


def test_bare_make_lists_every_target() -> None:
    targets = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert targets is not None

    result = make()

    listed = re.findall(r"^  ([a-z-]+) ", result.stdout, re.MULTILINE)
    assert sorted(listed) == sorted(targets[1].split())
    assert {"train", "test", "setup", "setup-dev", "check", "soak", "bench"} <= set(listed)


def test_training_installs_the_core_alone(project: Path) -> None:
    assert installs(project, "train") == ["torch==2.13.0 -e ."]


def test_testing_installs_the_extras_as_well(project: Path) -> None:
    assert installs(project, "test") == ["torch==2.13.0 -e .", "-e '.[dev,sweeps,hub,s3]'"]


@pytest.mark.parametrize("target", ["train", "test", "setup", "setup-dev"])
def test_a_second_call_reuses_the_set_up(project: Path, target: str) -> None:
    pretend_installed(project, "core", "dev")

    assert installs(project, target) == []


@pytest.mark.parametrize("changed", ["pyproject.toml", "constraints.txt"])
def test_a_changed_requirement_installs_again(project: Path, changed: str) -> None:
    pretend_installed(project, "core", "dev")
    os.utime(project / changed, (4_000_000_000, 4_000_000_000))

    assert installs(project, "test") == ["torch==2.13.0 -e .", "-e '.[dev,sweeps,hub,s3]'"]


def test_overrides_reach_the_training_command(project: Path) -> None:
    pretend_installed(project, "core")

    result = make("--dry-run", "train", "ARGS=data.max_steps=50", folder=project)

    assert result.stdout == (
        ".venv/bin/python scripts/train.py experiment=first_run data.max_steps=50\n"
    )


def test_a_python_that_is_too_old_is_refused_in_one_line(project: Path) -> None:
    old = project / "old-python"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)

    result = make("setup", f"PYTHON={old}", folder=project)

    assert result.returncode == 2
    assert "PYTHON must be 3.11, 3.12 or 3.13; try make PYTHON=python3.11" in result.stderr
    assert not (project / ".venv").exists()


def test_the_pinned_torch_is_the_one_the_makefile_names() -> None:
    assert "\ntorch==2.13.0\n" in (ROOT / "constraints.txt").read_text()
