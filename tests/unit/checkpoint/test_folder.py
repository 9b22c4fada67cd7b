"""checkpoint/folder: a directory counts only when its manifest matches; leftovers go."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from speedtronic.checkpoint import folder
from speedtronic.checkpoint.folder import (
    DamagedCheckpointError,
    Inspector,
    best_good,
    candidates,
    checkpoint_name,
    clean_leftovers,
    newest_good,
    read_manifest,
    remove_directory,
    replaced_path,
    seal,
    set_damaged_aside,
    step_of,
    temporary_path,
    verify_files,
)


def make(directory: Path, step: int, *, name: str | None = None, **changes: Any) -> Path:
    """Write a checkpoint by hand, with tiny files that need not be safetensors."""
    path = directory / (name or checkpoint_name(step))
    path.mkdir(parents=True)
    files = {"state.safetensors": b"weights", "optim.safetensors": b"moments of %d" % step}
    for file, content in files.items():
        (path / file).write_bytes(content)
    body = {
        "format": 1,
        "step": step,
        "metric": None,
        "saved_at": 1000.0,
        "files": {
            file: {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
            for file, content in files.items()
        },
        "state": {"step": step},
        **changes,
    }
    (path / "meta.json").write_text(seal(body))
    return path


def flip_byte(path: Path, position: int = 3) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


@pytest.fixture
def dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def named_for(path: Path, pid: int) -> Path:
    """Return the path with another owner in its name."""
    head, _, machine = path.name.rsplit("-", 2)
    return path.with_name(f"{head}-{pid}-{machine}")


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("step_000000000123", 123),
        ("step_1000000000000", 10**12),
        ("step_123", None),
        ("step_000000000123.damaged-1", None),
        (".old-step_000000000123-x", None),
        ("best", None),
    ],
)
def test_names_stand_for_steps(name: str, step: int | None) -> None:
    assert step_of(Path(name)) == step


def test_the_name_of_a_step_has_twelve_digits() -> None:
    assert checkpoint_name(123) == "step_000000000123"
    assert checkpoint_name(10**12) == "step_1000000000000"


def test_the_manifest_is_strict_json_that_anyone_can_read(tmp_path: Path) -> None:
    path = make(tmp_path, 7, metric=0.5)
    body = json.loads((path / "meta.json").read_text(), parse_constant=pytest.fail)
    assert body["step"] == 7
    assert body["state"] == {"step": 7}
    assert list(body)[-1] == "sha256"
    with pytest.raises(ValueError, match="not JSON compliant"):
        seal({"metric": float("nan")})


def test_a_whole_checkpoint_is_described(tmp_path: Path) -> None:
    manifest = read_manifest(make(tmp_path, 7, metric=0.5))
    assert (manifest.step, manifest.metric, manifest.saved_at) == (7, 0.5, 1000.0)
    assert manifest.files["state.safetensors"].size_bytes == 7
    meta_bytes = (tmp_path / checkpoint_name(7) / "meta.json").stat().st_size
    assert manifest.size_bytes == 7 + 12 + meta_bytes


def cut_state(path: Path) -> None:
    (path / "state.safetensors").write_bytes(b"weight")


def drop_optim(path: Path) -> None:
    (path / "optim.safetensors").unlink()


def change_meta(path: Path) -> None:
    text = (path / "meta.json").read_text()
    (path / "meta.json").write_text(text.replace('"step": 7}', '"step": 8}'))


def cut_meta(path: Path) -> None:
    text = (path / "meta.json").read_text()
    (path / "meta.json").write_text(text[: len(text) // 2])


def list_meta(path: Path) -> None:
    (path / "meta.json").write_text("[]")


def drop_seal(path: Path) -> None:
    (path / "meta.json").write_text("{}")


def drop_meta(path: Path) -> None:
    (path / "meta.json").unlink()


def bad_utf8(path: Path) -> None:
    (path / "meta.json").write_bytes(b"\xff\xfe\xfd")


def deep_meta(path: Path) -> None:
    deep: Any = []
    text = seal({"deep": deep}).partition(",\n")[0].replace("[]", "[" * 200_000)
    digest = hashlib.sha256(text.encode()).hexdigest()
    (path / "meta.json").write_text(f'{text},\n"sha256": "{digest}"\n}}\n')


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (cut_state, "state.safetensors has 6 bytes, meta.json says 7"),
        (drop_optim, "optim.safetensors cannot be read: No such file or directory"),
        (change_meta, "meta.json does not match its own sha256"),
        (cut_meta, "meta.json does not match its own sha256"),
        (list_meta, "meta.json does not match its own sha256"),
        (drop_seal, "meta.json does not match its own sha256"),
        (bad_utf8, "meta.json does not match its own sha256"),
        (deep_meta, "meta.json is no JSON this Python reads"),
        (drop_meta, "meta.json cannot be read: No such file or directory"),
    ],
)
def test_damage_is_named(tmp_path: Path, damage: Any, reason: str) -> None:
    path = make(tmp_path, 7)
    damage(path)
    with pytest.raises(DamagedCheckpointError) as caught:
        read_manifest(path)
    assert str(caught.value) == reason
    entry = Inspector().glance(path)
    assert (entry.problem, entry.step) == (reason, 7)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"format": 2}, "meta.json has format 2, this version reads 1"),
        ({"files": {}}, "meta.json names other files: []"),
        (
            {"files": {"../../x": {"size": 0, "sha256": ""}}},
            "meta.json names other files: ['../../x']",
        ),
        ({"files": None}, "meta.json lacks a field: "),
        ({"files": {"state.safetensors": {}}}, "meta.json lacks a field: KeyError('size')"),
    ],
)
def test_a_sealed_manifest_of_another_kind_is_refused(
    tmp_path: Path, changes: dict, reason: str
) -> None:
    path = make(tmp_path, 7, **changes)
    with pytest.raises(DamagedCheckpointError) as caught:
        read_manifest(path)
    assert str(caught.value).startswith(reason)


def test_a_manifest_of_another_step_is_refused(tmp_path: Path) -> None:
    path = make(tmp_path, 8, name=checkpoint_name(7))
    with pytest.raises(DamagedCheckpointError, match=r"^meta\.json belongs to step 8$"):
        read_manifest(path)


def test_a_checkpoint_may_be_copied_to_another_name(tmp_path: Path) -> None:
    assert read_manifest(make(tmp_path, 7, name="my_best")).step == 7


@pytest.mark.parametrize("name", ["state.safetensors", "optim.safetensors"])
def test_one_flipped_bit_is_found_by_the_sums_and_not_by_a_glance(
    tmp_path: Path, name: str
) -> None:
    path = make(tmp_path, 7)
    flip_byte(path / name)
    manifest = read_manifest(path)
    with pytest.raises(DamagedCheckpointError, match=f"{name} does not match its sha256"):
        verify_files(path, manifest)
    inspector = Inspector()
    assert inspector.glance(path).problem is None
    assert inspector.verify(path).problem == f"{name} does not match its sha256"
    assert inspector.glance(path).problem == f"{name} does not match its sha256"
    assert [entry.path for entry in inspector.damaged()] == [path]
    inspector.forget(path)
    assert inspector.damaged() == []


def test_sums_are_computed_once_while_the_files_stay_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make(tmp_path, 7)
    computed: list[str] = []
    original = folder.sha256_file
    monkeypatch.setattr(
        folder, "sha256_file", lambda file: computed.append(file.name) or original(file)
    )
    inspector = Inspector()
    assert inspector.verify(path).problem is None
    assert inspector.verify(path).problem is None
    assert computed == ["state.safetensors", "optim.safetensors"]
    flip_byte(path / "optim.safetensors")
    assert inspector.verify(path).problem is not None
    trusting = Inspector()
    trusting.trust(path)
    computed.clear()
    assert trusting.verify(path).problem is None
    assert computed == []


def test_candidates_are_directories_with_a_manifest_newest_first(tmp_path: Path) -> None:
    for step in (5, 10**12, 40):
        make(tmp_path, step)
    (tmp_path / checkpoint_name(99)).mkdir()
    (tmp_path / "step_000000000041.damaged-1").mkdir()
    make(tmp_path, 50, name="best")
    temporary = temporary_path(tmp_path)
    make(tmp_path, 60, name=temporary.name)
    assert [step_of(path) for path in candidates(tmp_path)] == [10**12, 40, 5]
    assert candidates(tmp_path / "missing") == []


def test_a_step_moved_aside_stands_in_only_while_its_place_is_empty(tmp_path: Path) -> None:
    aside = replaced_path(tmp_path / checkpoint_name(40))
    make(tmp_path, 40, name=aside.name)
    make(tmp_path, 30)
    assert [path.name for path in candidates(tmp_path)] == [aside.name, checkpoint_name(30)]
    there = make(tmp_path, 40)
    assert candidates(tmp_path)[0] == there


def test_newest_good_walks_back_over_damaged_ones(tmp_path: Path) -> None:
    good = make(tmp_path, 1)
    flip_byte(make(tmp_path, 2) / "state.safetensors")
    cut_meta(make(tmp_path, 3))
    assert newest_good(Inspector(), tmp_path) == good
    flip_byte(good / "state.safetensors")
    assert newest_good(Inspector(), tmp_path) is None


def test_best_good_ranks_by_metric_then_by_the_newer_step(tmp_path: Path) -> None:
    make(tmp_path, 1, metric=0.3)
    make(tmp_path, 2, metric=0.5)
    make(tmp_path, 3, metric=0.3)
    make(tmp_path, 4)
    flip_byte(make(tmp_path, 5, metric=0.1) / "state.safetensors")
    best = best_good(Inspector(), tmp_path, count=2)
    assert [step_of(path) for path in best] == [3, 1]
    assert best_good(Inspector(), tmp_path, count=0) == []


def test_a_removed_checkpoint_vanishes_at_once_and_a_missing_one_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make(tmp_path, 1)
    seen: list[list[str]] = []
    original = folder.shutil.rmtree

    def look_first(doomed: Path) -> None:
        seen.append(sorted(child.name[:5] for child in tmp_path.iterdir()))
        original(doomed)

    monkeypatch.setattr(folder.shutil, "rmtree", look_first)
    remove_directory(path)
    assert seen == [[".tmp-"]]
    assert list(tmp_path.iterdir()) == []
    remove_directory(path)


def test_damaged_ones_get_the_first_free_number(tmp_path: Path) -> None:
    names = [set_damaged_aside(make(tmp_path, 1)).name for _ in range(2)]
    assert names == ["step_000000000001.damaged-1", "step_000000000001.damaged-2"]


def test_leftovers_of_dead_writers_go_and_those_of_the_living_stay(
    tmp_path: Path, dead_pid: int
) -> None:
    mine = temporary_path(tmp_path)
    dead = named_for(temporary_path(tmp_path), dead_pid)
    init = named_for(temporary_path(tmp_path), 1)
    for path in (mine, dead, init):
        path.mkdir()
        (path / "state.safetensors").write_bytes(b"half")
    clean_leftovers(tmp_path, Inspector())
    assert set(tmp_path.iterdir()) == {mine, init}


@pytest.mark.parametrize("name", [".tmp-0123", ".tmp-0123-1-ffffffffffff"])
def test_leftovers_of_another_machine_go_after_an_hour(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.mkdir()
    (path / "state.safetensors").write_bytes(b"half")
    clean_leftovers(tmp_path, Inspector())
    assert path.exists()
    old = time.time() - 3700
    os.utime(path, (old, old))
    clean_leftovers(tmp_path, Inspector())
    assert path.exists(), "a file in it is fresh"
    os.utime(path / "state.safetensors", (old, old))
    clean_leftovers(tmp_path, Inspector())
    assert not path.exists()


def test_a_step_that_a_dead_writer_moved_aside_comes_back(tmp_path: Path, dead_pid: int) -> None:
    target = tmp_path / checkpoint_name(7)
    aside = named_for(replaced_path(target), dead_pid)
    make(tmp_path, 7, name=aside.name)
    clean_leftovers(tmp_path, Inspector())
    assert list(tmp_path.iterdir()) == [target]
    assert Inspector().verify(target).problem is None


def test_a_step_moved_aside_goes_when_its_successor_is_good(tmp_path: Path, dead_pid: int) -> None:
    target = make(tmp_path, 7, metric=0.25)
    make(tmp_path, 7, name=named_for(replaced_path(target), dead_pid).name)
    clean_leftovers(tmp_path, Inspector())
    assert list(tmp_path.iterdir()) == [target]
    assert read_manifest(target).metric == 0.25


def test_a_step_moved_aside_comes_back_when_its_successor_is_damaged(
    tmp_path: Path, dead_pid: int
) -> None:
    target = make(tmp_path, 7)
    flip_byte(target / "state.safetensors")
    make(tmp_path, 7, name=named_for(replaced_path(target), dead_pid).name)
    clean_leftovers(tmp_path, Inspector())
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == [target.name, f"{target.name}.damaged-1"]
    assert Inspector().verify(target).problem is None


def test_the_folder_module_needs_no_torch() -> None:
    code = "import speedtronic.checkpoint.locating, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_leftovers_under_this_process_number_go_when_they_are_old(tmp_path: Path) -> None:
    # In a container every life of a program may have the same number.
    fresh, old = temporary_path(tmp_path), temporary_path(tmp_path)
    for path in (fresh, old):
        path.mkdir()
        (path / "state.safetensors").write_bytes(b"half")
    two_hours_ago = time.time() - 7200
    for path in (old / "state.safetensors", old):
        os.utime(path, (two_hours_ago, two_hours_ago))

    clean_leftovers(tmp_path, Inspector())

    assert [path.exists() for path in (fresh, old)] == [True, False]
