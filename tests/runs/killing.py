"""Runs that are killed half-way."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path


def kill_at_step(command: Sequence[str], folder: Path, step: int) -> None:
    """Starts a run beside its folder and kills it once the rollouts of `step` are stored."""
    process = subprocess.Popen(command, cwd=folder.parent, stdout=subprocess.DEVNULL)
    wait_for(lambda: (folder / "rollouts" / f"step_{step:06d}_rank_0.parquet").exists())
    process.send_signal(signal.SIGKILL)
    process.wait()
    time.sleep(0.5)  # its workers end after it
    assert not (folder / "summary.json").exists()


def wait_for(condition: Callable[[], bool], seconds: float = 200) -> None:
    """Waits until the condition holds; an AssertionError after so many seconds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
