"""core/files: old or new content, never half; nothing left behind."""

from __future__ import annotations

import errno
import json
import os
import random
import stat
from pathlib import Path

import pytest

from speedtronic.core import files


def test_write_atomic_replaces_the_content_and_leaves_no_other_file(tmp_path: Path) -> None:
    target = tmp_path / "a.bin"
    files.write_atomic(target, b"old")
    files.write_atomic(target, b"new\r\n\x00")
    assert target.read_bytes() == b"new\r\n\x00"
    assert [path.name for path in tmp_path.iterdir()] == ["a.bin"]


def test_text_is_written_as_utf8_with_line_endings_kept(tmp_path: Path) -> None:
    files.write_atomic(tmp_path / "a.txt", "ä\r\nb\n")
    assert (tmp_path / "a.txt").read_bytes() == b"\xc3\xa4\r\nb\n"


def test_missing_parents_are_made(tmp_path: Path) -> None:
    files.write_atomic(tmp_path / "x" / "y" / "a.txt", "1")
    assert (tmp_path / "x" / "y" / "a.txt").read_text() == "1"


def test_the_file_gets_the_permissions_of_the_umask(tmp_path: Path) -> None:
    old = os.umask(0o022)
    try:
        files.write_atomic(tmp_path / "a.txt", "1")
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "a.txt").stat().st_mode) == 0o644


def test_a_full_disk_keeps_the_old_file_and_removes_the_temporary_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "a.txt"
    files.write_atomic(target, "old")

    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left on device"):
        files.write_atomic(target, "new")
    assert target.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_the_file_is_flushed_before_the_rename_and_the_folder_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def note_fsync(descriptor: int) -> None:
        order.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        fsync(descriptor)

    def note_replace(self: Path, target: Path) -> Path:
        order.append("rename")
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(Path, "replace", note_replace)
    files.write_atomic(tmp_path / "a.txt", "new")
    assert order == ["file", "rename", "folder"]


def test_json_is_strict_and_ends_with_a_newline(tmp_path: Path) -> None:
    files.write_json(tmp_path / "a.json", {"b": [1, 0.1, None, True], "a": "é\ud800"})
    text = (tmp_path / "a.json").read_text()
    assert text.endswith("}\n")
    assert json.loads(text) == {"b": [1, 0.1, None, True], "a": "é\ud800"}
    assert list(json.loads(text)) == ["b", "a"]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_json_refuses_numbers_that_are_not_finite_and_keeps_the_old_file(
    tmp_path: Path, value: float
) -> None:
    files.write_json(tmp_path / "a.json", 1)
    with pytest.raises(ValueError, match="not JSON compliant"):
        files.write_json(tmp_path / "a.json", {"x": value})
    assert (tmp_path / "a.json").read_text() == "1\n"


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP])
def test_a_file_system_that_cannot_flush_folders_is_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(_descriptor: int) -> None:
        raise OSError(number, "refused")

    monkeypatch.setattr(os, "fsync", refuse)
    files.fsync_dir(tmp_path)


def test_a_failing_flush_of_a_folder_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_descriptor: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="Input/output error"):
        files.fsync_dir(tmp_path)


def test_sha256_equals_the_published_value(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")  # FIPS 180-2, appendix B.1
    assert (
        files.sha256_file(tmp_path / "a")
        == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    )


def test_suffixes_differ_and_draw_no_training_rng() -> None:
    random.seed(1)
    before = random.getstate()
    suffixes = {files.unique_suffix() for _ in range(100)}
    assert len(suffixes) == 100
    assert {len(suffix) for suffix in suffixes} == {32}
    assert random.getstate() == before
