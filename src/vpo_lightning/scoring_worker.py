"""The parent's end of one process that judges answers (`scoring_process` is the other)."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import socket
import struct
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import Any

from vpo_lightning.errors import ConfigError
from vpo_lightning.task import PromptRow
from vpo_lightning.verdict import Verdict

_START_SECONDS = 120.0  # importing a task may take long; deadlines of answers do not run meanwhile
_PIPE_SECONDS = 10  # for one message to a process that reads, and from one that writes
_CLOSE_SECONDS = 0.5
_PROGRAM = (
    "import sys; sys.path[:] = {path!r}; from vpo_lightning.scoring_process import main; main()"
)
_UNREADABLE = (EOFError, OSError, pickle.UnpicklingError, AttributeError, ImportError)

Item = tuple[PromptRow, str]


class Worker:
    """One process, started.

    Args:
        start: What it is to know: the task's config, and whether to explain.

    Attributes:
        number: The answer it is busy with, None if it is idle or starts.
        end: When it has to have answered, or to be ready.
        is_idle: Whether it waits for an answer.
        is_alive: Whether it is of any use.
        refusal: Why it could not start; empty if it could.
        counts: The counters of its task.
        status: Its exit status, once it has ended.
    """

    def __init__(self, start: Mapping[str, Any]) -> None:
        ours, theirs = socket.socketpair()
        limit = struct.pack("@ll", _PIPE_SECONDS, 0)
        for kind in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
            ours.setsockopt(socket.SOL_SOCKET, kind, limit)
        self.control = Connection(ours.detach())
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM.format(path=sys.path)],
                stdin=theirs.fileno(),
                start_new_session=True,
            )
        self.control.send(start)
        self.number: int | None = None
        self.end = time.monotonic() + _START_SECONDS
        self.counts: Counter[str] = Counter()
        self.is_alive, self.is_idle = True, False
        self.status = 0
        self.refusal = ""
        self._is_ready = False

    @property
    def last_word(self) -> str:
        """How it ended."""
        if self.status >= 0:
            return f"ended with exit status {self.status}"
        return f"was ended by {signal.Signals(-self.status).name}"

    def take(self, number: int, item: Item, seconds: float) -> bool:
        """Whether an answer could be sent; if not, the process is dead.

        Raises:
            ConfigError: The row holds what cannot be sent to any process.
        """
        try:
            message = pickle.dumps(item)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise ConfigError(
                f"row {item[0].id} cannot be sent to a process that scores ({error}); keep data in "
                f"ground_truth that JSON can hold, or set scoring.workers=0"
            ) from error
        try:
            self.control.send_bytes(message)
        except OSError:
            self.is_alive = False
            return False
        self.number, self.end, self.is_idle = number, time.monotonic() + seconds, False
        return True

    def hear(self) -> Verdict | None:
        """The verdict it sends; None if it says that it is ready, or is dead."""
        try:
            message = self.control.recv()
        except _UNREADABLE:
            self.is_alive = False
            return None
        if not self._is_ready:
            self.is_alive = self.is_idle = self._is_ready = not message
            self.refusal = message
            return None
        self.number, self.is_idle = None, True
        verdict, counts = message
        self.counts = Counter(counts)
        return verdict

    def close(self) -> None:
        """Ends the process with all that it started in its group."""
        self.control.close()
        if self.is_idle or not self.is_alive:  # it ends by itself then
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=_CLOSE_SECONDS)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self.status = self._process.wait()
