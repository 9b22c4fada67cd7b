"""What a run ran on: commit, versions, machine and command line, with secrets taken out.

Nothing here imports torch: versions come from package metadata.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

REDACTED = "***"
_PACKAGES = (
    "speedtronic",
    "torch",
    "hydra-core",
    "omegaconf",
    "numpy",
    "pydantic",
    "safetensors",
    "tensorboard",
    "filelock",
    "tokenizers",
)
_GIT_TIMEOUT_S = 10
# "token" must stand alone at the end of a name: tokenizer, tokens and num_tokens are no secrets.
_SECRET_NAME = (
    r"[\w.]*?(?:(?<![a-z])token|secret\w*|passw(?:or)?d\w*|(?:api|access|private)_?key\w*"
    r"|credentials?)"
)
_SECRET_OVERRIDE = re.compile(
    rf"^([+~]*{_SECRET_NAME}=)(?=.)(?!null$).*$", re.IGNORECASE | re.DOTALL
)
_SECRET_ITEM = re.compile(rf"(\b{_SECRET_NAME}['\"]?\s*:\s*)(?!null\b)([^,}}\s]+)", re.IGNORECASE)
_URL_PASSWORD = re.compile(r"(\w+://[^\s/@:]*:)[^\s/@]+(?=@)")


def describe_environment(argv: Sequence[str], *, cwd: Path | None = None) -> dict[str, Any]:
    """Return all that one needs to repeat a run elsewhere, as plain JSON values.

    Args:
        argv: The command line as typed; secrets in it are redacted here.
        cwd: The folder whose Git commit counts; the working directory by default.

    Example:
        >>> describe_environment(["train.py", "distributed.token=hf_abc"])["argv"]
        ['train.py', 'distributed.token=***']
    """
    folder = Path.cwd() if cwd is None else cwd
    return {
        "argv": redact_argv(argv),
        "cwd": str(folder),
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "executable": sys.executable,
        "versions": package_versions(),
        "git": git_state(folder) or git_state(Path(__file__).parent),
        "cpu": {
            "model": cpu_model(),
            "count": os.cpu_count(),
            "usable": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        },
        "threads": num_threads(),
    }


def redact_argv(argv: Sequence[str]) -> list[str]:
    """Replace the values of overrides that look like secrets.

    Example:
        >>> redact_argv(["distributed.token=hf_abc", "data.tokenizer=byte", "store=s3://me:pw@host/x"])
        ['distributed.token=***', 'data.tokenizer=byte', 'store=s3://me:***@host/x']
    """
    return [_redact(argument) for argument in argv]


def package_versions() -> dict[str, str]:
    """Return the installed versions of the packages that can change a result."""
    versions = {}
    for name in _PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def git_state(folder: Path) -> dict[str, Any] | None:
    """Return the commit of a folder and whether tracked files differ from it; None outside Git."""
    sha = _git(folder, "rev-parse", "HEAD")
    if sha is None:
        return None
    status = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return {"sha": sha, "dirty": None if status is None else bool(status)}


def cpu_model() -> str:
    """Return the processor's name, as far as the system tells it."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    match = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return match[1].strip() if match else platform.processor() or platform.machine()


def num_threads() -> int | None:
    """Return the threads torch computes with; None while torch is not loaded."""
    torch = sys.modules.get("torch")
    return None if torch is None else int(torch.get_num_threads())


def _redact(argument: str) -> str:
    argument = _SECRET_OVERRIDE.sub(rf"\g<1>{REDACTED}", argument)
    argument = _SECRET_ITEM.sub(rf"\g<1>{REDACTED}", argument)
    return _URL_PASSWORD.sub(rf"\g<1>{REDACTED}", argument)


def _git(folder: Path, *arguments: str) -> str | None:
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}
    try:
        answer = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True,
            text=True,
            timeout=_GIT_TIMEOUT_S,
            env=environment,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() if answer.returncode == 0 else None
