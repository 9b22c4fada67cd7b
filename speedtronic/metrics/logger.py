"""The run's one writer: text to console and file, events to a JSON file and to hooks."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeAlias

from speedtronic.core.errors import ConfigError
from speedtronic.metrics.lines import describe_event
from speedtronic.metrics.records import copy_payload, encode_record

if TYPE_CHECKING:
    from rich.console import Console

LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")

Hook: TypeAlias = "Callable[[str, Mapping[str, Any]], None] | Any"


class MetricLogger:
    """Writes text lines and events; every logger has its own handlers and files.

    Text goes to the console and, with time stamps, to ``file``. An event becomes one line of strict
    JSON in ``json_file``, written through at once, and a call of every hook with its own copy of
    the payload. Events that people follow are text too, on the console only while no hook
    shows them (a hook with a true ``draws_progress``). Files open at the first line, and
    append. A file that cannot be written or a hook that fails is reported once and stops nothing.

    Args:
        level: Least severe text to write: DEBUG, INFO, WARNING, ERROR or CRITICAL.
        file: Text log, or None.
        json_file: JSON lines, or None.
        every_steps: Cadence of ``should_log``, in updates, at least 1.
        hooks: Callables ``(event, payload)`` or objects with ``on_event``; may have ``close()``.
        console: Where text appears; rich's shared console when None.

    Raises:
        ConfigError: ``level`` is unknown or ``every_steps`` is below 1.
    """

    def __init__(
        self,
        *,
        level: str = "INFO",
        file: str | os.PathLike[str] | None = None,
        json_file: str | os.PathLike[str] | None = None,
        every_steps: int = 10,
        hooks: Iterable[Hook] = (),
        console: Console | None = None,
    ) -> None:
        if level.upper() not in LEVELS:
            raise ConfigError(
                f"logging.level must be one of {', '.join(LEVELS)}, got {level!r}; try 'INFO'"
            )
        if every_steps < 1:
            raise ConfigError(f"logging.every_steps must be at least 1, got {every_steps}; try 10")
        self.console = console if console is not None else _shared_console()
        self.every_steps = every_steps
        self._hooks = list(hooks)
        self._reported: set[int] = set()
        self._lock = threading.RLock()
        self._records = _JsonLines(Path(json_file)) if json_file is not None else None
        self._step = 0
        # Not logging.getLogger: a name is shared by the whole process, and so are its handlers.
        self._console_log = logging.Logger("speedtronic", level.upper())
        self._console_log.addHandler(_ConsoleHandler(self.console))
        self._file_log = logging.Logger("speedtronic", level.upper())
        # Without any handler, logging would print warnings to stderr by itself.
        self._file_log.addHandler(
            logging.NullHandler() if file is None else _TextFileHandler(Path(file))
        )

    def debug(self, message: str) -> None:
        """Write a line that only somebody looking for a fault wants."""
        self._text(logging.DEBUG, message)

    def info(self, message: str) -> None:
        """Write a line."""
        self._text(logging.INFO, message)

    def warning(self, message: str) -> None:
        """Write a line about something the user should know."""
        self._text(logging.WARNING, message)

    def error(self, message: str) -> None:
        """Write a line about something that failed."""
        self._text(logging.ERROR, message)

    def event(self, name: str, payload: Mapping[str, Any]) -> None:
        """Record an event and hand it to the hooks, in the order they were added.

        Args:
            name: Name of the event.
            payload: Values; ``step`` is the last one seen where it is missing.
        """
        with self._lock:
            step = payload.get("step")
            if isinstance(step, int):
                self._step = step
            self._write_record(name, payload)
            line = describe_event(name, payload)
            if line is not None:
                self._file_log.info(line)
                if not any(getattr(hook, "draws_progress", False) for hook in self._hooks):
                    self._console_log.info(line)
            for hook in list(self._hooks):
                self._call(hook, name, payload)

    def should_log(self, step: int) -> bool:
        """Whether ``step`` is on the cadence; the last step of a fit is logged in any case."""
        return step % self.every_steps == 0

    def add_hook(self, hook: Hook) -> None:
        """Hand later events to ``hook`` too."""
        with self._lock:
            self._hooks.append(hook)

    def close(self) -> None:
        """Close hooks and files. A later event reopens the files."""
        with self._lock:
            for hook in self._hooks:
                close = getattr(hook, "close", None)
                if callable(close):
                    self._guard(hook, close)
            for handler in self._file_log.handlers:
                handler.close()
            if self._records is not None:
                self._records.close()

    def _text(self, level: int, message: str) -> None:
        self._console_log.log(level, message)
        self._file_log.log(level, message)

    def _call(self, hook: Hook, name: str, payload: Mapping[str, Any]) -> None:
        deliver = getattr(hook, "on_event", hook)
        self._guard(hook, lambda: deliver(name, copy_payload(payload)))

    def _guard(self, hook: Hook, action: Callable[[], object]) -> None:
        try:
            action()
        except Exception as error:  # noqa: BLE001 - promised: a failing hook never stops a run
            if id(hook) in self._reported:
                return
            self._reported.add(id(hook))
            hook_name = getattr(hook, "__qualname__", type(hook).__qualname__)
            reason = f"{type(error).__name__}: {error}"
            self.error(f"the logging hook {hook_name} failed, the run goes on: {reason}")
            self._write_record("hook_failed", {"hook": hook_name, "reason": reason})

    def _write_record(self, name: str, payload: Mapping[str, Any]) -> None:
        if self._records is None:
            return
        try:
            self._records.write(encode_record(name, payload, step=self._step))
        except OSError as error:
            if id(self._records) not in self._reported:
                self._reported.add(id(self._records))
                self.error(f"cannot write {self._records.path}, the run goes on: {error}")


class _JsonLines:
    """An appended file of lines, each written through; a torn last line is cut off on opening."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: IO[bytes] | None = None

    def write(self, line: str) -> None:
        if self._file is None:
            self._file = self._open()
        try:
            self._file.write(line.encode() + b"\n")
        except OSError:
            self.close()  # the next line opens again and cuts off what was torn
            raise

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self) -> IO[bytes]:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab+") as file:
            _cut_torn_line(file)
        return self.path.open("ab", buffering=0)


def _cut_torn_line(file: IO[bytes]) -> None:
    """Truncate an append-mode file after its last line break."""
    size_bytes = file.seek(0, os.SEEK_END)
    if size_bytes == 0:
        return
    file.seek(size_bytes - 1)
    if file.read(1) != b"\n":
        file.seek(0)
        file.truncate(file.read().rfind(b"\n") + 1)


class _TextFileHandler(logging.FileHandler):
    """Appends time-stamped lines; makes the folder and opens the file at the first line."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, mode="a", encoding="utf-8", errors="backslashreplace", delay=True)
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        if self.stream is None:
            Path(self.baseFilename).parent.mkdir(parents=True, exist_ok=True)
        super().emit(record)


class _ConsoleHandler(logging.Handler):
    """Prints lines above a progress bar that shares the console, unwrapped and without markup."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if record.levelno < logging.WARNING:
            print_line(self._console, message)
        else:
            style = "yellow" if record.levelno < logging.ERROR else "red"
            print_line(self._console, f"{record.levelname.lower()}: {message}", style=style)


def print_line(console: Console, line: str, *, style: str | None = None) -> None:
    """Print a line as it is: no markup, no wrapping; what the terminal cannot show is escaped."""
    shown = line.encode(console.encoding, "backslashreplace").decode(console.encoding)
    console.print(shown, style=style, markup=False, highlight=False, emoji=False, soft_wrap=True)


def _shared_console() -> Console:
    """Return the console that rich keeps for the process, so that text and bar share one."""
    from rich import get_console

    return get_console()
