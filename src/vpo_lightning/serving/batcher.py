"""Gathers the requests of many clients into the batches of one engine."""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace

from vpo_lightning.errors import ConfigError
from vpo_lightning.rollout.engine import (
    Completion,
    GenerationRequest,
    RolloutEngine,
    SamplingSettings,
)
from vpo_lightning.serving.api_error import ApiError


@dataclass
class _Job:
    request: GenerationRequest
    sampling: SamplingSettings
    future: Future[list[Completion]] = field(default_factory=Future)


class Batcher:
    """Runs an engine in a thread of its own; what waits while it works becomes the next batches.

    Args:
        engine: Samples; only this thread calls it.
        most_waiting: Requests that may wait.
        most_rows: Completions of one batch.
    """

    def __init__(self, engine: RolloutEngine, most_waiting: int, most_rows: int = 256) -> None:
        self._engine = engine
        self._most_rows = most_rows
        self._jobs: queue.Queue[_Job | None] = queue.Queue(most_waiting)
        self._is_closing = False
        self._thread = threading.Thread(target=self._work, name="vpo-batcher", daemon=True)
        self._thread.start()

    @property
    def num_waiting(self) -> int:
        """Requests that wait."""
        return self._jobs.qsize()

    def submit(
        self, request: GenerationRequest, sampling: SamplingSettings
    ) -> Future[list[Completion]]:
        """The completions to come; they may be longer than asked, where others in a batch are.

        A token does not depend on those after it, so what is too long can be cut off.

        Raises:
            ApiError: Status 429 if too many wait, 503 if the server is stopping.
        """
        if self._is_closing:
            raise ApiError(503, "the server is stopping", code="stopping")
        job = _Job(request, sampling)
        try:
            self._jobs.put_nowait(job)
        except queue.Full:
            raise ApiError(
                429, f"{self._jobs.maxsize} requests are waiting; try again", code="queue_full"
            ) from None
        return job.future

    def close(self) -> None:
        """Finishes the batch at work and refuses what still waits."""
        self._is_closing = True
        while True:
            try:
                job = self._jobs.get_nowait()
            except queue.Empty:
                break
            if job is not None:
                _fail([job], ApiError(503, "the server is stopping", code="stopping"))
        self._jobs.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (first := self._jobs.get()) is not None:
            waiting, is_last = self._gather(first)
            groups: dict[SamplingSettings, list[_Job]] = {}
            for job in waiting:
                if job.future.set_running_or_notify_cancel():
                    groups.setdefault(replace(job.sampling, max_tokens=1), []).append(job)
            for jobs in groups.values():
                self._generate(jobs)
            if is_last:
                return

    def _gather(self, first: _Job) -> tuple[list[_Job], bool]:
        """What waits now, up to a batch; and whether the end was among it."""
        jobs, rows = [first], len(first.request.seeds)
        while rows < self._most_rows:
            try:
                job = self._jobs.get_nowait()
            except queue.Empty:
                break
            if job is None:
                return jobs, True
            jobs.append(job)
            rows += len(job.request.seeds)
        return jobs, False

    def _generate(self, jobs: Sequence[_Job]) -> None:
        """Runs requests that differ in their longest completion at most."""
        longest = max(job.sampling.max_tokens for job in jobs)
        sampling = replace(jobs[0].sampling, max_tokens=longest)
        try:
            completions = self._engine.generate([job.request for job in jobs], sampling)
        except Exception as error:  # thread boundary: the error belongs to whoever asked
            if len(jobs) == 1:
                _fail(jobs, _explained(error))
                return
            for job in jobs:  # one request must not fail the others of its batch
                self._generate([job])
            return
        for job, row in zip(jobs, completions, strict=True):
            job.future.set_result(row)


def _explained(error: Exception) -> ApiError:
    if isinstance(error, ConfigError):
        return ApiError(400, str(error), code="invalid_request")
    return ApiError(500, f"generation failed: {type(error).__name__}", code="engine_error")


def _fail(jobs: Sequence[_Job], error: ApiError) -> None:
    for job in jobs:
        job.future.set_exception(error)
