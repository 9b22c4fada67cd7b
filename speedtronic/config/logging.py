"""Settings of what a run says: text, records, TensorBoard, progress, plots and hooks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from speedtronic.config.factory import Factory
from speedtronic.core.errors import ConfigError
from speedtronic.core.settings import PathText, Settings

if TYPE_CHECKING:
    from speedtronic.metrics.logger import MetricLogger


def _read_off(value: Any) -> Any:
    # YAML 1.1 reads a bare `off` as false.
    return "off" if value is False else value


class LoggingSettings(Settings):
    """Where a run's text and records go, and how often."""

    section: ClassVar[str] = "logging"

    level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    """Least severe text that is shown."""
    every_steps: Annotated[int, Field(ge=1)] = 10
    """Updates between two train_step records; the last one is always written."""
    file: Annotated[PathText, Field(min_length=1)] | None = "train.log"
    """Text log; a relative path is below the run folder; null: none."""
    json_file: Annotated[PathText, Field(min_length=1)] | None = "metrics.jsonl"
    """One JSON object a record; a relative path is below the run folder; null: none."""
    tensorboard: bool = True
    """Whether TensorBoard event files are written below the run folder."""
    progress: Annotated[Literal["auto", "bar", "plain", "off"], BeforeValidator(_read_off)] = "auto"
    """auto: a bar on a terminal, plain lines elsewhere; or bar, plain, off."""
    plots: bool = True
    """Whether curves.png is drawn at the end."""
    hooks: Annotated[tuple[Factory, ...], Field(strict=False)] = ()
    """Callables (or classes with on_event) that get every event: _target_, wandb or mlflow."""

    def build(self, *, folder: Path | None) -> MetricLogger:
        """Build the logger without hooks; relative paths are below ``folder``."""
        from speedtronic.metrics.logger import MetricLogger

        return MetricLogger(
            level=self.level,
            file=_below(folder, self.file),
            json_file=_below(folder, self.json_file),
            every_steps=self.every_steps,
        )

    def build_hooks(self, *, folder: Path | None) -> list[Any]:
        """Build the configured hooks; ``folder`` is passed where a signature names it."""
        offered = {} if folder is None else {"folder": folder}
        return [_build_hook(hook, offered) for hook in self.hooks]


def _build_hook(hook: Factory, offered: Mapping[str, Any]) -> Any:
    if hook.is_event_function():
        return hook.resolve()
    built = hook.call(section="logging.hooks", offered=offered)
    if not callable(built) and not callable(getattr(built, "on_event", None)):
        raise ConfigError(
            f"logging.hooks must be callable or have on_event(event, payload), got {hook.target};"
            " give it one of the two"
        )
    return built


def _below(folder: Path | None, name: str | None) -> Path | None:
    return None if name is None else (folder or Path()) / name
