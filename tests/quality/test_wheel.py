"""The wheel holds everything that a run from an installed package needs."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel_names(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Build the wheel from a copy, so that no build folder appears in the repository."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    ignore = shutil.ignore_patterns("__pycache__", "*.egg-info", "local")
    for name in ("speedtronic", "conf"):
        shutil.copytree(ROOT / name, source / name, ignore=ignore)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"),
            *("--no-build-isolation", "--no-index", "--wheel-dir", folder, source),
        ],
        check=True,
        capture_output=True,
        text=True,
    )
    (wheel,) = folder.glob("speedtronic-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_every_configuration_file_ships_as_speedtronic_conf(wheel_names: set[str]) -> None:
    files = sorted((ROOT / "conf").rglob("*.yaml"))
    files = [path for path in files if "local" not in path.relative_to(ROOT / "conf").parts]
    assert ROOT / "conf" / "config.yaml" in files

    expected = {f"speedtronic/conf/{path.relative_to(ROOT / 'conf')}" for path in files}

    assert expected - wheel_names == set()


def test_every_module_ships(wheel_names: set[str]) -> None:
    expected = {str(path.relative_to(ROOT)) for path in (ROOT / "speedtronic").rglob("*.py")}

    assert len(expected) > 20
    assert expected - wheel_names == set()


def test_types_and_licence_ship(wheel_names: set[str]) -> None:
    assert "speedtronic/py.typed" in wheel_names
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in wheel_names)


def test_nothing_else_ships(wheel_names: set[str]) -> None:
    assert {name.split("/")[0].split("-")[0] for name in wheel_names} == {"speedtronic"}
