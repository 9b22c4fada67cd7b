"""What every data source hands to the runtime, whatever it was read from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from speedtronic.core.types import JSON, StatefulLoader, Tokenizer


@dataclass(frozen=True)
class LoadedData:
    """Live loaders and what is known about them."""

    train: StatefulLoader | Iterable[Any]
    """Training microbatches; our own loaders are endless and know their position."""
    evaluation: Iterable[Any] | None
    """Held-out batches, the same ones each pass; None when nothing is held out."""
    tokenizer: Tokenizer | None
    """Turns text into ids and back; None where the ids stand for no text."""
    vocab_size: int | None
    """Number of ids the model must know; None where the data does not say."""
    facts: dict[str, JSON] = field(default_factory=dict)
    """What was read, for run.json: source, counts, checksums."""
