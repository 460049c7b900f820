"""Scores the answers of a search: whatever a scorer does, the search goes on and counts it."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass

from vpo_lightning.scorer import Judges
from vpo_lightning.searching.archive import Flag
from vpo_lightning.task import PromptRow, Task
from vpo_lightning.verdict import Verdict, try_to_judge

Job = tuple[PromptRow, str | None]


@dataclass(frozen=True)
class Score:
    """What scoring one answer gave.

    Attributes:
        flag: See `archive.Flag`.
        rewards: Zeros unless the flag is ``ok``.
        key: Equal for answers that the task takes for the same.
        seconds: Its share of the wall time.
        reason: Why there is no vector; "" where there is one.
    """

    flag: Flag
    rewards: tuple[float, ...]
    key: str
    seconds: float
    reason: str = ""


class AnswerScorer:
    """Scores answers one by one.

    Args:
        task: The task.
        judges: Processes that can be killed; None scores in this process, for tasks that cannot
            block.
    """

    def __init__(self, task: Task, judges: Judges | None) -> None:
        self._task = task
        self._judges = judges

    def score(self, jobs: Sequence[Job]) -> list[Score]:
        """The score of each answer, in order; None for a text is a missing slot."""
        started = time.perf_counter()
        items = [(row, text) for row, text in jobs if text is not None]
        if self._judges is not None:
            verdicts = self._judges.judge(items)
        else:
            verdicts = [try_to_judge(self._task, row, text) for row, text in items]
        share = (time.perf_counter() - started) / max(1, len(items))
        left = iter(verdicts)
        return [
            _missing(row) if text is None else _score(row, text, next(left), share)
            for row, text in jobs
        ]

    def close(self) -> None:
        """Ends the processes."""
        if self._judges is not None:
            self._judges.close()

    def __enter__(self) -> AnswerScorer:
        return self

    def __exit__(self, *details: object) -> None:
        self.close()


def _missing(row: PromptRow) -> Score:
    return Score("missing", (0.0,) * len(row.objectives), _digest(""), 0.0)


def _score(row: PromptRow, text: str, verdict: Verdict, seconds: float) -> Score:
    if verdict.error is None and verdict.is_parsed:
        return Score("ok", tuple(verdict.rewards), _digest(repr(verdict.key)), seconds)
    flag: Flag = "timeout" if verdict.is_late else "unparsed" if verdict.error is None else "failed"
    zeros = (0.0,) * len(row.objectives)
    return Score(flag, zeros, _digest(text), seconds, verdict.error or "")


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
