"""What to type next: the lines that continue a run or show it, ready to paste into a shell."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from speedtronic.run_folder.layout import RunFolder


def resume_command(
    run_dir: str | os.PathLike[str],
    *,
    allow_targets: Sequence[str] = (),
    program: str | None = None,
    overrides: Sequence[str] = (),
) -> str:
    """Return the line that continues a run, ready to paste into a shell.

    Args:
        run_dir: The run folder.
        allow_targets: Targets the run needs; they are never taken from a saved run.
        program: How to start the program; as this process was started by default.
        overrides: Further overrides to show.

    Example:
        >>> resume_command("outputs/my run", program="speedtronic", allow_targets=["nets.Big"])
        "speedtronic 'run_dir=outputs/my run' resume=true 'extras.allow_targets=[nets.Big]'"
    """
    arguments = [f"run_dir={shown_path(run_dir)}", "resume=true", *overrides]
    if allow_targets:
        arguments.append(f"extras.allow_targets=[{','.join(allow_targets)}]")
    return " ".join([program or program_command(), *map(shlex.quote, arguments)])


def tensorboard_command(folder: RunFolder) -> str:
    """Return the line that opens a run in TensorBoard."""
    return f"tensorboard --logdir {shlex.quote(shown_path(folder.tensorboard))}"


def shown_path(path: str | os.PathLike[str]) -> str:
    """Return a path as a person would type it: relative below the working directory."""
    full = Path(os.path.abspath(path))  # noqa: PTH100 - keeps symbolic links as typed
    try:
        return str(full.relative_to(Path.cwd()))
    except ValueError:
        return str(full)


def program_command(argv0: str | None = None) -> str:
    """Return how a person starts this program: the script with Python, or the console command."""
    program = sys.argv[0] if argv0 is None else argv0
    if not program.endswith(".py"):
        return "speedtronic"
    try:
        shown = Path(program).resolve().relative_to(Path.cwd())
    except ValueError:
        shown = Path(program)
    if shown.name == "__main__.py":
        return "speedtronic"
    return f"python {shlex.quote(str(shown))}"
