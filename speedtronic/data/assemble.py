"""From a training part and a held-out part to the loaders of a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypedDict

from speedtronic.core.errors import DataError
from speedtronic.core.types import JSON, Tokenizer
from speedtronic.data.loaded import LoadedData

if TYPE_CHECKING:
    from speedtronic.data.stream import TokenStream


class LoadingOptions(TypedDict, total=False):
    """The keywords of every ``build_*_data`` function; ``Loading`` has meaning and default."""

    block_size: int
    micro_batch_size: int
    validation_fraction: float
    shuffle: bool
    num_workers: int
    prefetch_factor: int
    pin_memory: bool
    drop_last: bool
    seed: int
    max_eval_batches: int | None


@dataclass(frozen=True, kw_only=True)
class Loading:
    """How samples become batches.

    Raises:
        DataError: a value is out of range.
    """

    block_size: int = 128
    """Positions in a row of token ids."""
    micro_batch_size: int = 16
    """Samples in a microbatch."""
    validation_fraction: float = 0.05
    """Part held out, in [0, 1); 0 holds nothing out."""
    shuffle: bool = True
    """Whether each epoch has an order of its own."""
    num_workers: int = 0
    """Processes that load samples of a user's data set; token ids need none."""
    prefetch_factor: int = 2
    """Microbatches kept ready."""
    pin_memory: bool = False
    """Whether batches lie in page-locked memory."""
    drop_last: bool = True
    """Whether samples that fill no whole microbatch are left out of an epoch."""
    seed: int = 0
    """Seed of the order."""
    max_eval_batches: int | None = None
    """At most so many held-out batches; None for all."""

    def __post_init__(self) -> None:
        if not 0 <= self.validation_fraction < 1:
            raise DataError(
                "data.validation_fraction must be at least 0 and below 1, got "
                f"{self.validation_fraction}"
            )


def assemble(
    train: TokenStream,
    held_out: TokenStream,
    *,
    tokenizer: Tokenizer | None,
    vocab_size: int,
    facts: dict[str, JSON],
    loading: Loading,
) -> LoadedData:
    """Put loaders around token streams.

    Args:
        train: What is trained on.
        held_out: What is evaluated on; left alone when ``validation_fraction`` is 0.
        tokenizer: What the ids stand for.
        vocab_size: Number of ids.
        facts: What was read; the counts of tokens are added.
        loading: How samples become batches.

    Raises:
        DataError: a part is shorter than a block, or the training part than a microbatch.
    """
    from speedtronic.data.evaluation import EvaluationBatches
    from speedtronic.data.loader import TokenLoader
    from speedtronic.data.pinning import resolve_pin_memory

    if len(train) < loading.block_size + 1:
        key = "data.num_tokens" if facts["source"] == "synthetic" else "data.path"
        raise DataError(
            f"{key}: the training part has {len(train)} tokens, fewer than a block needs "
            f"(data.block_size + 1 = {loading.block_size + 1}); give more data or a smaller "
            "data.block_size"
        )
    pin_memory = resolve_pin_memory(wanted=loading.pin_memory)
    evaluation = None
    if loading.validation_fraction > 0:
        evaluation = EvaluationBatches(
            held_out,
            block_size=loading.block_size,
            micro_batch_size=loading.micro_batch_size,
            max_batches=loading.max_eval_batches,
            pin_memory=pin_memory,
        )
    loader = TokenLoader(
        train,
        block_size=loading.block_size,
        micro_batch_size=loading.micro_batch_size,
        seed=loading.seed,
        shuffle=loading.shuffle,
        drop_last=loading.drop_last,
        prefetch_factor=loading.prefetch_factor,
        pin_memory=pin_memory,
    )
    return LoadedData(
        train=loader,
        evaluation=evaluation,
        tokenizer=tokenizer,
        vocab_size=vocab_size,
        facts={
            **facts,
            "tokenizer": None if tokenizer is None else tokenizer.name,
            "vocab_size": vocab_size,
            "train_tokens": len(train),
            "held_out_tokens": len(held_out),
        },
    )
