"""One start of a run: own its folder, train, and leave a folder that tells what happened."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from speedtronic.assembly import Runtime, assemble, choose_folder
from speedtronic.config import SpeedtronicConfig
from speedtronic.config.muon import HybridSettings
from speedtronic.core.errors import SpeedtronicError
from speedtronic.core.files import write_json
from speedtronic.core.stopping import StopFlag
from speedtronic.optim.routing_table import describe_routes
from speedtronic.ownership import RunOwner
from speedtronic.run_folder.commands import resume_command, shown_path
from speedtronic.run_folder.records import (
    ResultRecord,
    begin_segment,
    end_segment,
    read_result,
    total_elapsed_s,
    write_result,
)
from speedtronic.run_folder.summary import render_summary
from speedtronic.sample import continue_held_out_text
from speedtronic.trainer import FitOutcome, TrainResult


@dataclass(frozen=True, kw_only=True)
class SessionReport:
    """What one start of a run came to."""

    result: ResultRecord
    """What result.json says about the whole run."""
    train_result: TrainResult
    """What the trainer returned for this start."""
    signal_number: int | None
    """The signal that stopped it, None when none did."""

    @property
    def exit_status(self) -> int:
        """0, or 128 + the signal's number."""
        return 0 if self.signal_number is None else 128 + self.signal_number


def run_command(  # noqa: PLR0913 - what the command line and Python each know of a start
    config: SpeedtronicConfig,
    *,
    run_dir: Path | None = None,
    argv: Sequence[str] | None = None,
    resume_notes: Sequence[str] = (),
    warnings: Sequence[str] = (),
    resume: bool = False,
    device: str | torch.device | None = None,
) -> SessionReport:
    """Run one start of a run inside its folder.

    Args:
        config: The configuration, with the effective target in it.
        run_dir: The run folder; from the configuration when None.
        argv: The command line, for run.json; this process's when None.
        resume_notes: Lines about how the configuration came about, for the log.
        warnings: The same, for what the user should know.
        resume: Whether to continue the run in the folder; ``config.resume`` means the same.
        device: Overrides ``run.device``.

    Raises:
        RunFolderError: the folder is in use, or holds a run that would be lost.
    """
    resume = resume or config.resume
    owner = RunOwner(choose_folder(config, run_dir=run_dir), config=config, resume=resume)
    stop = StopFlag()
    with ExitStack() as held:
        held.enter_context(owner.hold())
        held.enter_context(stop.catch_signals())
        runtime = assemble(config, resume=resume, device=device, owner=owner, stop=stop)
        held.callback(runtime.logger.close)
        for note in resume_notes:
            runtime.logger.info(note)
        for warning in warnings:
            runtime.logger.warning(warning)
        return _train(runtime, argv=argv, stop=stop)


def _train(runtime: Runtime, *, argv: Sequence[str] | None, stop: StopFlag) -> SessionReport:
    """Fit, and write down what came of it, however it ends."""
    folder, trainer = runtime.folder, runtime.trainer
    is_command = argv is not None
    begin_segment(folder, argv=argv or sys.argv, facts=describe_run(runtime), step=trainer.step)
    started = time.perf_counter()
    try:
        # A start that trains nothing leaves the folder telling how the run was trained.
        target = runtime.config.effective_max_steps
        trains = trainer.step < target or not folder.config_json.exists()
        if trains:
            write_json(folder.config_json, runtime.config.to_dict(redact_secrets=True))
        if runtime.data.tokenizer is not None:
            write_json(folder.tokenizer, runtime.data.tokenizer.to_dict())
        announce(runtime)
        if trains:
            record_routing(runtime)
        result = trainer.fit()
    except BaseException as error:
        elapsed_s = time.perf_counter() - started
        if folder.latest_step() is not None:
            runtime.logger.info(f"resume: {_resume_line(runtime, is_command=is_command)}")
        write_result(folder, _close_segment(runtime, elapsed_s=elapsed_s, error=error))
        raise
    record = _close_segment(runtime, elapsed_s=result.elapsed_s, final_loss=result.final_loss)
    earlier = read_result(folder)
    if earlier is not None and trainer.outcome is not None and not trainer.outcome.has_run:
        runtime.logger.info(
            f"nothing to do: the run is at step {trainer.step:,} and its target is"
            f" {runtime.config.effective_max_steps:,}; give data.max_steps a higher value to go on"
        )
        record = ResultRecord(**earlier)
    else:
        if record.final_loss is None and earlier is not None:
            # Only an evaluation was made up for: the last update is an earlier start's.
            record = replace(record, final_loss=earlier["final_loss"])
        write_result(folder, record)
    is_done = record.status == "completed"
    # A run at its target goes on only towards another one.
    further = [f"data.max_steps={2 * trainer.step}"] if is_done else []
    conclude(runtime, record, resume=_resume_line(runtime, is_command=is_command, further=further))
    return SessionReport(
        result=record,
        train_result=result,
        signal_number=stop.signal_number if record.status == "interrupted" else None,
    )


def _close_segment(
    runtime: Runtime,
    *,
    elapsed_s: float,
    final_loss: float | None = None,
    error: BaseException | None = None,
) -> ResultRecord:
    """Close the segment in run.json and return the record of the whole run so far."""
    trainer, folder = runtime.trainer, runtime.folder
    outcome = trainer.outcome or FitOutcome(status="failed")
    end_segment(
        folder,
        status=outcome.status,
        steps=trainer.step,
        elapsed_s=elapsed_s,
        error=None if error is None else describe_error(error),
    )
    total_s = total_elapsed_s(folder)
    return ResultRecord(
        status=outcome.status,
        steps=trainer.step,
        samples=trainer.samples,
        tokens=trainer.tokens,
        final_loss=final_loss,
        final_eval_loss=outcome.final_eval_loss,
        best_eval_loss=outcome.best_eval_loss,
        best_eval_step=outcome.best_eval_step,
        elapsed_s=total_s,
        tokens_per_sec=trainer.tokens / total_s if total_s > 0 else None,
        skipped_steps=outcome.skipped_steps,
        fallbacks=outcome.fallbacks,
        exact=outcome.exact,
        run_dir=str(folder.path),
        error=None if error is None else describe_error(error),
    )


def describe_error(error: BaseException) -> str:
    """Return an error as one line; ours need no name in front."""
    text = " ".join(str(error).split())
    if isinstance(error, SpeedtronicError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def describe_run(runtime: Runtime) -> dict[str, Any]:
    """Return the facts of run.json: data, sizes and what was chosen."""
    return {
        "data": {**runtime.data.facts, "vocab_size": runtime.data.vocab_size},
        "model": {"parameters": sum(p.numel() for p in runtime.model.parameters())},
        "device": str(runtime.trainer.device),
        "precision": runtime.precision.mode,
        "threads": torch.get_num_threads(),
        "environment": runtime.environment,
        "tags": list(runtime.config.tags),
    }


def announce(runtime: Runtime) -> None:
    """Log what is about to be trained, and on what."""
    config, facts = runtime.config, describe_run(runtime)
    threads = facts["threads"]
    runtime.logger.info(
        f"{type(runtime.model).__name__} with {facts['model']['parameters']:,} parameters in"
        f" {facts['precision']} on {facts['device']}, {threads} thread{'s' * (threads != 1)},"
        f" seed {config.run.seed}"
    )
    runtime.logger.info(
        f"to step {config.effective_max_steps:,}, each of {config.data.update_batch_size} samples;"
        f" folder {shown_path(runtime.folder.path)}"
    )


def record_routing(runtime: Runtime) -> None:
    """Log and save which algorithm trains which parameter, where there is more than one."""
    settings = runtime.config.optimizer
    if not isinstance(settings, HybridSettings):
        return
    records = settings.routing_records(settings.route(model=runtime.model))
    write_json(runtime.folder.routing, records)
    for line in describe_routes(records):
        runtime.logger.info(line)


def _resume_line(runtime: Runtime, *, is_command: bool, further: Sequence[str] = ()) -> str:
    """Return the line that goes on with a run.

    The run of a Python program goes on through the command line too, not through that program.
    """
    return resume_command(
        runtime.folder.path,
        program=None if is_command else "speedtronic",
        allow_targets=runtime.config.extras.allow_targets,
        overrides=further,
    )


def conclude(runtime: Runtime, record: ResultRecord, *, resume: str) -> None:
    """Draw the curves and print the closing summary with a sample of what the model writes."""
    folder, config = runtime.folder, runtime.config
    if config.logging.plots and folder.metrics.exists():
        from speedtronic.run_folder.plots import draw_curves

        try:
            draw_curves(folder.metrics, folder.curves, title=config.run.name)
        except OSError as error:  # the run itself is complete and saved
            runtime.logger.warning(f"{folder.curves} was not drawn: {error}")
    sample = continue_held_out_text(runtime.model, runtime.data)
    render_summary(
        record,
        folder=folder,
        resume=resume,
        sample=None if sample is None else sample(),
        console=runtime.logger.console,
    )
