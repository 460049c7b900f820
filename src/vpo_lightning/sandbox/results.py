"""What the sandbox says about a test, and what a test may use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "error", "timeout", "lost"]


class WorkerLostError(Exception):
    """A worker process ended, or did not answer in time; says whether another try makes sense."""

    def __init__(self, reason: str, *, is_hung: bool = False) -> None:
        super().__init__(reason)
        self.is_hung = is_hung


@dataclass(frozen=True)
class Outcome:
    """How one test ended.

    Attributes:
        status: ``ok``: the program ended by itself. ``error``: by an uncaught exception, a signal,
            or a limit. ``timeout``: at its deadline, or at that of the whole answer. ``lost``: the
            sandbox broke, twice.
        stdout: What it wrote, in bytes; empty unless the status is ``ok``.
        seconds: Wall-clock time of the test.
    """

    status: Status
    stdout: bytes = b""
    seconds: float = 0.0
