"""Write a corpus as token shards: ``python -m speedtronic.data OUT path=TEXT tokenizer=byte``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from speedtronic.core.arguments import ToolArguments, parse_arguments, run_tool
from speedtronic.data.corpus import stdlib_corpus, text_corpus
from speedtronic.data.tokens import DEFAULT_SHARD_TOKENS, write_shards

USAGE = (
    "python -m speedtronic.data OUT [path=FILE|FOLDER|PATTERN] [tokenizer=byte|char|file:PATH]"
    f" [format=bin|npy] [shard_tokens={DEFAULT_SHARD_TOKENS}]"
)


class WriteArguments(ToolArguments):
    """The words of the command."""

    out: str
    """Folder to make."""
    path: str | None = None
    """Text file, folder or pattern; without it the running interpreter's standard library."""
    tokenizer: str = "byte"
    """byte, char or file:PATH."""
    format: Literal["bin", "npy"] = "bin"
    """Kind of file."""
    shard_tokens: Annotated[int, Field(ge=1)] = DEFAULT_SHARD_TOKENS
    """Ids in a full shard."""


def main(argv: Sequence[str]) -> int:
    """Write shards and say what was written."""
    arguments = parse_arguments(WriteArguments, argv, positional="out", usage=USAGE)
    corpus = stdlib_corpus() if arguments.path is None else text_corpus(arguments.path)
    out = Path(arguments.out)
    description = write_shards(
        out,
        corpus,
        tokenizer=arguments.tokenizer,
        shard_tokens=arguments.shard_tokens,
        suffix=f".{arguments.format}",
    )
    shards = description["shards"]
    assert isinstance(shards, list)
    print(
        f"wrote {description['num_tokens']} tokens ({description['dtype']}, vocabulary "
        f"{description['vocab_size']}) in {len(shards)} shards to {out}; train with "
        f"data=tokens data.path={out}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(run_tool(main, usage=USAGE))
