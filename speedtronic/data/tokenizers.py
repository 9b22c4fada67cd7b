"""Text to token ids and back: bytes, characters, or a Hugging Face ``tokenizers`` file."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from speedtronic.core.errors import ConfigError, DataError, MissingExtraError, nearest
from speedtronic.core.types import JSON, Tokenizer

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_LARGEST_UINT16_VOCABULARY = 1 << 16
_NUM_CODE_POINTS = 0x110000
CHUNK_CHARACTERS = 1 << 20  # Hugging Face tokenizers keep about 100 bytes a character in memory.
_SAFE_CUT = re.compile(r"\n(?=\S)")


def smallest_id_type(vocab_size: int) -> type[np.uint16] | type[np.uint32]:
    """Return the smallest of uint16 and uint32 that holds every id of a vocabulary."""
    return np.uint16 if vocab_size <= _LARGEST_UINT16_VOCABULARY else np.uint32


class ByteTokenizer:
    """Every UTF-8 byte is a token: 256 ids, no text that cannot be written."""

    name = "byte"
    vocab_size = 256

    def encode(self, text: str) -> np.ndarray:
        """Return the UTF-8 bytes of a text, (N,) uint16."""
        return np.frombuffer(text.encode("utf-8"), dtype=np.uint8).astype(np.uint16)

    def decode(self, ids: Any) -> str:
        """Return the text of byte values; what is no UTF-8 becomes U+FFFD."""
        values = np.asarray(ids, dtype=np.int64)
        # 0xFF occurs in no UTF-8 text, so ids of a padded vocabulary become U+FFFD as well.
        clipped = np.where((values < 0) | (values >= self.vocab_size), 0xFF, values)
        return clipped.astype(np.uint8).tobytes().decode("utf-8", errors="replace")

    def token_bytes(self) -> np.ndarray:
        """Return one byte for each id."""
        return np.ones(self.vocab_size, dtype=np.int64)

    def to_dict(self) -> dict[str, JSON]:
        """Return all that rebuilds this tokenizer."""
        return {"name": self.name}


class CharTokenizer:
    """Every character of a given text is a token.

    Args:
        characters: The vocabulary; id ``i`` is ``characters[i]``.
    """

    name = "char"

    def __init__(self, characters: str) -> None:
        self.characters = characters
        self.vocab_size = len(characters)
        self._id_type = smallest_id_type(self.vocab_size)
        self._unknown = self.vocab_size
        self._ids = np.full(_NUM_CODE_POINTS, self._unknown, dtype=np.uint32)
        self._ids[_code_points(characters)] = np.arange(self.vocab_size, dtype=np.uint32)

    @classmethod
    def of_text(cls, text: str) -> CharTokenizer:
        """Return the tokenizer of the characters in a text, in order of their code points."""
        return cls("".join(sorted(set(text))))

    def encode(self, text: str) -> np.ndarray:
        """Return the ids of a text, (N,).

        Raises:
            DataError: a character is not in the vocabulary.
        """
        ids: np.ndarray = self._ids[_code_points(text)]
        unknown = np.flatnonzero(ids == self._unknown)
        if unknown.size:
            offset = int(unknown[0])
            raise DataError(
                f"data.tokenizer: character {text[offset]!r} (U+{ord(text[offset]):04X}) at "
                f"position {offset} is not among the {self.vocab_size} characters of the training "
                "text; leave it out or train with tokenizer=byte"
            )
        known: np.ndarray = ids.astype(self._id_type)
        return known

    def decode(self, ids: Any) -> str:
        """Return the text of ids; an id outside the vocabulary becomes U+FFFD."""
        values = np.asarray(ids, dtype=np.int64).tolist()
        size = self.vocab_size
        return "".join(self.characters[i] if 0 <= i < size else REPLACEMENT for i in values)

    def token_bytes(self) -> np.ndarray:
        """Return the UTF-8 length of each character, (V,) int64."""
        return np.array([len(each.encode("utf-8")) for each in self.characters], dtype=np.int64)

    def to_dict(self) -> dict[str, JSON]:
        """Return all that rebuilds this tokenizer."""
        return {"name": self.name, "characters": self.characters}


class FileTokenizer:
    """A tokenizer of the Hugging Face ``tokenizers`` package, kept with its whole definition.

    Args:
        definition: The content of its JSON file.
        name: What the user called it, ``file:PATH``.

    Raises:
        MissingExtraError: the package is not installed.
        DataError: the content is no tokenizer.
    """

    def __init__(self, definition: str, *, name: str) -> None:
        self.name = name
        self._definition = definition
        self._tokenizer = _load_definition(definition, name=name)
        self.vocab_size = max(self._tokenizer.get_vocab(with_added_tokens=True).values()) + 1
        self._id_type = smallest_id_type(self.vocab_size)

    def encode(self, text: str) -> np.ndarray:
        """Return the ids of a text, (N,), without special tokens around it."""
        pieces = [
            np.array(self._tokenizer.encode(piece, add_special_tokens=False).ids, self._id_type)
            for piece in _cut_at_lines(text)
        ]
        return np.concatenate(pieces) if pieces else np.empty(0, self._id_type)

    def decode(self, ids: Any) -> str:
        """Return the text of ids, special tokens included."""
        values = np.asarray(ids, dtype=np.int64).tolist()
        return str(self._tokenizer.decode(values, skip_special_tokens=False))

    def token_bytes(self) -> np.ndarray | None:
        """Return the bytes of each id, (V,) int64, for byte-level vocabularies; otherwise None."""
        definition = json.loads(self._definition)
        if not _is_byte_level(definition.get("decoder")) or definition.get("normalizer"):
            return None
        sizes = np.zeros(self.vocab_size, dtype=np.int64)
        for token, number in self._tokenizer.get_vocab(with_added_tokens=False).items():
            sizes[number] = len(token)  # A byte-level vocabulary writes each byte as one character.
        for number, added in self._tokenizer.get_added_tokens_decoder().items():
            sizes[number] = len(added.content.encode("utf-8"))
        return sizes

    def to_dict(self) -> dict[str, JSON]:
        """Return all that rebuilds this tokenizer, its definition included."""
        return {"name": self.name, "definition": self._definition}


def build_tokenizer(spec: str, *, text: str | None = None) -> Tokenizer:
    """Build a tokenizer by name.

    Args:
        spec: ``byte``, ``char`` or ``file:PATH``.
        text: The text whose characters make up the vocabulary of ``char``.

    Raises:
        ConfigError: there is no such tokenizer.
        DataError: the file is missing or is no tokenizer.
        MissingExtraError: ``file:`` needs the package ``tokenizers``.
    """
    if spec == "byte":
        return ByteTokenizer()
    if spec == "char":
        if text is None:
            raise ConfigError(
                "data.tokenizer=char takes its vocabulary from a text, and there is none here; "
                "use byte or file:PATH"
            )
        return CharTokenizer.of_text(text)
    if spec.startswith("file:"):
        return FileTokenizer(_read_definition(spec), name=spec)
    guess = nearest(spec, ["byte", "char", "file:PATH"])
    hint = f"; did you mean {guess}?" if guess else ""
    raise ConfigError(f"data.tokenizer must be byte, char or file:PATH, got {spec!r}{hint}")


def tokenizer_from_dict(saved: Mapping[str, JSON]) -> Tokenizer:
    """Rebuild a tokenizer from what ``to_dict`` returned.

    Raises:
        ConfigError: it is not the dict of a tokenizer.
    """
    name = saved.get("name")
    characters, definition = saved.get("characters"), saved.get("definition")
    if name == "byte":
        return ByteTokenizer()
    if name == "char" and isinstance(characters, str):
        return CharTokenizer(characters)
    if isinstance(name, str) and name.startswith("file:") and isinstance(definition, str):
        return FileTokenizer(definition, name=name)
    raise ConfigError(f"a saved tokenizer must be byte, char or file:PATH, got {name!r}")


def tokenizer_key(spec: str) -> str:
    """Return what tells tokenizers apart in a cache: the name, or the file's content."""
    if not spec.startswith("file:"):
        return spec
    return "file:" + hashlib.sha256(_read_definition(spec).encode("utf-8")).hexdigest()


def _read_definition(spec: str) -> str:
    path = Path(spec.removeprefix("file:")).expanduser()
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise DataError(
            f"data.tokenizer: cannot read {path}: {reason}; give the path of a tokenizers JSON file"
        ) from error


def _load_definition(definition: str, *, name: str) -> Any:
    try:
        from tokenizers import Tokenizer as HuggingFaceTokenizer
    except ImportError as error:
        raise MissingExtraError(
            f"data.tokenizer={name} needs the package tokenizers; install it with: "
            "pip install 'speedtronic[hf]'"
        ) from error
    try:
        return HuggingFaceTokenizer.from_str(definition)
    except Exception as error:  # The package raises nothing narrower.
        raise DataError(
            f"data.tokenizer: {name} is no tokenizers JSON file ({error}); save one with "
            "Tokenizer.save"
        ) from error


def _is_byte_level(decoder: Any) -> bool:
    if not isinstance(decoder, dict):
        return False
    if decoder.get("type") == "Sequence":
        return any(_is_byte_level(each) for each in decoder.get("decoders", []))
    return decoder.get("type") == "ByteLevel"


def _code_points(text: str) -> np.ndarray:
    return np.frombuffer(text.encode("utf-32-le", errors="surrogatepass"), dtype="<u4")


def _cut_at_lines(text: str) -> list[str]:
    """Cut a long text where a line begins with no space: no usual vocabulary has a token there."""
    pieces = []
    start = 0
    while len(text) - start > CHUNK_CHARACTERS:
        cut = _SAFE_CUT.search(text, start + CHUNK_CHARACTERS)
        if cut is None:
            break
        pieces.append(text[start : cut.end()])
        start = cut.end()
    if start < len(text):
        pieces.append(text[start:])
    return pieces
