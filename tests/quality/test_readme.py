"""The README runs as written.

A `python` block is a program of its own. A block opened with ```` ```bash run ```` is executed, the
blocks of the file in order, in one temporary copy of the repository. The commands of other `bash`
blocks (minutes long, or needing a network) are checked without running them: their Make targets and
modules exist, and the overrides of a training command compose.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COPIED = ("conf", "speedtronic", "scripts", "pyproject.toml", "Makefile", "README.md")
TIMEOUT_S = 150


@dataclass(frozen=True)
class Block:
    """One fenced block of the README."""

    line: int
    language: str
    mark: str
    text: str


def readme_blocks(text: str) -> list[Block]:
    return [
        Block(
            line=text.count("\n", 0, match.start()) + 1,
            language=match[1],
            mark=match[2].strip(),
            text=match[3],
        )
        for match in FENCE.finditer(text)
    ]


BLOCKS = readme_blocks((ROOT / "README.md").read_text())
EXECUTED = [
    block
    for block in BLOCKS
    if block.language == "python" or (block.language == "bash" and block.mark == "run")
]
COMMANDS = [
    (block.line, shlex.join(shlex.split(line, comments=True)))
    for block in BLOCKS
    if block.language == "bash" and block.mark != "run"
    for line in block.text.replace("\\\n", " ").splitlines()
    if shlex.split(line, comments=True)
]


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("readme")
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, folder / name)
    (folder / "outputs").mkdir()
    # `.venv/bin/python` and `python` are both the interpreter of these tests.
    (folder / ".venv").symlink_to(sys.prefix)
    return folder


def run_in(folder: Path, command: list[str]) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        command,
        cwd=folder,
        env=os.environ | {"PATH": path, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def test_the_readme_has_a_python_example_and_commands() -> None:
    assert [block for block in BLOCKS if block.language == "python"]
    assert [block for block in BLOCKS if block.language == "bash"]


@pytest.mark.parametrize("block", EXECUTED, ids=[f"line-{block.line}" for block in EXECUTED])
def test_the_block_runs_as_written(block: Block, copy: Path) -> None:
    program = copy / f"block_{block.line}"
    program.write_text(block.text)
    interpreter = [sys.executable] if block.language == "python" else ["bash", "-eu"]

    result = run_in(copy, [*interpreter, str(program)])

    assert result.returncode == 0, f"{result.stdout[-2000:]}\n{result.stderr[-4000:]}"


@pytest.mark.parametrize(
    "command", [command for _, command in COMMANDS], ids=[f"line-{line}" for line, _ in COMMANDS]
)
def test_a_command_that_is_not_run_names_what_exists(command: str, copy: Path) -> None:
    words = shlex.split(command)

    if words[0] == "make":
        assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
    if "-m" in words and words[words.index("-m") + 1].startswith("speedtronic"):
        assert find_spec(words[words.index("-m") + 1]) is not None
    if "scripts/train.py" in words and "resume=true" not in words and "-m" not in words:
        overrides = words[words.index("scripts/train.py") + 1 :]
        result = run_in(copy, [sys.executable, "scripts/train.py", *overrides, "--cfg", "job"])
        assert result.returncode == 0, result.stderr


def test_blocks_are_found_with_language_mark_and_line() -> None:
    text = "a\n```bash run\nmake\n```\n\n```python\nx = 1\n```\n```\nplain\n```\n"

    assert readme_blocks(text) == [
        Block(line=2, language="bash", mark="run", text="make\n"),
        Block(line=6, language="python", mark="", text="x = 1\n"),
    ]
