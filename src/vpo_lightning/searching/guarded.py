"""Scores answers in a process that can be killed: no scorer can stop, crash or poison a search."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import math
import multiprocessing
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from numbers import Real
from typing import Any

from vpo_lightning.errors import ConfigError
from vpo_lightning.searching.archive import Flag
from vpo_lightning.task import PromptRow, Task

_PR_SET_PDEATHSIG = 1
_START_SECONDS = 60.0
_Job = tuple[PromptRow, str | None]


@dataclass(frozen=True)
class Score:
    """What scoring one answer gave.

    Attributes:
        flag: See `archive.Flag`.
        rewards: Zeros unless the flag is ``ok``.
        key: Equal for answers that the task takes for the same.
        seconds: Wall time.
        reason: Why there is no vector; "" where there is one.
    """

    flag: Flag
    rewards: tuple[float, ...]
    key: str
    seconds: float
    reason: str = ""


class GuardedScorer:
    """One scoring process with a deadline for each answer.

    Args:
        task: Scores; it is pickled to the process.
        seconds: Deadline of one answer, wall clock.

    Raises:
        ConfigError: A deadline that is not positive.
    """

    def __init__(self, task: Task, seconds: float) -> None:
        if not seconds > 0:
            raise ConfigError(f"scorer.seconds={seconds}: expected a positive number of seconds")
        self._task = task
        self._seconds = seconds
        self._process: Any = None
        self._connection: Connection | None = None

    def score(self, jobs: Sequence[_Job]) -> list[Score]:
        """The score of each answer, in order; None for a text is a missing slot."""
        scores: list[Score] = []
        while len(scores) < len(jobs):
            connection = self._running()
            try:
                connection.send(list(jobs[len(scores) :]))
                while len(scores) < len(jobs):
                    scores.append(self._receive(connection, jobs[len(scores)]))
            except _LostError as lost:
                self._kill()
                scores.append(lost.score)
        return scores

    def close(self) -> None:
        """Ends the process."""
        if self._connection is not None:
            with contextlib.suppress(OSError):
                self._connection.send(None)
            self._process.join(2.0)
        self._kill()

    def __enter__(self) -> GuardedScorer:
        return self

    def __exit__(self, *details: object) -> None:
        self.close()

    def _receive(self, connection: Connection, job: _Job) -> Score:
        started = time.perf_counter()
        try:
            if connection.poll(self._seconds):
                return connection.recv()
            flag, reason = "timeout", f"no score within scorer.seconds={self._seconds}"
        except (EOFError, OSError):
            flag, reason = "crash", "the scoring process died"
        raise _LostError(_failed(job, flag, time.perf_counter() - started, reason))

    def _running(self) -> Connection:
        if self._connection is None:
            context = multiprocessing.get_context("spawn")
            own, other = context.Pipe()
            self._process = context.Process(target=_serve, args=(other, self._task), daemon=False)
            self._process.start()
            other.close()
            self._connection = own
            try:
                is_ready = own.poll(_START_SECONDS) and own.recv()
            except (EOFError, OSError):
                is_ready = False
            if not is_ready:
                self._kill()
                raise ConfigError(
                    "task: the scoring process did not start; the task's class must be importable "
                    "and its object picklable"
                )
        return self._connection

    def _kill(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._process.kill()
            self._process.join()
            self._connection = None


class _LostError(Exception):
    """The process has to be replaced; holds the score of the answer it was at."""

    def __init__(self, score: Score) -> None:
        super().__init__(score.reason)
        self.score = score


def _serve(connection: Connection, task: Task) -> None:
    """Scores what comes, one after the other, until told to end."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the search's to handle
    connection.send(True)
    with contextlib.suppress(EOFError):
        while (jobs := connection.recv()) is not None:
            for job in jobs:
                connection.send(_score(task, job))


def _score(task: Task, job: _Job) -> Score:
    row, text = job
    started = time.perf_counter()

    def failed(flag: Flag, reason: str) -> Score:
        return _failed(job, flag, time.perf_counter() - started, reason)

    if text is None:
        return failed("missing", "")
    try:
        if not task.is_parsed(text):
            return failed("unparsed", "")
        given = task.score(text, row)
        fault = _fault(given, len(row.objectives))
        if fault:
            return failed("invalid", fault)
        rewards = tuple(float(value) for value in given)
        key = _digest(repr(task.duplicate_key(text, rewards)))
    except Exception as error:  # process boundary: the task may be anyone's
        return failed("error", f"{type(error).__name__}: {error}"[:200])
    return Score("ok", rewards, key, time.perf_counter() - started)


def _failed(job: _Job, flag: Flag, seconds: float, reason: str) -> Score:
    row, text = job
    return Score(flag, (0.0,) * len(row.objectives), _digest(text or ""), seconds, reason)


def _fault(given: Any, num_objectives: int) -> str:
    """What is wrong with a reward vector; "" where nothing is."""
    if isinstance(given, str) or not isinstance(given, Sequence):
        return f"the scorer returned {type(given).__name__}; expected {num_objectives} numbers"
    if len(given) != num_objectives:
        return f"the scorer returned {len(given)} numbers; expected {num_objectives}"
    for value in given:
        number = float(value) if isinstance(value, Real) else math.nan
        if not -1e-9 <= number <= 1 + 1e-9:  # not a number is in no interval
            return f"the scorer returned {value!r}; expected numbers in [0, 1]"
    return ""


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
