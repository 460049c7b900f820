"""Slots: threads that run tests at the same time, each on a worker of its own."""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from vpo_lightning.sandbox.backends import Launch
from vpo_lightning.sandbox.results import Outcome, WorkerLostError
from vpo_lightning.sandbox.worker import SealedFile, Worker

_log = logging.getLogger(__name__)


@dataclass
class Job:
    """One test: program, input, function, its own deadline in seconds, and when the answer's is."""

    program: SealedFile
    stdin: bytes
    function: str | None
    seconds: float
    end: float

    def __post_init__(self) -> None:
        """Makes the future that the slot fills."""
        self.outcome: Future[Outcome] = Future()


class Pool:
    """Slots: threads that each own a worker, which ends with them, and take jobs off one queue."""

    def __init__(self, launch: Launch, slots: int) -> None:
        self.owner = os.getpid()
        self._launch = launch
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._serve, name=f"sandbox-{i}", daemon=True)
            for i in range(slots)
        ]
        for thread in self._threads:
            thread.start()

    def run(self, jobs: Sequence[Job]) -> list[Outcome]:
        """The outcomes of `jobs`, in their order; several threads may call this."""
        for job in jobs:
            self._jobs.put(job)
        try:
            return [job.outcome.result() for job in jobs]
        except BaseException:
            for job in jobs:
                job.end = 0.0  # those that have not begun need not
            raise

    def close(self) -> None:
        """Ends the workers once the jobs that were given are done."""
        if self.owner != os.getpid():
            return
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()

    def _serve(self) -> None:
        worker: Worker | None = None
        try:
            while (job := self._jobs.get()) is not None:
                try:
                    worker, outcome = self._attempt(job, worker)
                    job.outcome.set_result(outcome)
                except BaseException as error:  # the caller is to see it, whatever it is
                    job.outcome.set_exception(error)
        finally:
            if worker is not None:
                worker.close()

    def _attempt(self, job: Job, worker: Worker | None) -> tuple[Worker | None, Outcome]:
        """The outcome, on a new worker if the given one breaks; a worker that hangs is no retry."""
        for _ in range(2):
            seconds = min(job.seconds, job.end - time.monotonic())
            if seconds <= 0:
                return worker, Outcome("timeout")
            try:
                worker = worker or Worker(self._launch)
                outcome = worker.run(job.program, job.stdin, seconds, job.function)
                if outcome.status != "lost":
                    return worker, outcome
                error = WorkerLostError("a test could not be confined")
            except WorkerLostError as lost:
                error = lost
            _log.warning("a worker of the sandbox was lost and is replaced: %s", error)
            if worker is not None:
                worker.close()
                worker = None
            if error.is_hung:
                break
        return worker, Outcome("lost")
