"""Settings of the data: which text or tokens, and how they become batches."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

from pydantic import AfterValidator, Field, model_validator

from speedtronic.config.factory import Factory
from speedtronic.core.errors import ConfigError
from speedtronic.core.settings import PathText, Settings

if TYPE_CHECKING:
    import torch

    from speedtronic.data.loaded import LoadedData

_LARGEST_SEED = 2**32 - 1


def _check_tokenizer(tokenizer: str) -> str:
    if not re.fullmatch(r"byte|char|file:.+", tokenizer, re.DOTALL):
        raise ValueError("must be byte, char or file:PATH")
    return tokenizer


TokenizerName = Annotated[str, AfterValidator(_check_tokenizer)]
PathList = PathText | Annotated[list[PathText], Field(min_length=1)]


class DataSettings(Settings, ABC):
    """What every choice of ``data`` has: the loader's keys."""

    section: ClassVar[str] = "data"

    block_size: Annotated[int, Field(ge=1)] | None = None
    """Tokens of one sample; null: the model's max_seq_len."""
    micro_batch_size: Annotated[int, Field(ge=1)] = 16
    """Samples of one forward and backward."""
    target_batch_size: Annotated[int, Field(ge=1)] | None = None
    """Samples of one update, a multiple of micro_batch_size; null: micro_batch_size."""
    validation_fraction: Annotated[float, Field(ge=0, lt=1)] = 0.05
    """Part held out for evaluation, in [0, 1); 0: none."""
    shuffle: bool = True
    """Whether samples come in an order drawn from the seed; false: in the order of the data."""
    num_workers: Annotated[int, Field(ge=0)] = 0
    """Processes that load samples of a user's Dataset; tokens need none."""
    prefetch_factor: Annotated[int, Field(ge=1)] = 2
    """Microbatches kept ready."""
    pin_memory: bool | None = None
    """Whether batches lie in pinned memory; null: on CUDA."""
    drop_last: bool = True
    """Whether a last, smaller microbatch of an epoch is dropped."""
    seed: Annotated[int, Field(ge=0, le=_LARGEST_SEED)] | None = None
    """Seed of the order of samples; null: run.seed."""
    max_steps: Annotated[int, Field(ge=1)] | None = None
    """Updates to train for; null: run.max_steps."""

    @model_validator(mode="after")
    def _check_target_batch(self) -> Self:
        micro, target = self.micro_batch_size, self.target_batch_size
        if target is not None and target % micro:
            raise ConfigError(
                f"data.target_batch_size must be a multiple of data.micro_batch_size ({micro}),"
                f" got {target}; try {-(-target // micro) * micro}"
            )
        return self

    @property
    def update_batch_size(self) -> int:
        """Samples of one update in force."""
        return self.target_batch_size or self.micro_batch_size

    @property
    def accumulation_steps(self) -> int:
        """Microbatches of one update."""
        return self.update_batch_size // self.micro_batch_size

    def build(
        self, *, block_size: int, seed: int, max_eval_batches: int | None, device: torch.device
    ) -> LoadedData:
        """Build loaders, tokenizer and facts.

        Args:
            block_size: Tokens of one sample.
            seed: Seed of the order of samples.
            max_eval_batches: Most microbatches of one evaluation, or None for the whole split.
            device: Where batches go.
        """
        on_cuda = device.type == "cuda"
        loading = {
            "block_size": block_size,
            "seed": seed,
            "max_eval_batches": max_eval_batches,
            "micro_batch_size": self.micro_batch_size,
            "validation_fraction": self.validation_fraction,
            "shuffle": self.shuffle,
            "num_workers": self.num_workers,
            "prefetch_factor": self.prefetch_factor,
            "pin_memory": on_cuda if self.pin_memory is None else self.pin_memory,
            "drop_last": self.drop_last,
        }
        return self._load(loading)

    @abstractmethod
    def _load(self, loading: dict[str, Any]) -> LoadedData:
        """Build what this choice reads; ``loading`` goes to ``data.assemble.Loading``."""


class StdlibDataSettings(DataSettings):
    """The source text of Python's standard library, which every machine has."""

    path: PathText | None = None
    """Folder of the library; null: the running interpreter's."""
    tokenizer: TokenizerName = "byte"
    """byte, char, or file:PATH of a Hugging Face tokenizers JSON."""

    def _load(self, loading: dict[str, Any]) -> LoadedData:
        """Read and tokenise the library; every twentieth file is held out."""
        from speedtronic.data.corpus import build_stdlib_data

        return build_stdlib_data(
            path=self.path,
            tokenizer=self.tokenizer,
            **loading,
        )


class TextDataSettings(DataSettings):
    """Text files of the user's: UTF-8, line endings kept."""

    path: PathList | None = None
    """File, pattern or folder (every *.txt below it), or a list of those; must be given."""
    tokenizer: TokenizerName = "byte"
    """byte, char, or file:PATH of a Hugging Face tokenizers JSON."""

    @model_validator(mode="after")
    def _check_path(self) -> Self:
        self._given_path()
        return self

    def _given_path(self) -> PathList:
        if self.path is None:
            raise ConfigError(
                "data.path must be given for data=text, got null;"
                " set data.path to a file, a folder or a pattern"
            )
        return self.path

    def _load(self, loading: dict[str, Any]) -> LoadedData:
        """Read and tokenise the files; the tail of the text is held out."""
        from speedtronic.data.corpus import build_text_data

        return build_text_data(
            path=self._given_path(),
            tokenizer=self.tokenizer,
            **loading,
        )


class TokensDataSettings(DataSettings):
    """Files of token ids, memory-mapped: what ``python -m speedtronic.data`` writes."""

    path: PathList | None = None
    """File, folder or pattern of .bin or .npy shards, or a list of those; must be given."""
    tokenizer: TokenizerName | None = None
    """Tokenizer the ids belong to; null: the one saved beside the shards."""

    @model_validator(mode="after")
    def _check_path(self) -> Self:
        self._given_path()
        return self

    def _given_path(self) -> PathList:
        if self.path is None:
            raise ConfigError(
                "data.path must be given for data=tokens, got null;"
                " set data.path to a folder written by python -m speedtronic.data"
            )
        return self.path

    def _load(self, loading: dict[str, Any]) -> LoadedData:
        """Map the shards; the tail of the tokens is held out."""
        from speedtronic.data.tokens import build_tokens_data

        return build_tokens_data(
            path=self._given_path(),
            tokenizer=self.tokenizer,
            **loading,
        )


class SyntheticDataSettings(DataSettings):
    """Made-up tokens with something to learn, a stream of its own for every seed."""

    num_tokens: Annotated[int, Field(ge=2)] = 1_000_000
    """Length of the stream, in tokens."""
    vocab_size: Annotated[int, Field(ge=2)] = 256
    """Number of token ids."""

    def _load(self, loading: dict[str, Any]) -> LoadedData:
        """Draw the stream; its tail is held out."""
        from speedtronic.data.synthetic import build_synthetic_data

        return build_synthetic_data(
            num_tokens=self.num_tokens,
            vocab_size=self.vocab_size,
            **loading,
        )


class ForeignDataSettings(DataSettings):
    """A data set or loader of the user's, called when the run is built."""

    factory: Factory
    """The class or function and its arguments."""

    def _load(self, loading: dict[str, Any]) -> LoadedData:
        """Call the user's class and put what it gives into our loader.

        Loader keys that its signature names are passed to it. A ``LoadedData`` is taken as it is.
        """
        from speedtronic.data.dataset import build_dataset_data

        own = {key: value for key, value in loading.items() if key != "max_eval_batches"}
        offered = {"target_batch_size": self.update_batch_size, **own}
        made = self.factory.call(section=self.section, offered=offered)
        return build_dataset_data(made, **loading)
