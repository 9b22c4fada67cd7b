"""The standard library and the user's text files as data."""

from __future__ import annotations

import hashlib
import os
import sysconfig
from pathlib import Path

import numpy as np
import pytest

from speedtronic.core.errors import DataError
from speedtronic.data.cache import CACHE_VARIABLE
from speedtronic.data.corpus import build_stdlib_data, build_text_data, read_bytes, stdlib_corpus

SMALL = {"block_size": 4, "micro_batch_size": 2, "seed": 1, "max_eval_batches": None}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path_factory.mktemp("cache")))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working directory of the test."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _text(name, content):
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))
    return path


def _training_text(data):
    """Return the training text, read in order through the loader without shuffling."""
    return _read(data, data.train, count=data.train.batches_per_epoch)


def _read(data, batches, *, count=None):
    iterator = iter(batches)
    ids = []
    for number, batch in enumerate(iterator):
        inputs, labels = batch["input_ids"].numpy(), batch["labels"].numpy()
        if number == 0:
            ids.append(inputs[0, :1])
        ids.append(labels[labels != -100])
        if number + 1 == count:
            iterator.close()
            break
    return data.tokenizer.decode(np.concatenate(ids))


def _in_order(**changes):
    return {**SMALL, "shuffle": False, "drop_last": False, **changes}


class TestStandardLibrary:
    def test_tests_idlelib_and_packages_are_left_out_and_paths_are_sorted(self, folder):
        for name in (
            "b.py",
            "a/z.py",
            "a-b.py",
            "a/testing.py",
            "test/x.py",
            "lib2to3/tests/x.py",
            "idlelib/x.py",
            "site-packages/x.py",
            "a/dist-packages/x.py",
            "test_one.py",
            "notes.txt",
            "latest.py",
        ):
            _text(name, "x = 1\n")
        names = [path.relative_to(folder).as_posix() for path in stdlib_corpus(str(folder)).paths]
        assert names == ["a-b.py", "a/z.py", "b.py", "latest.py"]

    def test_files_are_decoded_by_their_coding_line_and_others_are_counted(self, folder):
        _text("a.py", "# -*- coding: latin-1 -*-\ns = 'é'\n".encode("latin-1"))
        _text("b.py", b"\xef\xbb\xbfx = 1\r\n")
        _text("c.py", b"s = '\xff'\n")
        _text("d.py", b"# coding: no-such-codec\n")
        _text("e.py", b"# coding: raw_unicode_escape\ns = '\\ud800'\n")
        data = build_stdlib_data(path=str(folder), **_in_order(validation_fraction=0))
        text = "# -*- coding: latin-1 -*-\ns = 'é'\nx = 1\r\n"
        assert _training_text(data) == text
        assert data.facts == {
            "source": "stdlib",
            "files": 2,
            "bytes": len(text.encode("utf-8")),
            "sha256": hashlib.sha256(text.encode("utf-8")).hexdigest(),
            "skipped": 3,
            "held_out": "nothing",
            "tokenizer": "byte",
            "vocab_size": 256,
            "train_tokens": len(text.encode("utf-8")),
            "held_out_tokens": 0,
        }

    def test_every_twentieth_file_is_held_out(self, folder):
        for number in range(45):
            _text(f"m{number:02d}.py", f"value_{number:02d}\n")
        data = build_stdlib_data(path=str(folder), **_in_order())
        assert _read(data, data.evaluation) == "value_19\nvalue_39\n"
        train = _training_text(data).splitlines()
        assert train == [f"value_{n:02d}" for n in range(45) if n not in (19, 39)]

    def test_the_interpreters_own_library_is_the_default(self):
        root = Path(sysconfig.get_path("stdlib"))
        data = build_stdlib_data(block_size=128, micro_batch_size=16, seed=1, max_eval_batches=50)
        corpus = stdlib_corpus()
        assert root / "argparse.py" in corpus.paths
        assert data.facts["files"] + data.facts["skipped"] == len(corpus.paths) > 400
        # A twentieth of the files is about a twentieth of the bytes.
        assert 0.02 < data.facts["held_out_tokens"] / data.facts["bytes"] < 0.1
        assert data.facts["train_tokens"] + data.facts["held_out_tokens"] == data.facts["bytes"]
        assert len(data.evaluation) == 50

    def test_a_folder_without_python_files_is_named(self, folder):
        with pytest.raises(DataError, match=rf"data.path: there is no \*.py file below {folder}"):
            build_stdlib_data(path=str(folder), **SMALL)


class TestText:
    def test_line_endings_and_a_byte_order_mark_are_kept(self, folder):
        _text("a.txt", "\ufeffone\r\ntwo\rthree\n")
        data = build_text_data(path="a.txt", **_in_order(validation_fraction=0))
        assert _training_text(data) == "\ufeffone\r\ntwo\rthree\n"

    def test_the_tail_is_held_out_and_no_position_is_lost(self, folder):
        text = "".join(chr(97 + number % 26) for number in range(200))
        _text("a.txt", text)
        data = build_text_data(path="a.txt", **_in_order())
        assert _training_text(data) == text[:190]
        assert _read(data, data.evaluation) == text[190:]
        assert data.facts["held_out"] == "tail of the text"

    def test_the_tail_of_a_multibyte_text_is_cut_between_characters(self, folder):
        _text("a.txt", "é" * 100)
        data = build_text_data(path="a.txt", **_in_order(validation_fraction=0.1))
        assert _training_text(data) == "é" * 90
        assert _read(data, data.evaluation) == "é" * 10

    def test_many_files_are_held_out_whole(self, folder):
        for number in range(40):
            _text(f"part{number:02d}.txt", f"text {number:02d}\n")
        data = build_text_data(path="part*.txt", **_in_order())
        assert _read(data, data.evaluation) == "text 19\ntext 39\n"
        assert data.facts["held_out"] == "every file whose number is a multiple of 20"

    def test_paths_patterns_and_folders_are_read_once_each_in_order(self, folder):
        _text("z.txt", "zzzz")
        _text("in/b.txt", "bbbb")
        _text("in/deep/a.txt", "aaaa")
        _text("in/other.md", "mmmm")
        options = _in_order(validation_fraction=0)
        assert _training_text(build_text_data(path="in", **options)) == "bbbbaaaa"
        assert _training_text(build_text_data(path="in/**/*.txt", **options)) == "bbbbaaaa"
        listed = build_text_data(path=["z.txt", "in", "in/*.txt", Path("in/other.md")], **options)
        assert _training_text(listed) == "zzzzbbbbaaaammmm"

    def test_a_name_with_brackets_is_a_name_when_it_exists(self, folder):
        _text("a[1].txt", "bracketed")
        data = build_text_data(path="a[1].txt", **_in_order(validation_fraction=0))
        assert _training_text(data) == "bracketed"

    def test_char_takes_its_vocabulary_from_the_whole_text(self, folder):
        _text("a.txt", "abcd" * 10 + "xyz" * 5)
        data = build_text_data(path="a.txt", tokenizer="char", **_in_order(validation_fraction=0.2))
        assert (data.vocab_size, data.tokenizer.characters) == (7, "abcdxyz")
        assert _read(data, data.evaluation).endswith("xyz")

    def test_fraction_zero_means_no_evaluation(self, folder):
        _text("a.txt", "abcdefgh" * 10)
        assert build_text_data(path="a.txt", validation_fraction=0, **SMALL).evaluation is None

    def test_evaluation_is_limited(self, folder):
        _text("a.txt", "abcdefgh" * 100)
        options = {**SMALL, "max_eval_batches": 2}
        assert len(build_text_data(path="a.txt", **options).evaluation) == 2

    def test_a_second_build_maps_the_cache_and_gives_the_same_data(self, folder, monkeypatch):
        _text("a.txt", "abcdefgh" * 10)
        options = _in_order(validation_fraction=0.2)
        first = build_text_data(path="a.txt", tokenizer="char", **options)

        def refuse(path):
            raise AssertionError(f"read {path} again")

        monkeypatch.setattr("speedtronic.data.corpus.read_bytes", refuse)
        second = build_text_data(path="a.txt", tokenizer="char", **options)
        assert _training_text(second) == _training_text(first)
        assert second.facts == first.facts
        assert second.tokenizer.to_dict() == first.tokenizer.to_dict()

    def test_a_changed_file_is_tokenised_anew(self, folder):
        options = _in_order(validation_fraction=0)
        _text("a.txt", "first text")
        assert _training_text(build_text_data(path="a.txt", **options)) == "first text"
        stamp = Path("a.txt").stat().st_mtime_ns
        _text("a.txt", "other text")
        os.utime("a.txt", ns=(stamp, stamp))
        assert _training_text(build_text_data(path="a.txt", **options)) == "other text"

    def test_a_file_that_changes_while_it_is_read_is_named(self, folder, monkeypatch):
        _text("a.txt", "first text")
        monkeypatch.setattr("speedtronic.data.corpus.read_bytes", lambda path: b"other text")
        with pytest.raises(DataError, match=r"data.path: a.txt changed while it was read"):
            build_text_data(path="a.txt", **SMALL)


class TestErrors:
    @pytest.mark.parametrize(
        ("path", "message"),
        [
            ("no.txt", r"data.path: there is no file no.txt \(working directory /"),
            ("*.text", r"data.path: no file matches the pattern \*.text"),
            ("empty", r"data.path: there is no \*.txt below the folder empty"),
        ],
    )
    def test_what_is_missing_is_named(self, folder, path, message):
        (folder / "empty").mkdir()
        with pytest.raises(DataError, match=message):
            build_text_data(path=path, **SMALL)

    def test_an_undecodable_file_names_byte_and_offset(self, folder):
        _text("a.txt", b"0123456789\xff rest of the text")
        message = (
            r"data.path: a.txt is not UTF-8: byte 0xff at byte offset 10 \(invalid start byte\)"
        )
        with pytest.raises(DataError, match=message):
            build_text_data(path="a.txt", **SMALL)

    def test_a_file_that_cannot_be_read_is_named(self, folder):
        with pytest.raises(DataError, match=rf"data.path: cannot read {folder}: Is a directory"):
            read_bytes(folder)

    @pytest.mark.parametrize("text", ["", "abcd"])
    def test_a_text_shorter_than_a_block_names_both_numbers(self, folder, text):
        _text("a.txt", text)
        message = rf"data.path: the training part has {len(text)} tokens, .*block_size \+ 1 = 5\)"
        with pytest.raises(DataError, match=message):
            build_text_data(path="a.txt", validation_fraction=0, **SMALL)

    def test_a_batch_larger_than_the_data_names_both_numbers(self, folder):
        _text("a.txt", "abcdefghi")
        message = r"data.micro_batch_size \(8\) is larger than the training data \(2 blocks"
        with pytest.raises(DataError, match=message):
            build_text_data(path="a.txt", validation_fraction=0, **{**SMALL, "micro_batch_size": 8})

    def test_a_held_out_part_shorter_than_a_block_names_the_setting(self, folder):
        _text("a.txt", "abcdefghi" * 4)
        message = r"data.validation_fraction: the held-out part has 2 tokens, fewer than .* = 5"
        with pytest.raises(DataError, match=message):
            build_text_data(path="a.txt", **SMALL)

    @pytest.mark.parametrize("fraction", [-0.1, 1.0])
    def test_a_fraction_out_of_range_is_refused(self, folder, fraction):
        _text("a.txt", "abcdefghi" * 4)
        with pytest.raises(DataError, match=f"data.validation_fraction must be .* got {fraction}"):
            build_text_data(path="a.txt", **SMALL, validation_fraction=fraction)

    def test_an_unknown_keyword_is_refused(self, folder):
        _text("a.txt", "abcdefghi" * 4)
        with pytest.raises(TypeError, match="unknown_key"):
            build_text_data(path="a.txt", unknown_key=1)
