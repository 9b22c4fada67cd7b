"""The loop: ``Trainer.fit`` runs updates to a target, and what must survive is in ``state_dict``.

One update is in ``update``, its record in ``records``, an evaluation in ``evaluate``. Signal
handlers and run folders belong to the runtime; here a stop is a flag that is polled.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from speedtronic.checkpoint.manager import CheckpointManager
from speedtronic.config import SpeedtronicConfig
from speedtronic.core.batch import count_batch, move_batch
from speedtronic.core.errors import NonFiniteError
from speedtronic.core.seeding import restore_rng, rng_state, set_rng_state, snapshot_rng
from speedtronic.core.stopping import StopFlag, StopRequestedError
from speedtronic.core.types import SyncCoordinator
from speedtronic.data.endless import EndlessLoader
from speedtronic.data.feed import BatchFeed
from speedtronic.metrics.logger import MetricLogger
from speedtronic.optim.restore import load_optimizer_state
from speedtronic.precision import PrecisionPlan, resolve_device
from speedtronic.schedule.build import match_base_rates
from speedtronic.trainer.absent import NoCheckpoints, NoSchedule, Schedule
from speedtronic.trainer.cleanup import cleaning_up
from speedtronic.trainer.coordination import NoCoordinator, start_coordinator
from speedtronic.trainer.evaluate import Evaluator
from speedtronic.trainer.fallbacks import Fallbacks
from speedtronic.trainer.features import (
    CompiledForward,
    EagerForward,
    describe,
    enable_gradient_checkpointing,
)
from speedtronic.trainer.heldout import HeldOut
from speedtronic.trainer.options import resolve_options
from speedtronic.trainer.parts import make_logger, make_plan
from speedtronic.trainer.records import StepRecords
from speedtronic.trainer.reporting import Reporter, report_checkpoint, report_end
from speedtronic.trainer.scaling import LossScaling
from speedtronic.trainer.snapshot import (
    copy_tree,
    has_finite_weights,
    load_model_state,
    model_state,
    plain_tree,
)
from speedtronic.trainer.state import FitOutcome, TrainResult
from speedtronic.trainer.update import Attempt, Update, resolve_normalization, updated_parameters


@dataclass
class _Fit:
    """What lives as long as one ``fit``."""

    target: int
    """Absolute step to reach."""
    first_step: int
    """Step it started from."""
    update: Update
    """Makes the attempts."""
    records: StepRecords
    """What the finished updates did."""
    reporter: Reporter
    """Tells the logger about them."""
    deadline_s: float
    """Reading of the clock at which time is up."""
    saved_step: int | None = None
    """Latest step that was given to the checkpoint manager."""
    skipped_in_a_row: int = 0
    """Attempts skipped since the last applied one."""


class Trainer:
    """Trains a model on batches from a loader, up to an absolute step.

    Args:
        model: Any module whose output ``core.loss.resolve_loss`` understands.
        optimizer: Over the model's parameters.
        dataloader: An iterable of microbatches; one with ``state_dict`` resumes at once.
        device: Name or device; the model is moved there.
        config: Settings or a dict of them. None means one microbatch an update, no clipping, no
            compilation, no evaluation, fp32 and a target of 1000 steps.
        scheduler: Advances once an applied update.
        precision: Number format; from the configuration when None.
        logger: Gets events and text; a console logger when None.
        checkpoint_manager: Saves the state; nothing is saved when None.
        coordinator: Called after every applied update.
        max_steps: Target of ``fit``; from the configuration when None.
        start_step: Step to count from; our own loaders start at its batch.
        eval_dataloader: A re-iterable of held-out batches.
        stop: Polled between updates, in evaluations and while waiting for data.
        token_bytes: Bytes each token id stands for, for bits per byte.
        sample_text: Writes a text with the model at each evaluation.
        best: The ``best`` part of a saved state.
        environment: Facts about versions and hardware that belong into a checkpoint.
        claim: Makes the context in which a fit owns its folder.
    """

    def __init__(  # noqa: PLR0913 - the signature of the contract
        self,
        model: nn.Module,
        optimizer: Optimizer,
        dataloader: Iterable[Any],
        *,
        device: str | torch.device,
        config: SpeedtronicConfig | dict[str, Any] | None = None,
        scheduler: Schedule | None = None,
        precision: PrecisionPlan | None = None,
        logger: MetricLogger | None = None,
        checkpoint_manager: CheckpointManager | None = None,
        coordinator: SyncCoordinator | None = None,
        max_steps: int | None = None,
        start_step: int = 0,
        eval_dataloader: Iterable[Any] | None = None,
        stop: StopFlag | None = None,
        token_bytes: Any = None,
        sample_text: Callable[[], str] | None = None,
        best: dict[str, Any] | None = None,
        environment: Mapping[str, Any] | None = None,
        claim: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        self.config = SpeedtronicConfig.from_dict(config) if isinstance(config, dict) else config
        self.device = resolve_device(device)
        self._options = resolve_options(self.config)
        self.model = model
        self.optimizer = optimizer
        self.dataloader = dataloader
        self.scheduler: Schedule = NoSchedule() if scheduler is None else scheduler
        self.step = self.attempts = start_step
        self.samples = 0
        self.tokens = 0
        self.exact = True
        self.logger = make_logger(self._options) if logger is None else logger
        self._fallbacks = Fallbacks(self.logger)
        self.precision = precision or make_plan(
            self.config,
            device=self.device,
            on_fallback=lambda reason: self.add_fallback("precision", reason),
        )
        self.checkpoint_manager: CheckpointManager | NoCheckpoints = (
            NoCheckpoints() if checkpoint_manager is None else checkpoint_manager
        )
        self.coordinator: SyncCoordinator = NoCoordinator() if coordinator is None else coordinator
        self.max_steps = self._options.max_steps if max_steps is None else max_steps
        self.outcome: FitOutcome | None = None
        self._has_compile_failed = False
        self._stop = StopFlag() if stop is None else stop
        if start_step and isinstance(dataloader, EndlessLoader):
            # The batch of an attempt is a function of its number, and attempts count from there.
            dataloader.load_state_dict(
                {"microbatch": start_step * self._options.accumulation_steps}
            )
        self._feed = BatchFeed(dataloader, stop=self._stop, log=self.logger.info)
        self._environment = dict(environment or {})
        self._claim = claim
        self._scaling = LossScaling(self.precision)
        self._coordinator_state: dict[str, Any] | None = None
        self._held_out = HeldOut(
            None
            if eval_dataloader is None
            else Evaluator(
                model,
                batches=eval_dataloader,
                device=self.device,
                precision=self.precision,
                max_batches=self._options.max_eval_batches,
                token_bytes=token_bytes,
                sample_text=sample_text,
                stop=self._stop,
            ),
            logger=self.logger,
            every_steps=self._options.eval_every_steps,
            patience=self._options.patience,
        )
        self._held_out.restore(best)
        reason = enable_gradient_checkpointing(model, setting=self._options.gradient_checkpointing)
        if reason is not None:
            self.add_fallback("gradient_checkpointing", reason)

    # ------------------------------------------------------------------ the way through

    def fit(self, max_steps: int | None = None) -> TrainResult:
        """Train until the absolute step ``max_steps``; the configured target when None.

        A target at or below the present step runs nothing and writes nothing, but for an evaluation
        there that a stop cut short. ``outcome`` says afterwards how the fit ended.

        Raises:
            ValueError: the target is below 1.
            NonFiniteError: too many attempts in a row were skipped.
        """
        target = self.max_steps if max_steps is None else max_steps
        if target < 1:
            raise ValueError(f"max_steps must be at least 1, got {target}; give a target above 0")
        if target <= self.step and not self._held_out.is_due:
            self.outcome = self._describe_outcome(
                "completed", has_run=False, reason="the target was reached before"
            )
            return TrainResult(self.step, self.samples, self.tokens, None, 0.0, [])
        ends = (self.coordinator.stop, self._feed.close, self.checkpoint_manager.close)
        with self._claim():
            fit: _Fit | None = None
            try:
                with cleaning_up(*ends, report=self.logger.error):
                    fit = self._prepare(target)
                    self._start(fit)
                    while self.step < target and not self._must_stop(fit):
                        self._advance(fit)
                    return self._finish(fit)
            except BaseException as error:
                self._fail(error, fit)
                raise

    train = fit

    def _prepare(self, target: int) -> _Fit:
        """Put model, scaler, gradients, clock and data in place."""
        self.model.to(self.device).train()
        forward = self._select_forward()
        self.optimizer.zero_grad(set_to_none=True)
        num_microbatches = self._options.accumulation_steps
        records = StepRecords(
            first_step=self.step,
            samples=self.samples,
            tokens=self.tokens,
            micro_batches=num_microbatches,
        )
        update = Update(
            forward,
            feed=self._feed,
            optimizer=self.optimizer,
            parameters=updated_parameters(self.model, self.optimizer),
            scaler=self._scaling.renew(),
            precision=self.precision,
            device=self.device,
            normalization=resolve_normalization(self._options.loss_normalization, num_microbatches),
            num_microbatches=num_microbatches,
            grad_clip=self._options.grad_clip,
        )
        minutes = self._options.max_minutes
        deadline_s = float("inf") if minutes is None else time.perf_counter() + 60 * minutes
        reporter = Reporter(
            self.logger,
            records=records,
            update=update,
            optimizer=self.optimizer,
            device=self.device,
        )
        return _Fit(target, self.step, update, records, reporter, deadline_s)

    def _start(self, fit: _Fit) -> None:
        """Start the coordinator, tell the logger, and make up for an evaluation cut short."""
        if self.checkpoint_manager.on_event is None:
            self.checkpoint_manager.on_event = partial(report_checkpoint, self.logger)
        start_coordinator(self.coordinator, self._coordinator_state)
        self._coordinator_state = None
        self.logger.event(
            "train_start",
            {
                "step": self.step,
                "target": fit.target,
                "device": str(self.device),
                "precision": self.precision.mode,
                "micro_batches": self._options.accumulation_steps,
            },
        )
        self._fallbacks.announce()
        if self._held_out.make_up(self.step):
            self._save(fit)

    def _advance(self, fit: _Fit) -> None:
        """Make one attempt, and follow an applied one up in the order of the contract."""
        attempt = self._attempt(fit)
        if attempt is None:
            return
        if attempt.skip_reason is not None:
            self._skip(fit, attempt.skip_reason)
            return
        self.step += 1
        self.samples += attempt.samples
        self.tokens += attempt.tokens
        fit.skipped_in_a_row = 0
        self.scheduler.step()
        self._coordinate()
        self._record(fit, attempt)
        is_best = self._held_out.evaluate_if_due(self.step, target=fit.target)
        self._save_if_due(fit, is_best=is_best)

    def _finish(self, fit: _Fit) -> TrainResult:
        """Log and save the last step, and say how the fit ended."""
        fit.reporter.flush()
        if self.step > fit.first_step:
            if not has_finite_weights(self.model):
                raise NonFiniteError(
                    f"optimizer.lr: the weights are not finite after step {self.step}; older"
                    " checkpoints are kept; lower optimizer.lr or set optimizer.grad_clip"
                )
            if fit.saved_step != self.step:
                self._save(fit)
        self.checkpoint_manager.close()
        early_end = self._held_out.end_reason
        is_at_target = self.step >= fit.target and not self._held_out.is_due
        is_complete = is_at_target or early_end is not None
        self.outcome = self._describe_outcome(
            "completed" if is_complete else "interrupted",
            updates=len(fit.records),
            reason=early_end if is_complete else self._stop.reason or "run.max_minutes is over",
        )
        result = TrainResult(
            steps=self.step,
            samples=self.samples,
            tokens=self.tokens,
            final_loss=fit.records.final_loss,
            elapsed_s=fit.records.elapsed_s,
            metrics=fit.records,  # type: ignore[arg-type]  # becomes a list when it is read
        )
        self._report_end(
            self.outcome, {"final_loss": result.final_loss, "elapsed_s": result.elapsed_s}
        )
        return result

    # ------------------------------------------------------------------ one step

    def _attempt(self, fit: _Fit) -> Attempt | None:
        """Make one attempt; None when a stop was requested while it waited for data."""
        # Dropout of its first microbatches has drawn by the time a stop comes between them.
        before = snapshot_rng() if self._options.accumulation_steps > 1 else None
        try:
            attempt = fit.update.attempt()
        except BaseException as error:
            self._feed.rollback()
            fit.update.clear()
            if not isinstance(error, StopRequestedError):
                raise
            if before is not None:
                restore_rng(before)
            return None
        self._feed.commit()
        self.attempts += 1
        return attempt

    def _skip(self, fit: _Fit, reason: str) -> None:
        """Report an attempt that was not applied; too many in a row end the run."""
        fit.skipped_in_a_row += 1
        self.logger.event("optimizer_step_skipped", {"step": self.step + 1, "reason": reason})
        if fit.skipped_in_a_row < self._options.max_skipped_steps:
            return
        advice = "lower optimizer.lr or look at the data there"
        if not has_finite_weights(self.model):  # finite loss, broken gradient, nobody measured it
            advice = "that update broke the weights: set optimizer.grad_clip and resume before it"
        raise NonFiniteError(
            f"trainer.max_skipped_steps: {fit.skipped_in_a_row} attempts in a row were skipped "
            f"({reason}); the last good step is {self.step}; {advice}"
        )

    def _coordinate(self) -> None:
        wants_reset = self.coordinator.after_optimizer_step(self.model, self.step)
        if wants_reset and self._options.reset_inner_optimizer:
            self.optimizer.state.clear()

    def _record(self, fit: _Fit, attempt: Attempt) -> None:
        fit.reporter.add(
            attempt,
            step=self.step,
            samples=self.samples,
            tokens=self.tokens,
            skipped=self.attempts - self.step,
            is_last=self.step == fit.target,
        )

    def _save_if_due(self, fit: _Fit, *, is_best: bool) -> None:
        manager = self.checkpoint_manager
        manager.poll()
        if manager.should_save(self.step) or (is_best and manager.keep_best > 0):
            self._save(fit)

    def _save(self, fit: _Fit) -> None:
        fit.saved_step = self.step
        if not self.checkpoint_manager.enabled:
            return
        metric = self._held_out.history.loss_at(self.step)
        self.checkpoint_manager.save(self.step, self._live_state(), metric=metric)

    def _must_stop(self, fit: _Fit) -> bool:
        if self._stop.requested or self._held_out.end_reason is not None:
            return True
        return time.perf_counter() >= fit.deadline_s

    # ------------------------------------------------------------------ state

    def state_dict(self) -> dict[str, Any]:
        """Return all that must survive a restart, as plain containers and copies of the tensors."""
        state: dict[str, Any] = copy_tree(self._live_state())
        return state

    def _live_state(self) -> dict[str, Any]:
        """Return the same with the live tensors, for a writer that copies them itself."""
        coordinator_state = self._coordinator_state or self.coordinator.state_dict()
        state: dict[str, Any] = plain_tree(
            {
                "model": model_state(self.model),
                "optimizer": self.optimizer.state_dict(),
                "scheduler": self.scheduler.state_dict(),
                "scaler": self._scaling.state_dict(),
                "step": self.step,
                "samples": self.samples,
                "tokens": self.tokens,
                "attempt": self.attempts,
                "rng": rng_state(),
                "data": self._feed.state_dict(),
                "coordinator": coordinator_state,
                "config": self.config and self.config.to_dict(redact_secrets=True),
                "precision": {**asdict(self.precision), "dtype": str(self.precision.dtype)},
                "environment": self._environment,
                "best": self._held_out.history.to_dict(),
                "fallbacks": self._fallbacks.to_list(),
                "exact": self.exact,
            }
        )
        return state

    def resume(self, state: Mapping[str, Any]) -> None:
        """Take over a saved state: what was saved is restored, and compared with nothing.

        Scaler and coordinator state are applied by the next ``fit``, the rest at once. The state
        itself is left alone: its tensors are copied.

        Args:
            state: From ``state_dict`` or a checkpoint.
        """
        self.model.to(self.device)
        load_model_state(self.model, state["model"])
        load_optimizer_state(self.optimizer, state["optimizer"])
        if state.get("scheduler"):
            self.scheduler.load_state_dict(copy_tree(state["scheduler"]))
            if isinstance(self.scheduler, LRScheduler):
                match_base_rates(self.scheduler)
        self.step = state["step"]
        self.samples = state["samples"]
        self.tokens = state["tokens"]
        self.attempts = state.get("attempt", self.step)
        self._scaling.stage(copy_tree(state.get("scaler")))
        self._coordinator_state = copy_tree(state.get("coordinator"))
        self._held_out.restore(state.get("best"))
        self._fallbacks.restore(state.get("fallbacks") or ())
        self.exact = self.exact and state.get("exact", True)
        if state.get("data") is not None:
            self._feed.load_state_dict(state["data"])
        if state.get("rng") is not None:  # last: replaying a loader draws from it
            set_rng_state(state["rng"])

    # ------------------------------------------------------------------ parts

    def add_fallback(self, kind: str, reason: str, *, exact: bool = True) -> None:
        """Note that something runs otherwise than asked; announced when a fit starts.

        Args:
            kind: Which part.
            reason: What, why, and what is used instead.
            exact: Whether the run still equals an undisturbed one bit for bit.
        """
        self.exact = self.exact and exact
        self._fallbacks.add(kind, reason, step=self.step)

    def _select_forward(self) -> EagerForward | CompiledForward:
        if not self._options.compile_model or self._has_compile_failed:
            return EagerForward(self.model, on_odd_loss=partial(self.add_fallback, "loss"))
        return CompiledForward(
            self.model,
            mode=self._options.compile_mode,
            on_compiled=self._note_compiled,
            on_fallback=self._note_compile_fallback,
        )

    def _note_compiled(self, seconds: float) -> None:
        self.logger.event(
            "compile",
            {"step": self.step, "mode": self._options.compile_mode, "seconds": seconds},
        )

    def _note_compile_fallback(self, reason: str) -> None:
        self.exact = False
        self._has_compile_failed = True
        self._fallbacks.add("compile", reason, step=self.step, event="compile")

    def _describe_outcome(
        self, status: str, *, has_run: bool = True, updates: int = 0, reason: str | None = None
    ) -> FitOutcome:
        history = self._held_out.history
        return FitOutcome(
            status=status,
            has_run=has_run,
            updates=updates,
            signal_number=self._stop.signal_number,
            reason=reason,
            best_eval_loss=history.best_loss,
            best_eval_step=history.best_step,
            final_eval_loss=history.last_loss,
            skipped_steps=self.attempts - self.step,
            fallbacks=tuple(self._fallbacks.to_list()),
            exact=self.exact,
        )

    def _fail(self, error: BaseException, fit: _Fit | None) -> None:
        """Say that the fit failed; nothing is saved, the last good checkpoint stays the newest."""
        if fit is not None and isinstance(error, NonFiniteError):
            fit.reporter.flush()
        self.outcome = self._describe_outcome("failed", reason=describe(error))
        self.logger.error(f"training failed after step {self.step}: {describe(error)}")
        self._report_end(self.outcome, {"error": describe(error)})

    def _report_end(self, outcome: FitOutcome, facts: Mapping[str, Any]) -> None:
        counters = {"step": self.step, "samples": self.samples, "tokens": self.tokens}
        report_end(self.logger, outcome, facts={**counters, **facts})

    def _move_batch(self, batch: Any) -> Any:
        return move_batch(batch, self.device)

    def _batch_size_and_tokens(self, batch: Any) -> tuple[int, int]:
        count = count_batch(batch)
        return count.samples, count.tokens


TrainingEngine = Trainer
SpeedtronicTrainer = Trainer
