"""Runs untrusted Python programs on inputs and returns what they wrote, within deadlines.

Only programs and inputs enter the sandbox. What a program should have written never does: whoever
calls compares the bytes. See `backends` for what isolates a worker and `inside.confinement` for
what isolates one test from the next.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vpo_lightning.errors import ConfigError
from vpo_lightning.sandbox.backends import BACKENDS, Launch, launch
from vpo_lightning.sandbox.pool import Job, Pool
from vpo_lightning.sandbox.probe import check_isolation
from vpo_lightning.sandbox.results import Outcome
from vpo_lightning.sandbox.worker import SealedFile

_log = logging.getLogger(__name__)


@dataclass(kw_only=True, eq=False)
class Sandbox:
    """A pool of warm workers; each test runs in a fresh child of one of them.

    Workers start when they are first needed and end with `close`, with this process, or when the
    sandbox is forgotten. Several threads may use one sandbox; a forked process starts its own
    workers.

    Args:
        backend: ``bubblewrap``; or ``guard``, which has limits but no isolation and warns.
        slots: Tests at the same time; None: the CPUs this process may use, shared by the training
            processes of the machine.
        test_seconds: Deadline of a test, wall clock.
        answer_seconds: Deadline of all tests of an answer together; those that have not ended by
            then are timeouts.
        memory_mb: Address space of a test.
        threads: Threads that a test may have beside its main one (it may make no other process).
        file_mb: Largest file, captured output included; writing more is an error in the program.
        tmp_mb: Size of a test's ``/tmp``.
        packages: Installed distributions that programs may import.

    Raises:
        ConfigError: A setting that cannot work.
    """

    backend: str = "bubblewrap"
    slots: int | None = None
    test_seconds: float = 6.0
    answer_seconds: float = 60.0
    memory_mb: int = 1024
    threads: int = 32
    file_mb: int = 4
    tmp_mb: int = 16
    packages: Sequence[str] = ()

    def __post_init__(self) -> None:
        """Checks the settings."""
        if self.backend not in BACKENDS:
            raise ConfigError(f"task.sandbox.backend={self.backend!r}: expected one of {BACKENDS}")
        least = {"slots": 1, "memory_mb": 128, "threads": 0, "file_mb": 1, "tmp_mb": 1}
        for name in ("test_seconds", "answer_seconds"):
            _check_number(name, getattr(self, name), (int, float), 0.1)
        for name, bound in least.items():
            if name != "slots" or self.slots is not None:
                _check_number(name, getattr(self, name), int, bound)
        self.counts: Counter[str] = Counter()
        self._is_checked = False
        self._start_over()

    def check(self) -> None:
        """Starts a worker and tries to get out of it.

        Raises:
            ConfigError: It cannot isolate here; says why and what to do.
        """
        if self.backend == "guard":
            _log.warning(
                "task.sandbox.backend=guard: programs run with your rights and see your files; "
                "their limits stop accidents, not attacks"
            )
        elif not self._is_checked:
            check_isolation(self._launch())
        self._is_checked = True

    def run_tests(
        self, program: str, stdins: Sequence[str], function: str | None = None
    ) -> list[Outcome]:
        """The outcome of a program on each input, in their order.

        Args:
            program: Python source.
            stdins: What each test reads on standard input.
            function: None runs the source as a program. A name calls that function, or that method
                of ``class Solution``, with the JSON values of the input, one a line; its output is
                the JSON of what it returns.

        Raises:
            ConfigError: The first call, where the sandbox cannot isolate.
        """
        if self._owner != os.getpid():  # a fork has no threads, and perhaps a lock that is held
            self._start_over()
        with self._lock:
            if self._pool is None:
                self.check()
                self._pool = Pool(self._launch(), self.slots or _default_slots())
                self._finalizer = weakref.finalize(self, self._pool.close)
            pool = self._pool
        file = SealedFile(program.encode("utf-8", "surrogatepass"))
        end = time.monotonic() + self.answer_seconds
        outcomes = pool.run(
            [
                Job(file, stdin.encode("utf-8", "surrogatepass"), function, self.test_seconds, end)
                for stdin in stdins
            ]
        )
        with self._lock:
            self.counts.update(outcome.status for outcome in outcomes)
        return outcomes

    def close(self) -> None:
        """Ends the workers; a later `run_tests` starts new ones."""
        if self._owner != os.getpid():
            return
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            self._finalizer.detach()
            pool.close()

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *details: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        hidden = {"_pool", "_lock", "_finalizer"}
        return {name: value for name, value in self.__dict__.items() if name not in hidden}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._start_over()

    def _start_over(self) -> None:
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._pool: Pool | None = None

    def _launch(self) -> Launch:
        limits = {
            "memory": self.memory_mb << 20,
            "threads": self.threads,
            "file": self.file_mb << 20,
            "tmp": self.tmp_mb << 20,
        }
        return launch(self.backend, limits, list(self.packages))


def _default_slots() -> int:
    """The CPUs this process may use, divided by the training processes on this machine."""
    processes = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return max(1, len(os.sched_getaffinity(0)) // processes)


def _check_number(name: str, value: object, kind: type | tuple[type, ...], least: float) -> None:
    if isinstance(value, bool) or not isinstance(value, kind) or value < least:  # type: ignore[operator]
        expected = "a whole number" if kind is int else "a number"
        raise ConfigError(f"task.sandbox.{name}={value!r}: expected {expected} of at least {least}")
