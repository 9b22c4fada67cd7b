"""The autouse fixture of conftest.py fails tests that leak: each kind is leaked once, for real."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).parents[1] / "conftest.py"

LEAKS = {
    "the thread 'forgotten'": """
import threading
stop = threading.Event()
def test_leaks():
    threading.Thread(target=stop.wait, args=(20,), name="forgotten", daemon=True).start()
""",
    "the environment variable LEAKED": """
import os
def test_leaks():
    os.environ["LEAKED"] = "1"
""",
    "left-open.txt": """
files = []
def test_leaks(tmp_path):
    files.append((tmp_path / "left-open.txt").open("w"))
""",
    "the handler of SIGUSR1": """
import signal
def test_leaks():
    signal.signal(signal.SIGUSR1, lambda *_: None)
""",
    "torch's default dtype: torch.float32 became torch.float64": """
def test_leaks():
    import torch
    torch.set_default_dtype(torch.float64)
""",
    "torch's thread count: 1 became 2": """
def test_leaks():
    import torch
    torch.set_num_threads(2)
""",
    "torch's determinism flag: (False, False) became (True, False)": """
def test_leaks():
    import torch
    torch.use_deterministic_algorithms(True)
""",
}

CLEAN = """
import os
def test_seeding_may_set_the_hash_seed():
    os.environ["PYTHONHASHSEED"] = "77"

def test_and_it_is_restored():
    assert os.environ.get("PYTHONHASHSEED") != "77"

def test_one_thread():
    import torch
    assert torch.get_num_threads() == 1
"""


def _run(folder: Path, tests: dict[str, str]) -> subprocess.CompletedProcess[str]:
    (folder / "conftest.py").write_text(CONFTEST.read_text())
    (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n    slow: s\n    gpu: g\n")
    for name, text in tests.items():
        (folder / f"test_{name}.py").write_text(text)
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", str(folder)],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTEST_ADDOPTS": ""},
    )


def test_each_kind_of_leak_fails_its_test(tmp_path: Path) -> None:
    tests = {f"{number}": text for number, text in enumerate(LEAKS.values())}

    result = _run(tmp_path, tests)

    assert result.returncode == 1
    assert f"{len(LEAKS)} passed, {len(LEAKS)} errors" in result.stdout
    for message in LEAKS:
        assert message in result.stdout


def test_clean_tests_pass_and_the_hash_seed_is_restored(tmp_path: Path) -> None:
    result = _run(tmp_path, {"clean": CLEAN})

    assert result.returncode == 0, result.stdout
    assert "3 passed" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "closing"), [([], "1 skipped"), (["-m", "slow"], "1 passed")]
)
def test_slow_tests_run_when_asked_for(tmp_path: Path, arguments: list[str], closing: str) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST.read_text())
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    slow: s\n    gpu: g\n")
    (tmp_path / "test_slow.py").write_text(
        "import pytest\n@pytest.mark.slow\ndef test_slow():\n    pass\n"
    )

    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *arguments, str(tmp_path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    assert closing in result.stdout
