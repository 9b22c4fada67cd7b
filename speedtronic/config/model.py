"""Settings of the model: the bundled GPT, a registered class, or any class of the user's."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

from pydantic import Field, model_validator

from speedtronic.config.factory import Factory
from speedtronic.core.errors import ConfigError
from speedtronic.core.settings import Settings

if TYPE_CHECKING:
    from torch import nn

_FEEDFORWARD_MULTIPLE = 64  # the feed-forward width is rounded up to this many columns


class ModelSettings(Settings, ABC):
    """What every choice of ``model`` can do."""

    section: ClassVar[str] = "model"

    @abstractmethod
    def build(self, *, vocab_size: int | None) -> nn.Module:
        """Build the model.

        Args:
            vocab_size: Number of token ids in the data, or None where the data has no tokens.
        """

    @property
    @abstractmethod
    def longest_block(self) -> int | None:
        """Longest sequence the model takes, in tokens, or None when only the model knows."""


class GPTSettings(ModelSettings):
    """The bundled decoder: pre-norm, RoPE, grouped-query attention, SwiGLU."""

    vocab_size: Annotated[int, Field(ge=1)] | None = None
    """Number of token ids; null: the tokenizer's."""
    max_seq_len: Annotated[int, Field(ge=1)] = 128
    """Longest sequence, in tokens."""
    n_layer: Annotated[int, Field(ge=1)] = 4
    """Number of blocks."""
    n_head: Annotated[int, Field(ge=1)] = 8
    """Attention heads; divides d_model into even widths."""
    n_kv_head: Annotated[int, Field(ge=1)] | None = None
    """Key and value heads, a divisor of n_head; null: n_head."""
    d_model: Annotated[int, Field(ge=1)] = 256
    """Width of the residual stream."""
    d_ff: Annotated[int, Field(ge=1)] | None = None
    """SwiGLU width; null: 8/3 d_model rounded up to a multiple of 64."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Probability of dropping an activation, in [0, 1)."""
    tie_weights: bool = True
    """Whether the output layer is the embedding."""
    rope_base: Annotated[float, Field(gt=0)] = 10000.0
    """Base of the rotary position frequencies."""

    @model_validator(mode="after")
    def _check_heads(self) -> Self:
        _check_head_width(self.d_model, self.n_head)
        if self.n_kv_head is not None and self.n_head % self.n_kv_head:
            fits = _nearest(self.n_kv_head, _divisors(self.n_head))
            raise ConfigError(
                f"model.n_kv_head must divide model.n_head ({self.n_head}), got {self.n_kv_head};"
                f" try model.n_kv_head={fits}"
            )
        return self

    @property
    def longest_block(self) -> int | None:
        """Longest sequence the model takes, in tokens."""
        return self.max_seq_len

    @property
    def head_width(self) -> int:
        """Columns of one attention head."""
        return self.d_model // self.n_head

    @property
    def num_kv_heads(self) -> int:
        """Key and value heads in force."""
        return self.n_head if self.n_kv_head is None else self.n_kv_head

    @property
    def feedforward_width(self) -> int:
        """SwiGLU width in force."""
        if self.d_ff is not None:
            return self.d_ff
        eight_thirds = -(-8 * self.d_model // 3)
        return -(-eight_thirds // _FEEDFORWARD_MULTIPLE) * _FEEDFORWARD_MULTIPLE

    def build(self, *, vocab_size: int | None) -> nn.Module:
        """Build the GPT for the data's vocabulary.

        Raises:
            ConfigError: no vocabulary size is known, or the given one is below the data's.
        """
        from speedtronic.models.gpt import GPT

        return GPT(
            vocab_size=self._resolve_vocab_size(vocab_size),
            max_seq_len=self.max_seq_len,
            n_layer=self.n_layer,
            n_head=self.n_head,
            n_kv_head=self.num_kv_heads,
            d_model=self.d_model,
            d_ff=self.feedforward_width,
            dropout=self.dropout,
            tie_weights=self.tie_weights,
            rope_base=self.rope_base,
        )

    def _resolve_vocab_size(self, of_data: int | None) -> int:
        if self.vocab_size is None and of_data is None:
            raise ConfigError(
                "model.vocab_size must be given because the data has no tokenizer, got null;"
                " set model.vocab_size to the number of token ids"
            )
        if self.vocab_size is None or of_data is None:
            return self.vocab_size or of_data or 0
        if self.vocab_size < of_data:
            raise ConfigError(
                f"model.vocab_size must be at least the data's ({of_data}), got"
                f" {self.vocab_size}; try model.vocab_size=null"
            )
        return self.vocab_size


class ForeignModelSettings(ModelSettings):
    """A model of the user's, called when the run is built."""

    factory: Factory
    """The class or function and its arguments."""

    @property
    def longest_block(self) -> int | None:
        """Longest sequence in tokens, where the arguments name a ``max_seq_len``."""
        return _max_seq_len(self.factory.arguments)

    def build(self, *, vocab_size: int | None) -> nn.Module:
        """Call the user's class; ``vocab_size`` is passed when its signature names it."""
        from torch import nn

        offered = {} if vocab_size is None else {"vocab_size": vocab_size}
        model = self.factory.call(section=self.section, offered=offered)
        if not isinstance(model, nn.Module):
            raise ConfigError(
                f"model._target_ must give a torch.nn.Module, got {type(model).__name__} from"
                f" {self.factory.target}; name a model class"
            )
        return model


class RegisteredModelSettings(ModelSettings):
    """A model class that the running program registered with ``register_model``."""

    name: str
    """The registered name."""
    arguments: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of the class."""

    @property
    def longest_block(self) -> int | None:
        """Longest sequence in tokens, where the arguments name a ``max_seq_len``."""
        return _max_seq_len(self.arguments)

    def build(self, *, vocab_size: int | None) -> nn.Module:
        """Build the registered class; ``vocab_size`` is passed when its signature names it."""
        from torch import nn

        from speedtronic.config.factory import call_checked
        from speedtronic.models.registry import model_class

        offered = {} if vocab_size is None else {"vocab_size": vocab_size}
        model = call_checked(
            model_class(self.name), self.arguments, section=self.section, offered=offered
        )
        if not isinstance(model, nn.Module):
            raise ConfigError(
                f"model.name must name a torch.nn.Module, got {self.name!r}, which gives"
                f" {type(model).__name__}; register a model class"
            )
        return model


def _max_seq_len(arguments: Mapping[str, Any]) -> int | None:
    value = arguments.get("max_seq_len")
    return value if type(value) is int and value > 0 else None


def _check_head_width(d_model: int, n_head: int) -> None:
    if d_model % (2 * n_head) == 0:
        return
    head_counts = [count for count in _divisors(d_model) if d_model // count % 2 == 0]
    tries = [f"model.n_head={_nearest(n_head, head_counts)}"] if head_counts else []
    widths = [width for width in _multiples_around(d_model, 2 * n_head) if width > 0]
    tries.append(f"model.d_model={_nearest(d_model, widths)}")
    if d_model % n_head:
        rule = f"must be divisible by model.n_head ({n_head})"
    else:
        rule = f"must give heads of even width for model.n_head={n_head}"
    raise ConfigError(f"model.d_model {rule}, got {d_model}; try {' or '.join(tries)}")


def _divisors(number: int) -> list[int]:
    return [candidate for candidate in range(1, number + 1) if number % candidate == 0]


def _multiples_around(number: int, unit: int) -> list[int]:
    return [number // unit * unit, (number // unit + 1) * unit]


def _nearest(number: int, candidates: list[int]) -> int:
    return min(candidates, key=lambda candidate: abs(candidate - number))
