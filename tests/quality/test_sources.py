"""Rules about the text of the repository that no linter checks."""

from __future__ import annotations

import ast
import doctest
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT_SUFFIXES = {"", ".cfg", ".md", ".py", ".sh", ".toml", ".txt", ".yaml", ".yml"}
# Written apart, so that this file does not name them.
REGISTRY_HOSTS = [
    "pypi" + ".org",
    "python" + "hosted.org",
    "download.pytorch" + ".org",
    "conda" + ".anaconda.org",
    "registry.npmjs" + ".org",
    "proxy.golang" + ".org",
]
VAGUE_NAMES = {"common", "helpers", "misc", "util", "utils"}


def repository_files() -> list[Path]:
    """Return what git tracks or would track; in an unpacked archive, everything outside .venv."""
    try:
        listing = subprocess.run(
            ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split("\0")
        paths = [ROOT / name for name in listing if name]
    except (OSError, subprocess.CalledProcessError):
        paths = [path for path in ROOT.rglob("*") if ".venv" not in path.parts]
    return [path for path in paths if path.is_file() and path.suffix in TEXT_SUFFIXES]


def python_files(*folders: str) -> list[Path]:
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


def shown(paths: list[Path]) -> list[str]:
    return [str(path.relative_to(ROOT)) for path in paths]


def test_no_file_names_the_host_of_a_package_registry() -> None:
    files = repository_files()
    assert ROOT / "pyproject.toml" in files

    offenders = [
        path
        for path in files
        if any(host in path.read_text(errors="replace") for host in REGISTRY_HOSTS)
    ]

    assert shown(offenders) == []


def test_every_source_file_opens_with_what_it_is_for() -> None:
    files = python_files("speedtronic", "scripts", "tests", "conf")
    assert len(files) > 20

    silent = [path for path in files if not ast.get_docstring(ast.parse(path.read_text()))]

    assert shown(silent) == []


def test_no_module_has_a_name_that_says_nothing() -> None:
    files = python_files("speedtronic", "scripts")

    assert shown([path for path in files if path.stem in VAGUE_NAMES]) == []


def test_every_noqa_names_its_rule_and_a_reason() -> None:
    bare = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in python_files("speedtronic", "scripts", "tests")
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if re.search(r"#\s*noqa(?!: [A-Z]+\d+(, [A-Z]+\d+)* - \S)", line) and path != Path(__file__)
    ]

    assert bare == []


def modules_with_examples() -> list[str]:
    return [
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in python_files("speedtronic")
        if ">>> " in path.read_text()
    ]


@pytest.mark.parametrize("name", modules_with_examples())
def test_examples_in_docstrings_run_as_written(name: str) -> None:
    result = doctest.testmod(importlib.import_module(name))

    assert result.attempted > 0
    assert result.failed == 0


def test_imports_go_down_the_table_of_layers() -> None:
    result = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )

    assert result.returncode == 0, result.stdout
    assert "Contracts: 2 kept, 0 broken." in result.stdout
