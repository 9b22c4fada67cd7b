"""Text from a trained model: ``python -m speedtronic.sample RUN prompt='def ' tokens=200``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Annotated

import torch
from pydantic import Field
from torch import nn

from speedtronic.core.arguments import ToolArguments, parse_arguments, run_tool
from speedtronic.core.errors import ConfigError
from speedtronic.core.types import Tokenizer
from speedtronic.data.loaded import LoadedData
from speedtronic.models.generate import generate
from speedtronic.models.gpt import GPT
from speedtronic.runs import load_run

USAGE = (
    "python -m speedtronic.sample RUN [prompt=TEXT] [tokens=200] [temperature=0.8] [top_k=N]"
    " [seed=0] [checkpoint=best|latest|STEP] [device=cpu]"
)
_HELD_OUT_PROMPT_TOKENS = 32
_HELD_OUT_SAMPLE_TOKENS = 160


class SampleArguments(ToolArguments):
    """The words of the command."""

    run: str
    """Run folder."""
    prompt: str = "\n"
    """Text to continue."""
    tokens: Annotated[int, Field(ge=1)] = 200
    """Tokens to write."""
    temperature: Annotated[float, Field(ge=0)] = 0.8
    """Divides the logits; 0 takes the likeliest token each time."""
    top_k: Annotated[int, Field(ge=1)] | None = None
    """Likeliest tokens to draw from; null: all."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Seed of the draws."""
    checkpoint: str = "best"
    """best, latest or a step."""
    device: str = "cpu"
    """Where the model runs."""


def sample_text(  # noqa: PLR0913 - the usual settings of sampling
    model: nn.Module,
    tokenizer: Tokenizer,
    *,
    prompt: str,
    num_tokens: int,
    temperature: float = 0.8,
    top_k: int | None = None,
    seed: int = 0,
) -> str:
    """Continue a prompt; the draws come from a generator of their own.

    Args:
        model: A model that gives (B, T, V) logits for ``input_ids``, like ``GPT``.
        tokenizer: The one the model was trained with.
        prompt: Text to continue, at least one token.
        num_tokens: Tokens to write.
        temperature: Divides the logits; 0 takes the likeliest token each time.
        top_k: Likeliest tokens to draw from, None for all.
        seed: Seed of the draws; equal seeds give equal texts.

    Returns:
        The prompt and its continuation.

    Raises:
        ConfigError: the prompt is empty.
    """
    ids = tokenizer.encode(prompt)
    if len(ids) == 0:
        raise ConfigError("prompt must hold at least one token, got ''; try prompt='\\n'")
    device = next(model.parameters()).device
    written = generate(
        model,
        torch.as_tensor(ids.astype("int64"), device=device),
        max_new_tokens=num_tokens,
        temperature=temperature,
        top_k=top_k,
        generator=torch.Generator(device=device).manual_seed(seed),
    )
    return tokenizer.decode(written.tolist())


def continue_held_out_text(model: nn.Module, data: LoadedData) -> Callable[[], str] | None:
    """Return a function that lets the model continue the start of the held-out text.

    Args:
        model: The model in training.
        data: Its data.

    Returns:
        None where there is no text to continue or the model is no bundled GPT.
    """
    tokenizer = data.tokenizer
    if tokenizer is None or data.evaluation is None or not isinstance(model, GPT):
        return None
    first_ids = next(iter(data.evaluation))["input_ids"][0]
    prompt = tokenizer.decode(first_ids[:_HELD_OUT_PROMPT_TOKENS].tolist())

    def sample() -> str:
        return sample_text(model, tokenizer, prompt=prompt, num_tokens=_HELD_OUT_SAMPLE_TOKENS)

    return sample


def main(argv: Sequence[str]) -> int:
    """Print a sample of a run; the run folder is only read."""
    arguments = parse_arguments(SampleArguments, argv, positional="run", usage=USAGE)
    run = load_run(arguments.run, checkpoint=arguments.checkpoint, device=arguments.device)
    if run.tokenizer is None:
        raise ConfigError(
            f"{arguments.run} was trained on data without a tokenizer, so it writes no text;"
            " use load_run and generate from Python"
        )
    text = sample_text(
        run.model,
        run.tokenizer,
        prompt=arguments.prompt,
        num_tokens=arguments.tokens,
        temperature=arguments.temperature,
        top_k=arguments.top_k,
        seed=arguments.seed,
    )
    sys.stdout.write(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(run_tool(main, usage=USAGE))
