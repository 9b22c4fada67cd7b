"""Tokenizers: there and back, byte counts, and rebuilding from a dict."""

from __future__ import annotations

import builtins
import json

import numpy as np
import pytest
import torch

from speedtronic.core.errors import ConfigError, DataError, MissingExtraError
from speedtronic.data import tokenizers as ours
from speedtronic.data.tokenizers import build_tokenizer, tokenizer_from_dict, tokenizer_key

TEXT = "naïve café\r\n\tthe 😀 end\n"


@pytest.fixture
def bpe_path(tmp_path):
    """A byte-level BPE of a few merges with one special token, as `tokenizers` saves it."""
    package = pytest.importorskip("tokenizers", reason="pip install 'speedtronic[hf]'")
    tokenizer = package.Tokenizer(package.models.BPE())
    tokenizer.pre_tokenizer = package.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = package.decoders.ByteLevel()
    trainer = package.trainers.BpeTrainer(
        vocab_size=280,
        special_tokens=["<|end|>"],
        initial_alphabet=package.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["the cat and the hat and the end\n"] * 20, trainer)
    path = tmp_path / "bpe.json"
    tokenizer.save(str(path))
    return path


def test_bytes_are_the_utf8_bytes_of_the_text():
    tokenizer = build_tokenizer("byte")
    ids = tokenizer.encode("é\n")
    assert (tokenizer.vocab_size, ids.dtype, ids.tolist()) == (256, np.uint16, [0xC3, 0xA9, 10])
    assert tokenizer.decode(tokenizer.encode(TEXT)) == TEXT
    assert tokenizer.token_bytes().tolist() == [1] * 256


@pytest.mark.parametrize("ids", [[104, 105], np.array([104, 105]), torch.tensor([104, 105])])
def test_ids_of_any_sequence_are_decoded(ids):
    assert build_tokenizer("byte").decode(ids) == "hi"
    assert build_tokenizer("char", text="".join(map(chr, range(200)))).decode(ids) == "hi"


def test_malformed_bytes_and_unknown_ids_become_the_replacement_character():
    assert build_tokenizer("byte").decode([104, 0xC3, 105]) == "h\ufffdi"
    assert build_tokenizer("byte").decode([104, 300, -1]) == "h\ufffd\ufffd"
    assert build_tokenizer("char", text="ab").decode([0, 5, -1, 1]) == "a\ufffd\ufffdb"


def test_char_has_one_id_for_each_character_in_code_point_order():
    tokenizer = build_tokenizer("char", text="banana😀é")
    assert tokenizer.characters == "abné😀"
    assert tokenizer.vocab_size == 5
    ids = tokenizer.encode("nab😀")
    assert (ids.dtype, ids.tolist()) == (np.uint16, [2, 0, 1, 4])
    assert tokenizer.decode(ids) == "nab😀"
    assert tokenizer.token_bytes().tolist() == [1, 1, 1, 2, 4]


def test_a_vocabulary_above_uint16_uses_uint32():
    characters = "".join(chr(0x10000 + number) for number in range(65_537))
    tokenizer = build_tokenizer("char", text=characters)
    ids = tokenizer.encode(characters[-1])
    assert (ids.dtype, ids.tolist()) == (np.uint32, [65_536])


def test_an_unknown_character_is_named_with_its_position():
    message = r"character 'é' \(U\+00E9\) at position 2 is not among the 2 characters"
    with pytest.raises(DataError, match=message):
        build_tokenizer("char", text="ab").encode("abé")


def test_char_without_a_text_says_what_to_do():
    with pytest.raises(ConfigError, match="char takes its vocabulary from a text"):
        build_tokenizer("char")


def test_an_unknown_tokenizer_names_the_nearest_one():
    with pytest.raises(
        ConfigError, match=r"data.tokenizer must be .* got 'bytes'; did you mean byte"
    ):
        build_tokenizer("bytes")


def test_a_tokenizers_file_round_trips_and_counts_its_bytes(bpe_path):
    tokenizer = build_tokenizer(f"file:{bpe_path}")
    assert tokenizer.name == f"file:{bpe_path}"
    assert tokenizer.vocab_size > 256
    for text in (TEXT, "the cat and the hat", "a<|end|>b", ""):
        ids = tokenizer.encode(text)
        assert ids.dtype == np.uint16
        assert tokenizer.decode(ids) == text
        assert tokenizer.token_bytes()[ids].sum() == len(text.encode("utf-8"))
    assert len(tokenizer.encode("the cat and the hat")) < 19


def test_a_long_text_is_cut_where_no_token_can_be(bpe_path, monkeypatch):
    tokenizer = build_tokenizer(f"file:{bpe_path}")
    text = "the cat and\n\n  the hat\nand the end\n" * 50
    whole = tokenizer.encode(text).tolist()
    monkeypatch.setattr(ours, "CHUNK_CHARACTERS", 40)
    assert tokenizer.encode(text).tolist() == whole


def test_a_lossy_tokenizer_counts_no_bytes(bpe_path):
    definition = json.loads(bpe_path.read_text())
    definition["normalizer"] = {"type": "Lowercase"}
    bpe_path.write_text(json.dumps(definition))
    assert build_tokenizer(f"file:{bpe_path}").token_bytes() is None


@pytest.mark.parametrize("spec", ["byte", "char"])
def test_a_tokenizer_is_rebuilt_from_json(spec):
    tokenizer = build_tokenizer(spec, text=TEXT)
    rebuilt = tokenizer_from_dict(json.loads(json.dumps(tokenizer.to_dict())))
    assert rebuilt.encode(TEXT).tolist() == tokenizer.encode(TEXT).tolist()
    assert (rebuilt.name, rebuilt.vocab_size) == (tokenizer.name, tokenizer.vocab_size)


def test_a_tokenizers_file_is_rebuilt_without_the_file(bpe_path):
    tokenizer = build_tokenizer(f"file:{bpe_path}")
    saved = json.loads(json.dumps(tokenizer.to_dict()))
    bpe_path.unlink()
    assert tokenizer_from_dict(saved).encode(TEXT).tolist() == tokenizer.encode(TEXT).tolist()


@pytest.mark.parametrize("saved", [{}, {"name": "word"}, {"name": "char"}, {"name": "file:x"}])
def test_a_dict_that_is_no_tokenizer_is_refused(saved):
    with pytest.raises(ConfigError, match="a saved tokenizer must be byte, char or file:PATH"):
        tokenizer_from_dict(saved)


def test_the_key_of_a_file_is_its_content(tmp_path):
    path = tmp_path / "t.json"
    keys = set()
    for content in ("{}", "[]", "{}"):
        path.write_text(content)
        keys.add(tokenizer_key(f"file:{path}"))
    assert len(keys) == 2
    assert tokenizer_key("byte") == "byte"


def test_a_missing_tokenizers_file_is_named(tmp_path):
    with pytest.raises(DataError, match=r"data.tokenizer: cannot read .*no.json: No such file"):
        build_tokenizer(f"file:{tmp_path}/no.json")


def test_a_file_that_is_no_tokenizer_is_named(tmp_path):
    pytest.importorskip("tokenizers", reason="pip install 'speedtronic[hf]'")
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(DataError, match=r"bad.json is no tokenizers JSON file"):
        build_tokenizer(f"file:{tmp_path}/bad.json")


def test_a_missing_package_names_the_install_command(tmp_path, monkeypatch):
    real_import = builtins.__import__

    def refuse(name, *args, **kwargs):
        if name == "tokenizers":
            raise ImportError(name)
        return real_import(name, *args, **kwargs)

    (tmp_path / "t.json").write_text("{}")
    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(MissingExtraError, match=r"pip install 'speedtronic\[hf\]'"):
        build_tokenizer(f"file:{tmp_path}/t.json")
