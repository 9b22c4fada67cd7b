"""What every test gets: one thread, a cache folder of its own session, and a check for leaks.

Nothing here imports torch, so that tests of the torch-free rooms stay quick.
"""

from __future__ import annotations

import gc
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import settings

# Read by OpenMP and torch when they are first imported, here and in every process a test starts.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["MKL_NUM_THREADS"] = "1"
# Inductor compiles in this process instead of in a pool that outlives the test.
os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
os.environ["MPLBACKEND"] = "Agg"

# No deadline: a busy machine is not a fault. The same examples in every run.
settings.register_profile("speedtronic", deadline=None, derandomize=True, database=None)
settings.load_profile("speedtronic")

CACHE_VARIABLE = "SPEEDTRONIC_CACHE_DIR"
CACHE_PREFIX = "speedtronic-test-cache-"
# Seeding sets it by contract; pytest and import machinery own the others.
RESTORED_VARIABLES = frozenset({"PYTHONHASHSEED"})
IGNORED_VARIABLES = frozenset({"PYTEST_CURRENT_TEST", "PYTEST_VERSION"})
WATCHED_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)
LEAK_GRACE_S = 2.0
_NO_FILES = ("/dev/", "/proc/", "/sys/")


def pytest_configure(config: pytest.Config) -> None:
    """Give the session an empty cache folder, shared by its xdist workers."""
    if not hasattr(config, "workerinput"):
        os.environ[CACHE_VARIABLE] = tempfile.mkdtemp(prefix=CACHE_PREFIX)
        # torch sets it when the first optimizer is built, which would look like that test's leak.
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = os.environ[CACHE_VARIABLE] + "/inductor"


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove the session's cache folder."""
    folder = os.environ.get(CACHE_VARIABLE, "")
    if not hasattr(config, "workerinput") and Path(folder).name.startswith(CACHE_PREFIX):
        shutil.rmtree(folder, ignore_errors=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip slow tests unless asked for, and GPU tests where there is none."""
    skip_slow = pytest.mark.skip(reason="slow: run it with `make soak` or -m slow")
    asked_for_slow = "slow" in config.option.markexpr
    for item in items:
        if item.get_closest_marker("slow") and not asked_for_slow:
            item.add_marker(skip_slow)
    gpu_items = [item for item in items if item.get_closest_marker("gpu")]
    if gpu_items and not _has_cuda():
        for item in gpu_items:
            item.add_marker(pytest.mark.skip(reason="gpu: no CUDA device here"))


def _has_cuda() -> bool:
    import torch

    return torch.cuda.is_available()


@dataclass(frozen=True)
class ProcessState:
    """What a test must leave as it found it."""

    threads: frozenset[threading.Thread]
    environment: dict[str, str]
    open_files: dict[int, str]
    signal_handlers: dict[int, object]
    folder: str
    torch: dict[str, object]


@pytest.fixture(autouse=True)
def _nothing_leaks() -> Iterator[None]:
    """Fail a test that leaves a thread, variable, open file, handler or torch setting behind."""
    before = _process_state()
    yield
    leaks = _leaks_since(before)
    _restore(before)
    if leaks:
        pytest.fail("the test leaked: " + "; ".join(leaks), pytrace=False)


def _process_state() -> ProcessState:
    return ProcessState(
        threads=frozenset(threading.enumerate()),
        environment=dict(os.environ),
        open_files=_open_files(),
        signal_handlers={number: signal.getsignal(number) for number in WATCHED_SIGNALS},
        folder=str(Path.cwd()),
        torch=_torch_settings(),
    )


def _open_files() -> dict[int, str]:
    """Return the regular files that are open, by descriptor; pipes and devices are no files."""
    found = {}
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            target = str(descriptor.readlink())
        except OSError:
            continue
        # matplotlib keeps the fonts it has drawn with open.
        is_font = "/mpl-data/fonts/" in target
        if target.startswith("/") and not (target.startswith(_NO_FILES) or is_font):
            found[int(descriptor.name)] = target
    return found


def _torch_settings() -> dict[str, object]:
    """Return torch's global switches; before its first import, the values it starts with."""
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "are_deterministic_algorithms_enabled"):
        return {
            "default dtype": "torch.float32",
            "thread count": 1,
            "determinism flag": (False, False),
            "gradient mode": True,
        }
    return {
        "default dtype": str(torch.get_default_dtype()),
        "thread count": torch.get_num_threads(),
        "determinism flag": (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        ),
        "gradient mode": torch.is_grad_enabled(),
    }


def _leaks_since(before: ProcessState) -> list[str]:
    leaks = _thread_leaks(before) + _variable_leaks(before) + _file_leaks(before)
    for number, handler in before.signal_handlers.items():
        if signal.getsignal(number) != handler:
            leaks.append(f"the handler of {signal.Signals(number).name}")
    if str(Path.cwd()) != before.folder:
        leaks.append(f"the working directory {Path.cwd()}")
    settings = _torch_settings()
    leaks += [
        f"torch's {name}: {old} became {settings[name]}"
        for name, old in before.torch.items()
        if settings[name] != old
    ]
    return leaks


def _thread_leaks(before: ProcessState) -> list[str]:
    def new_threads() -> list[threading.Thread]:
        alive = [thread for thread in threading.enumerate() if thread.is_alive()]
        return [thread for thread in alive if thread not in before.threads]

    _wait_until(lambda: not new_threads())
    return [f"the thread {thread.name!r}" for thread in new_threads()]


def _variable_leaks(before: ProcessState) -> list[str]:
    ignored = RESTORED_VARIABLES | IGNORED_VARIABLES
    names = sorted((before.environment.keys() | os.environ.keys()) - ignored)
    return [
        f"the environment variable {name}"
        for name in names
        if before.environment.get(name) != os.environ.get(name)
    ]


def _file_leaks(before: ProcessState) -> list[str]:
    def new_files() -> list[str]:
        return [path for number, path in _open_files().items() if number not in before.open_files]

    if new_files():
        gc.collect()
    _wait_until(lambda: not new_files())
    return [f"the open file {path}" for path in new_files()]


def _wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LEAK_GRACE_S
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)


def _restore(before: ProcessState) -> None:
    """Put back what can be put back, so that one leak fails one test."""
    for name in set(os.environ) - before.environment.keys() - IGNORED_VARIABLES:
        del os.environ[name]
    for name, value in before.environment.items():
        if name not in IGNORED_VARIABLES and os.environ.get(name) != value:
            os.environ[name] = value
    for number, handler in before.signal_handlers.items():
        signal.signal(number, handler)  # type: ignore[arg-type]
    os.chdir(before.folder)
    torch = sys.modules.get("torch")
    if torch is not None and _torch_settings() != before.torch:
        torch.set_default_dtype(getattr(torch, str(before.torch["default dtype"]).split(".")[1]))
        torch.set_num_threads(before.torch["thread count"])
        enabled, warn_only = before.torch["determinism flag"]  # type: ignore[misc]
        torch.use_deterministic_algorithms(enabled, warn_only=warn_only)
        torch.set_grad_enabled(before.torch["gradient mode"])
