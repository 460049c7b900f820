"""Processes that judge answers: a hung one is killed, a dead one replaced, the others go on.

They are fresh interpreters that are given the task's config (`scoring_process`), so nothing of this
process is copied into them: no CUDA context, no threads, no locks.
"""

from __future__ import annotations

import os
import signal
import time
import weakref
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from multiprocessing.connection import wait
from typing import Any

from vpo_lightning.errors import ConfigError
from vpo_lightning.scoring_worker import Item, Worker
from vpo_lightning.verdict import Verdict, failed_verdict

_MOST_IDLE_DEATHS = 3  # one after the other, with no answer to blame
_KILLED = "the process that scored it was killed twice, perhaps because memory ran out"


class ScoringPool:
    """Judges answers in processes of their own, each one answer at a time.

    They start when they are first needed, and end with the thread that needed them.

    Args:
        task: The task's config, with its ``_target_``.
        workers: Number of processes.
        deadline: Seconds for one answer.
        explain: Ask the task why each answer got its rewards.
    """

    def __init__(
        self, task: Mapping[str, Any], workers: int, deadline: float, *, explain: bool = False
    ) -> None:
        self._start = {"task": dict(task), "explain": explain}
        self._size = workers
        self._deadline = deadline
        self._workers: list[Worker] = []
        self._owner = os.getpid()
        self._past: Counter[str] = Counter()  # of processes that are gone
        self._idle_deaths = 0
        weakref.finalize(self, _end_all, self._workers, self._owner)

    def judge(self, items: Sequence[Item]) -> list[Verdict]:
        """The verdict on each answer, in their order.

        Raises:
            ConfigError: The task cannot be made in another process, or a row cannot be sent there.
        """
        if self._owner != os.getpid():  # a fork leaves its parent's processes alone
            self._owner = os.getpid()
            self._workers.clear()
        verdicts: dict[int, Verdict] = {}
        waiting = deque(range(len(items)))
        repeated: set[int] = set()
        try:
            while len(verdicts) < len(items):
                while len(self._workers) < min(self._size, len(items)):
                    self._workers.append(Worker(self._start))
                self._hand_out(items, waiting)
                for number, verdict in self._collect():
                    if verdict is None and number not in repeated:
                        repeated.add(number)
                        waiting.appendleft(number)
                    else:
                        verdicts[number] = verdict or failed_verdict(_KILLED)
        except BaseException:
            self.close()
            raise
        return [verdicts[i] for i in range(len(items))]

    def counters(self) -> Mapping[str, int]:
        """The counters of the tasks in the processes, those that are gone included."""
        return sum((worker.counts for worker in self._workers), Counter(self._past))

    def close(self) -> None:
        """Ends the processes."""
        if self._owner == os.getpid():
            for worker in list(self._workers):
                self._remove(worker)

    def _hand_out(self, items: Sequence[Item], waiting: deque[int]) -> None:
        """Gives waiting answers to idle processes."""
        for worker in [w for w in self._workers if w.is_idle]:
            if waiting and worker.take(waiting[0], items[waiting[0]], self._deadline):
                waiting.popleft()
            elif waiting:
                self._bury(worker)

    def _collect(self) -> list[tuple[int, Verdict | None]]:
        """The verdicts that come next, after a word of a process or a deadline.

        None for an answer whose process was killed from outside: it is not to blame.
        """
        busy = [worker for worker in self._workers if not worker.is_idle]
        nearest = min((worker.end for worker in busy), default=0.0)
        heard = wait([w.control for w in busy], max(0.0, nearest - time.monotonic()))
        found: list[tuple[int, Verdict | None]] = []
        for worker in busy:
            number = worker.number
            if worker.control in heard:
                verdict = worker.hear()
                if verdict is None and worker.is_alive:
                    continue  # it is ready
                self._idle_deaths = 0 if worker.is_alive else self._idle_deaths
                if verdict is None and not self._bury(worker):
                    verdict = failed_verdict(f"the process that scored it {worker.last_word}")
                if number is not None:
                    found.append((number, verdict))
            elif time.monotonic() >= worker.end:
                self._remove(worker)
                if number is None:
                    raise self._refusal("did not start in time")
                reason = f"no result within scoring.deadline={self._deadline:g} seconds"
                found.append((number, failed_verdict(reason, is_late=True)))
        return found

    def _bury(self, worker: Worker) -> bool:
        """Removes a process that died; whether it was killed from outside.

        Raises:
            ConfigError: It refused to start, or too many died that had nothing to do.
        """
        self._remove(worker)
        self._idle_deaths += worker.number is None
        if worker.refusal or self._idle_deaths > _MOST_IDLE_DEATHS:
            raise self._refusal(worker.refusal or worker.last_word)
        return worker.status == -signal.SIGKILL

    def _refusal(self, reason: str) -> ConfigError:
        return ConfigError(
            f"scoring.workers={self._size}: a process that should score {reason}; "
            f"scoring.workers=0 scores in the training process"
        )

    def _remove(self, worker: Worker) -> None:
        self._workers.remove(worker)
        self._past += worker.counts
        worker.close()


def _end_all(workers: list[Worker], owner: int) -> None:
    for worker in workers if owner == os.getpid() else []:
        worker.close()
