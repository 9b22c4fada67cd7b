"""Shards of token ids: written, mapped, checked."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from speedtronic.core.errors import ConfigError, DataError
from speedtronic.data.corpus import text_corpus
from speedtronic.data.tokens import build_tokens_data, open_shards, write_shards

SMALL = {"block_size": 4, "micro_batch_size": 2, "seed": 1, "max_eval_batches": None}
IN_ORDER = {**SMALL, "shuffle": False, "drop_last": False}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working directory of the test."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _bin(name, ids, dtype=np.uint16):
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    np.asarray(ids, dtype=dtype).tofile(name)


def _train_ids(data):
    """Return the training ids but the first, read in order through the loader."""
    iterator = iter(data.train)
    labels = [next(iterator)["labels"].numpy() for _ in range(data.train.batches_per_epoch)]
    iterator.close()
    return [int(each) for batch in labels for each in batch.flatten() if each != -100]


def _held_out_ids(data):
    labels = [batch["labels"].numpy() for batch in data.evaluation]
    return [int(each) for batch in labels for each in batch.flatten() if each != -100]


class TestReading:
    def test_one_bin_file_is_mapped_and_its_tail_is_held_out(self, folder):
        _bin("t.bin", range(100))
        data = build_tokens_data(path="t.bin", validation_fraction=0.1, **IN_ORDER)
        assert _train_ids(data) == list(range(1, 90))
        assert _held_out_ids(data) == list(range(91, 100))
        assert data.facts == {
            "source": "tokens",
            "files": 1,
            "bytes": 200,
            "sha256": None,
            "dtype": "uint16",
            "tokenizer": None,
            "vocab_size": 100,
            "train_tokens": 90,
            "held_out_tokens": 10,
        }

    def test_shards_are_read_as_one_stream_across_their_borders(self, folder):
        for number, (low, high) in enumerate([(0, 7), (7, 8), (8, 50), (50, 60)]):
            _bin(f"s/{number}.bin", range(low, high))
        data = build_tokens_data(path="s", validation_fraction=0.2, **IN_ORDER)
        assert _train_ids(data) == list(range(1, 48))
        assert _held_out_ids(data) == list(range(49, 60))

    def test_many_shards_are_held_out_whole(self, folder):
        for number in range(8):
            _bin(f"s/{number}.bin", range(10 * number, 10 * number + 10))
        data = build_tokens_data(path="s/*.bin", validation_fraction=0.25, **IN_ORDER)
        assert _held_out_ids(data) == [*range(31, 40), *range(70, 80)]
        assert data.facts["train_tokens"] == 60

    @pytest.mark.parametrize("dtype", [np.uint16, np.uint32])
    def test_npy_files_are_mapped(self, folder, dtype):
        np.save("a.npy", np.arange(30, dtype=dtype))
        data = build_tokens_data(path="a.npy", validation_fraction=0, **IN_ORDER)
        assert _train_ids(data) == list(range(1, 30))
        assert data.facts["dtype"] == np.dtype(dtype).name
        assert data.evaluation is None

    def test_a_bin_file_of_uint32_says_so_in_its_name(self, folder):
        _bin("a.uint32.bin", [70_000, 70_001, 70_002, 5, 6, 7, 8], np.uint32)
        data = build_tokens_data(path="a.uint32.bin", validation_fraction=0, **IN_ORDER)
        assert _train_ids(data) == [70_001, 70_002, 5, 6, 7, 8]
        assert data.vocab_size == 70_003

    def test_shards_stay_on_disk(self, folder):
        _bin("a.bin", range(30))
        np.save("b.npy", np.arange(30, dtype=np.uint16))
        for array in open_shards(["a.bin", "b.npy"]).arrays:
            base = array
            while isinstance(base, np.ndarray) and not isinstance(base, np.memmap):
                base = base.base
            assert isinstance(base, np.memmap)

    def test_a_named_tokenizer_gives_the_vocabulary(self, folder):
        _bin("a.bin", list(b"hello world"))
        data = build_tokens_data(path="a.bin", tokenizer="byte", validation_fraction=0, **IN_ORDER)
        assert data.vocab_size == 256
        assert data.tokenizer.decode(_train_ids(data)) == "ello world"


class TestErrors:
    def test_an_id_outside_the_vocabulary_is_named_at_the_start(self, folder):
        _bin("a.bin", [1, 2, 3] * 10)
        _bin("b.bin", [1, 2, 3, 300, 4, 400])
        message = (
            r"data.path: b.bin holds id 300 at token 3, but the vocabulary of byte has 256 ids"
        )
        with pytest.raises(DataError, match=message):
            build_tokens_data(path=["a.bin", "b.bin"], tokenizer="byte", **SMALL)

    def test_an_id_outside_the_vocabulary_of_a_large_corpus_is_named_when_it_is_read(
        self, folder, monkeypatch
    ):
        monkeypatch.setattr("speedtronic.data.tokens.CHECK_AT_START_TOKENS", 10)
        _bin("a.bin", [*range(20), 300, *range(20)])
        data = build_tokens_data(
            path="a.bin", tokenizer="byte", validation_fraction=0.2, **IN_ORDER
        )
        with pytest.raises(DataError, match=r"data.path: a.bin holds id 300 at token 20"):
            _train_ids(data)

    @pytest.mark.parametrize(
        ("name", "content", "message"),
        [
            ("a.bin", b"", r"a.bin must hold uint16 numbers, but its size is 0 bytes"),
            ("a.bin", b"abc", r"a.bin must hold uint16 numbers, but its size is 3 bytes"),
            ("a.uint32.bin", b"abcdef", r"must hold uint32 numbers, but its size is 6 bytes"),
            ("a.npy", b"no array", r"data.path: cannot map a.npy: "),
            ("a.npy", b"", r"data.path: cannot map a.npy: "),
            ("a.txt", b"text", r"a.txt must end in .bin or .npy; write shards from text with"),
        ],
    )
    def test_a_file_that_holds_no_ids_is_named(self, folder, name, content, message):
        (folder / name).write_bytes(content)
        with pytest.raises(DataError, match=message):
            build_tokens_data(path=name, **SMALL)

    @pytest.mark.parametrize(
        "array", [np.zeros((3, 3), np.uint16), np.zeros(9, np.int64), np.zeros(9, ">u2")]
    )
    def test_an_array_of_another_shape_or_type_is_named(self, folder, array):
        np.save("a.npy", array)
        with pytest.raises(DataError, match=r"a.npy must be a one-dimensional array of uint16 or"):
            build_tokens_data(path="a.npy", **SMALL)

    def test_shards_of_two_types_are_named(self, folder):
        _bin("a.bin", range(30))
        _bin("b.uint32.bin", range(30), np.uint32)
        message = r"a.bin holds uint16 and b.uint32.bin holds uint32"
        with pytest.raises(DataError, match=message):
            build_tokens_data(path=["a.bin", "b.uint32.bin"], **SMALL)

    def test_a_missing_shard_is_named(self, folder):
        with pytest.raises(DataError, match=r"data.path: there is no file no.bin"):
            build_tokens_data(path="no.bin", **SMALL)

    def test_a_folder_without_shards_is_named(self, folder):
        with pytest.raises(DataError, match=r"there is no \*.bin or \*.npy below the folder \."):
            build_tokens_data(path=".", **SMALL)

    @pytest.mark.parametrize(
        ("content", "message"),
        [("{", "tokens.json is not readable"), ("{}", "must have dtype, shards and tokenizer")],
    )
    def test_a_broken_description_is_named(self, folder, content, message):
        _bin("s/a.bin", range(30))
        Path("s/tokens.json").write_text(content)
        with pytest.raises(DataError, match=message):
            build_tokens_data(path="s", **SMALL)

    def test_a_shard_named_in_the_description_but_gone_is_named(self, folder):
        Path("a.txt").write_text("some text to write")
        write_shards(folder / "out", text_corpus("a.txt"), shard_tokens=5)
        Path("out/tokens_00001.bin").unlink()
        with pytest.raises(DataError, match=r"cannot map out/tokens_00001.bin: No such file"):
            build_tokens_data(path="out", **SMALL)

    def test_fewer_tokens_than_a_block_name_both_numbers(self, folder):
        _bin("a.bin", range(4))
        with pytest.raises(DataError, match=r"data.path: the training part has 4 tokens"):
            build_tokens_data(path="a.bin", validation_fraction=0, **SMALL)


class TestWriting:
    @pytest.mark.parametrize("suffix", [".bin", ".npy"])
    @pytest.mark.parametrize("shard_tokens", [1, 5, 7, 1000])
    def test_what_is_written_is_read_back(self, folder, suffix, shard_tokens):
        Path("a.txt").write_text("first text é\n")
        Path("b.txt").write_text("second\n")
        text = "first text é\nsecond\n"
        description = write_shards(
            folder / "out", text_corpus("*.txt"), shard_tokens=shard_tokens, suffix=suffix
        )
        num_tokens = len(text.encode("utf-8"))
        sizes = [shard["tokens"] for shard in description["shards"]]
        assert sum(sizes) == description["num_tokens"] == num_tokens
        assert sizes[:-1] == [shard_tokens] * (len(sizes) - 1)
        shards = open_shards("out")
        assert bytes(np.concatenate(shards.arrays).astype(np.uint8)) == text.encode("utf-8")
        assert json.loads(Path("out/tokens.json").read_text()) == description

    def test_the_tokenizer_is_saved_beside_the_shards(self, folder):
        Path("a.txt").write_text("abcabc abcabc" * 5)
        write_shards(folder / "out", text_corpus("a.txt"), tokenizer="char")
        data = build_tokens_data(path="out", validation_fraction=0, **IN_ORDER)
        assert (data.vocab_size, data.tokenizer.characters) == (4, " abc")
        assert data.tokenizer.decode(_train_ids(data)) == ("abcabc abcabc" * 5)[1:]
        assert len(data.facts["sha256"]) == 64
        named = build_tokens_data(
            path="out/*.bin", tokenizer="char", validation_fraction=0, **SMALL
        )
        assert named.tokenizer.characters == " abc"

    def test_another_tokenizer_than_the_saved_one_is_refused(self, folder):
        Path("a.txt").write_text("abcabc abcabc" * 5)
        write_shards(folder / "out", text_corpus("a.txt"), tokenizer="char")
        message = r"data.tokenizer=byte is not what the tokens in out were written with \(char\)"
        with pytest.raises(DataError, match=message):
            build_tokens_data(path="out", tokenizer="byte", **SMALL)

    def test_char_without_a_description_has_no_vocabulary(self, folder):
        _bin("a.bin", range(30))
        with pytest.raises(ConfigError, match="char takes its vocabulary from a text"):
            build_tokens_data(path="a.bin", tokenizer="char", **SMALL)

    def test_an_existing_folder_is_left_alone(self, folder):
        Path("a.txt").write_text("text")
        (folder / "out").mkdir()
        with pytest.raises(DataError, match=r"out exists already; remove it or name another"):
            write_shards(folder / "out", text_corpus("a.txt"))

    def test_an_error_leaves_no_folder_behind(self, folder):
        Path("a.txt").write_text("text")
        Path("b.txt").write_bytes(b"\xff")
        with pytest.raises(DataError, match=r"b.txt is not UTF-8"):
            write_shards(folder / "out", text_corpus("*.txt"))
        assert sorted(path.name for path in folder.iterdir()) == ["a.txt", "b.txt"]

    def test_a_corpus_without_text_is_refused(self, folder):
        Path("a.txt").write_text("")
        with pytest.raises(DataError, match="there is no text in the 1 files"):
            write_shards(folder / "out", text_corpus("a.txt"))


class TestCommand:
    def _run(self, *words):
        return subprocess.run(
            [sys.executable, "-m", "speedtronic.data", *words],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def test_it_writes_shards_that_train(self, folder):
        Path("a.txt").write_text("some text\n" * 10)
        result = self._run("out", "path=a.txt", "tokenizer=byte", "shard_tokens=64", "format=npy")
        assert (result.returncode, result.stderr) == (0, "")
        assert result.stdout == (
            "wrote 100 tokens (uint16, vocabulary 256) in 2 shards to out; train with data=tokens "
            "data.path=out\n"
        )
        data = build_tokens_data(path="out", validation_fraction=0, **IN_ORDER)
        assert data.tokenizer.decode(_train_ids(data)) == ("some text\n" * 10)[1:]

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            (["out", "path=no.txt"], "data.path: there is no file no.txt"),
            (["out", "tokeniser=byte"], "tokeniser"),
            (["out", "path=a.txt", "tokenizer=bytes"], "data.tokenizer must be byte, char"),
            (["path=a.txt"], "out must be given"),
        ],
    )
    def test_a_mistake_is_one_line_and_status_2(self, folder, words, message):
        Path("a.txt").write_text("some text\n" * 10)
        result = self._run(*words)
        assert (result.returncode, result.stdout) == (2, "")
        assert result.stderr.count("\n") == 1
        assert message in result.stderr
