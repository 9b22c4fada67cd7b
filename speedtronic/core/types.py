"""Protocols and plain types that let rooms work together without importing each other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

if TYPE_CHECKING:
    import numpy as np

JSON: TypeAlias = "bool | int | float | str | list[JSON] | dict[str, JSON] | None"


@runtime_checkable
class SyncCoordinator(Protocol):
    """What the trainer needs of a distributed coordinator."""

    def start(self) -> None:
        """Begin background work; called once before the first step."""

    def after_optimizer_step(self, model: Any, step: int) -> bool | None:
        """Act after update ``step``; true asks for a reset of the inner optimizer's state."""

    def stop(self) -> None:
        """End background work; called even when ``start`` raised."""

    def state_dict(self) -> dict[str, Any] | None:
        """Return what a checkpoint must hold, or None."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a saved state."""


@runtime_checkable
class StatefulLoader(Protocol):
    """A loader that can say where it is and return there."""

    def __iter__(self) -> Iterator[Any]:
        """Yield microbatches from the current position on."""

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the last microbatch handed out."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved position."""


class Tokenizer(Protocol):
    """Text to token ids and back."""

    name: str
    vocab_size: int

    def encode(self, text: str) -> np.ndarray:
        """Return the ids of a text, (N,), uint16 where it holds the vocabulary, else uint32."""

    def decode(self, ids: Any) -> str:
        """Return the text of a sequence of ids; malformed byte sequences become U+FFFD."""

    def token_bytes(self) -> np.ndarray | None:
        """Return the number of UTF-8 bytes each id stands for, (V,) int64, or None if unknown."""

    def to_dict(self) -> dict[str, JSON]:
        """Return all that rebuilds this tokenizer."""
