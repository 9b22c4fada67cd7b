"""The token cache: made once, shared by racing processes, deletable at any time."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

from speedtronic.core.errors import FallbackWarning
from speedtronic.data.cache import (
    CACHE_VARIABLE,
    CacheEntry,
    cache_folder,
    cache_key,
    cached_entry,
)

# Started as processes of their own; each prints the checksum of what it got.
RACER = """
import hashlib, os, sys, time
import numpy as np
from speedtronic.data.cache import CacheEntry, cached_entry

def make():
    with open(sys.argv[1], "a") as file:
        file.write(f"{os.getpid()}\\n")
    time.sleep(0.3)
    return CacheEntry(arrays={"train": np.arange(100_000, dtype=np.uint16)}, meta={"n": 1})

entry = cached_entry("k" * 64, make)
print(hashlib.sha256(entry.arrays["train"].tobytes()).hexdigest(), entry.meta)
"""
DELETED_UNDER = """
import sys, warnings
import numpy as np
from speedtronic.data.cache import CacheEntry, cached_entry

warnings.simplefilter("ignore")
for turn in range(60):
    expected = np.arange(20_000 + turn % 3, dtype=np.uint16)
    made = CacheEntry({"train": expected}, {"n": turn % 3})
    entry = cached_entry(f"{turn % 3}" * 64, lambda: made)
    assert entry.meta == {"n": turn % 3}, entry.meta
    assert np.array_equal(entry.arrays["train"], expected), turn
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


def _entry(count=5):
    return CacheEntry(arrays={"train": np.arange(count, dtype=np.uint16)}, meta={"n": count})


def _never():
    raise AssertionError("made again")


def _get(make=_entry):
    return cached_entry("a" * 64, make)


def _place(folder):
    return folder / "tokens" / ("a" * 64)


def test_the_folder_is_named_by_the_variable_or_lies_below_home(folder, monkeypatch):
    assert cache_folder() == folder
    monkeypatch.delenv(CACHE_VARIABLE)
    assert cache_folder() == Path.home() / ".cache" / "speedtronic"


def test_an_entry_is_made_once_and_then_mapped():
    assert _get().arrays["train"].tolist() == [0, 1, 2, 3, 4]
    entry = _get(_never)
    assert entry.meta == {"n": 5}
    assert isinstance(entry.arrays["train"], np.memmap)
    assert entry.arrays["train"].tolist() == [0, 1, 2, 3, 4]


def test_keys_depend_on_every_part():
    keys = {
        cache_key(files=["a"], tokenizer="byte"),
        cache_key(files=["b"], tokenizer="byte"),
        cache_key(files=["a"], tokenizer="char"),
        cache_key(files=["a", ""], tokenizer="byte"),
    }
    assert len(keys) == 4


def test_racing_processes_make_one_entry_and_read_it_whole(tmp_path):
    log = tmp_path / "made"
    racers = [
        subprocess.Popen([sys.executable, "-c", RACER, str(log)], stdout=subprocess.PIPE, text=True)
        for _ in range(6)
    ]
    outputs = {racer.communicate(timeout=120)[0] for racer in racers}
    expected = hashlib.sha256(np.arange(100_000, dtype=np.uint16).tobytes()).hexdigest()
    assert outputs == {f"{expected} {{'n': 1}}\n"}
    assert len(log.read_text().splitlines()) == 1


def test_a_cache_deleted_all_the_time_gives_no_error_and_no_wrong_token(folder):
    workers = [
        subprocess.Popen([sys.executable, "-c", DELETED_UNDER], stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    while any(worker.poll() is None for worker in workers):
        shutil.rmtree(folder, ignore_errors=True)
    assert [worker.communicate()[1] for worker in workers] == ["", ""]
    assert [worker.returncode for worker in workers] == [0, 0]


def test_a_mapped_entry_outlives_the_cache(folder):
    _get()
    entry = _get(_never)
    shutil.rmtree(folder)
    assert entry.arrays["train"].tolist() == [0, 1, 2, 3, 4]
    assert _get().arrays["train"].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("damage", ["cut", "no meta", "bad meta", "no array", "file"])
def test_a_damaged_entry_is_made_again(folder, damage):
    _get()
    place = _place(folder)
    if damage == "cut":
        content = (place / "train.npy").read_bytes()
        (place / "train.npy").write_bytes(content[:-2])
    elif damage == "no meta":
        (place / "meta.json").unlink()
    elif damage == "bad meta":
        (place / "meta.json").write_text('{"n": 5, "arr')
    elif damage == "no array":
        (place / "train.npy").unlink()
    else:
        shutil.rmtree(place)
        place.write_text("no folder")
    assert _get().arrays["train"].tolist() == [0, 1, 2, 3, 4]
    assert _get(_never).arrays["train"].tolist() == [0, 1, 2, 3, 4]


def test_only_entries_and_locks_are_left_behind(folder):
    _place(folder).parent.mkdir(parents=True)
    abandoned = _place(folder).with_name("." + "a" * 64 + ".tmp-of-a-killed-process")
    abandoned.mkdir()
    _get()
    names = {path.name for path in (folder / "tokens").iterdir()}
    assert names - {"a" * 64 + ".lock"} == {"a" * 64}
    assert json.loads((_place(folder) / "meta.json").read_text()) == {"n": 5, "arrays": ["train"]}


def test_a_cache_that_cannot_be_written_is_one_warning_and_tokens_in_memory(folder):
    folder.write_text("a file where the folder should be")
    with pytest.warns(
        FallbackWarning, match=f"cannot be written .* set {CACHE_VARIABLE}"
    ) as caught:
        entry = _get()
    assert len(caught) == 1
    assert entry.arrays["train"].tolist() == [0, 1, 2, 3, 4]


def test_an_error_while_making_passes_through_and_leaves_nothing(folder):
    def fail():
        raise OSError("disk gone")

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(OSError, match="disk gone"):
            _get(fail)
    assert not _place(folder).exists()
