"""The command line: overrides in, one run (or Hydra's multirun) out, one line for a mistake.

A single run is composed, checked and claimed before Hydra writes its first file, so that a refused
command changes nothing. torch is imported last, when all that was typed is known to be right.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from speedtronic.command import CONFIG_NAME, read_command
from speedtronic.config.describe import describe_config
from speedtronic.config.groups import conf_folder
from speedtronic.config.load import load_config
from speedtronic.config.resume import hide_secrets, save_merged
from speedtronic.core.errors import ConfigError, RunFolderError, SpeedtronicError
from speedtronic.launch import VERSION_BASE, RunPlan, explain, plan_run
from speedtronic.run_folder.claim import claim_folder
from speedtronic.run_folder.layout import RunFolder

if TYPE_CHECKING:
    from speedtronic.config import SpeedtronicConfig

_FULL_ERROR = "HYDRA_FULL_ERROR"
_INTERRUPTED_BY_USER = 130


class JobFailedError(SpeedtronicError):
    """A job of a multirun failed and has said why; the others go on."""


@dataclass(frozen=True)
class Outcome:
    """How a run ended that raised nothing."""

    value: float | None
    """What a sweeper gets: the result that extras.return_metric names."""
    exit_status: int = 0
    """128 + the signal that stopped it, or 0."""


def main() -> None:
    """Run the command line and exit with its status."""
    raise SystemExit(run(sys.argv[1:]))


def run(argv: Sequence[str], *, conf: Path | None = None) -> int:
    """Run one command line.

    Args:
        argv: The words after the program's name.
        conf: The folder of ``config.yaml``; the one that belongs to the program by default.

    Returns:
        The exit status: 0 done, 1 a fault of the run, 2 something the user got wrong, 128 + signal.
    """
    try:
        return _run(argv, conf=conf or conf_folder())
    except SpeedtronicError as error:
        return error.exit_status if isinstance(error, JobFailedError) else _report(error)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return _INTERRUPTED_BY_USER
    except BrokenPipeError:
        # The reader (head, less) has enough; Python would complain once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    except Exception:  # noqa: BLE001 - a bug of ours or the user's code: show all of it
        traceback.print_exc()
        return 1


# The three ways a command goes --------------------------------------------------------------------


def _run(argv: Sequence[str], *, conf: Path) -> int:
    command = read_command(argv)
    plan = None
    if not command.is_question and not command.is_multirun:
        plan = plan_run(command, conf=conf)
    if plan is None:
        words = [*command.flags, *command.hydra_overrides]
        _call_hydra(Job(os.environ.get(_FULL_ERROR)), words, conf=conf)
        return 0
    try:
        return _run_once(plan, argv=argv, conf=conf)
    finally:
        plan.claim.release()


def _run_once(plan: RunPlan, *, argv: Sequence[str], conf: Path) -> int:
    """Train a planned run as the task of Hydra's main, and return the exit status."""
    ended: list[Outcome | Exception] = []
    full_error = os.environ.get(_FULL_ERROR)

    def task(_cfg: DictConfig) -> float | None:
        with _environment_variable(_FULL_ERROR, full_error):
            try:
                ended.append(_train(plan, argv=argv))
            except Exception as error:  # noqa: BLE001 - raised again below; Hydra would print it
                ended.append(error)
        return ended[0].value if isinstance(ended[0], Outcome) else None

    _call_hydra(task, plan.argv, conf=conf)
    outcome = ended[0]
    if isinstance(outcome, Exception):
        raise outcome
    return outcome.exit_status


def _train(plan: RunPlan, *, argv: Sequence[str]) -> Outcome:
    # A target below the present step trains nothing, and a later bare resume must not aim at it.
    is_ahead = plan.config.effective_max_steps >= plan.folder.recorded_steps()
    if plan.merged is not None and plan.segment is not None and is_ahead:
        save_merged(plan.folder.hydra / plan.segment, plan.merged)
    hide_secrets(plan.folder.hydra / (plan.segment or ""))
    return execute(
        plan.config,
        folder=plan.folder,
        argv=argv,
        notes=plan.notes,
        warnings=plan.warnings,
    )


@dataclass(frozen=True)
class Job:
    """The task of a multirun; Hydra's launchers may carry it to other processes."""

    full_error: str | None
    """The user's HYDRA_FULL_ERROR."""

    def __call__(self, cfg: DictConfig) -> float | None:
        """Train one job, and return what the sweeper asked for."""
        with _environment_variable(_FULL_ERROR, self.full_error):
            outcome = _run_job(cfg)
        if outcome.exit_status:
            raise SystemExit(outcome.exit_status)
        return outcome.value


def _run_job(cfg: DictConfig) -> Outcome:
    hydra_config = HydraConfig.get()
    try:
        return _train_job(cfg, folder=RunFolder(Path(hydra_config.runtime.output_dir)))
    except Exception as error:  # noqa: BLE001 - the other jobs go on: say it now, let Hydra count it
        print(f"job {hydra_config.job.num} failed:", file=sys.stderr)
        if isinstance(error, SpeedtronicError):
            _report(error)
        else:
            traceback.print_exc()
        raise JobFailedError(f"job {hydra_config.job.num} failed: {error}") from None


def _train_job(cfg: DictConfig, *, folder: RunFolder) -> Outcome:
    config = load_config(cfg)
    hide_secrets(folder.hydra)
    with claim_folder(folder.path):
        if folder.holds_run() and not config.resume:
            raise RunFolderError(
                f"{folder.path} holds a run (step {folder.recorded_steps()}); "
                "use resume=true or another sweep_dir"
            )
        return execute(config, folder=folder, argv=sys.argv[1:])


def execute(
    config: SpeedtronicConfig,
    *,
    folder: RunFolder,
    argv: Sequence[str],
    notes: Sequence[str] = (),
    warnings: Sequence[str] = (),
) -> Outcome:
    """Hand a checked configuration to the runtime; torch is imported here."""
    if config.extras.print_config:
        print(describe_config(config), end="", flush=True)
    from speedtronic.session import run_command

    report = run_command(
        config,
        run_dir=folder.path,
        argv=[sys.argv[0], *argv],
        resume_notes=notes,
        warnings=warnings,
    )
    value = getattr(report.result, config.extras.return_metric)
    return Outcome(
        value=None if value is None else float(value),
        exit_status=0 if report.signal_number is None else 128 + report.signal_number,
    )


# Hydra --------------------------------------------------------------------------------------------


def _call_hydra(
    task: Callable[[DictConfig], float | None], argv: Sequence[str], *, conf: Path
) -> None:
    decorate = hydra.main(config_path=str(conf), config_name=CONFIG_NAME, **VERSION_BASE)
    typed = sys.argv
    sys.argv = [typed[0], *argv]
    try:
        # Hydra then raises its errors instead of printing them with a traceback.
        with _environment_variable(_FULL_ERROR, "1"):
            decorate(task)()
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        if isinstance(error, SpeedtronicError):
            raise
        raise ConfigError(explain(error, argv)) from error
    finally:
        sys.argv = typed


@contextmanager
def _environment_variable(name: str, value: str | None) -> Iterator[None]:
    before = os.environ.get(name)
    _set_variable(name, value)
    try:
        yield
    finally:
        _set_variable(name, before)


def _set_variable(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value


def _report(error: SpeedtronicError) -> int:
    """Print an error as one line and return the exit status it stands for."""
    if os.environ.get(_FULL_ERROR) == "1":
        traceback.print_exception(error)
    sys.stdout.flush()
    line = " ".join(part.strip() for part in str(error).splitlines())
    print(f"error: {line}", file=sys.stderr)
    return error.exit_status
