"""Measuring a trained model: ``python -m speedtronic.evaluate RUN [data.path=book.txt]``."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from speedtronic.assembly import build_data
from speedtronic.config.precision import resolve_precision
from speedtronic.core.arguments import ToolArguments, parse_arguments, run_tool
from speedtronic.core.errors import ConfigError
from speedtronic.core.stopping import StopFlag
from speedtronic.data.corpus import read_texts, text_corpus
from speedtronic.data.evaluation import EvaluationBatches
from speedtronic.precision import resolve_device
from speedtronic.run_folder.layout import RunFolder, read_json
from speedtronic.runs import Run, load_run
from speedtronic.trainer.evaluate import EvaluationReport, Evaluator

USAGE = (
    "python -m speedtronic.evaluate RUN [data.path=TEXT] [max_batches=N]"
    " [checkpoint=best|latest|STEP] [device=cpu]"
)


class EvaluateArguments(ToolArguments):
    """The words of the command."""

    run: str
    """Run folder."""
    data_path: str | None = None
    """A text of its own to measure, whole; null: the run's held-out split."""
    max_batches: Annotated[int, Field(ge=1)] | None = None
    """Most batches, evenly spread; null: all."""
    checkpoint: str = "best"
    """best, latest or a step."""
    device: str = "cpu"
    """Where the model runs."""


def evaluate_run(
    run: Run, *, data_path: str | None = None, max_batches: int | None = None
) -> EvaluationReport:
    """Measure a loaded run on its held-out split, or on a text of its own.

    Args:
        run: From ``load_run``.
        data_path: A UTF-8 text, pattern or folder; every token of it but the first is predicted.
        max_batches: Most batches, evenly spread; None for all.

    Raises:
        ConfigError: there is nothing to measure on.
    """
    device = next(run.model.parameters()).device
    batches: Iterable[Any] | None
    if data_path is None:
        evaluation = run.config.evaluation.replace(max_batches=max_batches)
        data = build_data(run.config.replace(evaluation=evaluation), device=device)
        _check_same_data(run, data.facts)
        batches = data.evaluation
    else:
        batches = _batches_of_text(run, data_path, max_batches=max_batches)
    if batches is None:
        raise ConfigError(
            f"{run.folder} held nothing out (data.validation_fraction=0); give data.path=TEXT"
        )
    evaluator = Evaluator(
        run.model,
        batches=batches,
        device=device,
        precision=resolve_precision(run.config.precision, device),
        max_batches=None,
        token_bytes=None if run.tokenizer is None else run.tokenizer.token_bytes(),
        sample_text=None,
        stop=StopFlag(),
    )
    return evaluator.run()


def main(argv: Sequence[str]) -> int:
    """Print the measures of a run; the run folder is only read."""
    arguments = parse_arguments(EvaluateArguments, argv, positional="run", usage=USAGE)
    device = resolve_device(arguments.device)
    run = load_run(arguments.run, checkpoint=arguments.checkpoint, device=device)
    report = evaluate_run(run, data_path=arguments.data_path, max_batches=arguments.max_batches)
    part = "the whole of" if arguments.max_batches is None else "batches spread over"
    measured_on = f"{part} {arguments.data_path or 'the held-out split'}"
    lines = [f"{arguments.run}, step {run.step}, on {measured_on}:"]
    for name, value in report.to_payload().items():
        if isinstance(value, float):
            lines.append(f"  {name.replace('_', ' '):<14} {value:.4f}")
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


def _batches_of_text(run: Run, path: str, *, max_batches: int | None) -> EvaluationBatches:
    if run.tokenizer is None:
        raise ConfigError(
            f"data.path needs a tokenizer, and {run.folder} was trained without one; leave it out"
        )
    text = "".join(text for _, text in read_texts(text_corpus(path)) if text is not None)
    return EvaluationBatches(
        run.tokenizer.encode(text),
        block_size=run.config.effective_block_size,
        micro_batch_size=run.config.data.micro_batch_size,
        max_batches=max_batches,
    )


def _check_same_data(run: Run, facts: dict[str, Any]) -> None:
    """Say so when the held-out split is no longer the text that was held out in training."""
    saved = (read_json(RunFolder(Path(run.folder)).run_json) or {}).get("facts", {}).get("data", {})
    if "sha256" in saved and "sha256" in facts and saved["sha256"] != facts["sha256"]:
        sys.stderr.write(
            "warning: the text has changed since the run was trained: what is held out now may"
            " have been trained on\n"
        )


if __name__ == "__main__":
    sys.exit(run_tool(main, usage=USAGE))
