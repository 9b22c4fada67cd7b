"""Figures of speed and memory, each beside its target: ``make bench`` or ``make bench ARGS=loop``.

Contenders run interleaved in one process and are compared round by round, because the host drifts
by a quarter. Every part has a process of its own, so that one part's memory is not another's.
These are measurements, not tests: a busy machine makes them worse.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys

from benching.checkpoint import bench_checkpoint
from benching.learning import bench_learning
from benching.loop import bench_loop
from benching.memory import bench_memory
from benching.optimizers import bench_optimizers
from benching.tokens import bench_tokens

PARTS = {
    "loop": bench_loop,
    "tokens": bench_tokens,
    "checkpoint": bench_checkpoint,
    "memory": bench_memory,
    "optimizers": bench_optimizers,
    "learning": bench_learning,
}


def main() -> None:
    """Run the parts named on the command line, all of them when none is."""
    names = sys.argv[1:]
    if names[:1] == ["--inside"]:
        PARTS[names[1]]()
        return
    unknown = [name for name in names if name not in PARTS]
    if unknown:
        sys.exit(f"bench: no part {unknown[0]!r}; there are: {', '.join(PARTS)}")
    print(describe_machine(), flush=True)
    for name in names or PARTS:
        print(f"{name}: {PARTS[name].__doc__}", flush=True)
        command = [sys.executable, __file__, "--inside", name]
        subprocess.run(command, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"})


def describe_machine() -> str:
    """Return one line about machine and versions, with the load that makes figures worse."""
    from importlib.metadata import version

    return (
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, torch"
        f" {version('torch')}, load {os.getloadavg()[0]:.1f} (wants 0), one thread unless said"
    )


if __name__ == "__main__":
    main()
