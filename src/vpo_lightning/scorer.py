"""Scores the answers of many rollouts: in this process, or in others that can be killed.

A task may be anyone's, and its scoring may wait for a judge, hang, crash, or return nonsense. Such
an answer gets a declared value, is counted and logged; the others are scored as ever.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from vpo_lightning.errors import ConfigError
from vpo_lightning.scoring import ScoredCompletion, assemble
from vpo_lightning.task import PromptRow, Task
from vpo_lightning.verdict import ScoringError, Verdict, try_to_judge

Chain = tuple[PromptRow, Sequence[str | None]]
"""A prompt and the parsed answers of one rollout by slot, None where one is missing."""

_SHOWN = 3  # failures that are logged each; later ones at every power of ten

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ScoringSettings:
    """Where answers are scored, and what becomes of one that cannot be.

    Attributes:
        workers: Processes that score; 0 is this one. ``auto`` takes this one for tasks that cannot
            block, and otherwise one for each CPU that this training process may use.
        deadline: Seconds for one answer, after which its process is killed and replaced; scoring
            in this process has none.
        failure_value: Every reward of an answer that could not be scored; None raises instead.
        explain: Ask the task why each answer got its rewards.

    Raises:
        ConfigError: A value that cannot work.
    """

    workers: int | str = 0
    deadline: float = 60.0
    failure_value: float | None = None
    explain: bool = False

    def __post_init__(self) -> None:
        """Checks the values."""
        is_count = isinstance(self.workers, int) and not isinstance(self.workers, bool)
        if self.workers != "auto" and not (is_count and int(self.workers) >= 0):
            raise ConfigError(
                f"scoring.workers={self.workers}: expected a number of processes, 0 for none of "
                f"their own, or auto"
            )
        if not isinstance(self.deadline, int | float) or not 0 < self.deadline < float("inf"):
            raise ConfigError(f"scoring.deadline={self.deadline}: expected a number of seconds")
        value = self.failure_value
        if value is not None and not (isinstance(value, int | float) and 0 <= value <= 1):
            raise ConfigError(
                f"scoring.failure_value={value}: expected a reward from 0 to 1, or null"
            )
        if not isinstance(self.explain, bool):
            raise ConfigError(f"scoring.explain={self.explain}: expected true or false")

    def num_workers(self, task: Task) -> int:
        """The number of processes that score answers of `task`."""
        if self.workers != "auto":
            return int(self.workers)
        processes = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        return max(1, len(os.sched_getaffinity(0)) // processes) if task.may_block else 0


class Judges(Protocol):
    """What judges answers elsewhere; see `scoring_pool`."""

    def judge(self, items: Sequence[tuple[PromptRow, str]]) -> list[Verdict]:
        """The verdict on each answer, in their order."""
        ...

    def counters(self) -> Mapping[str, int]:
        """The counters of the tasks there, added up."""
        ...

    def close(self) -> None:
        """Ends what was started."""


class Scorer:
    """Scores rollouts and counts what could not be scored.

    Args:
        task: The task.
        settings: What becomes of failures; by default they raise.
        judges: Judge the answers; None judges them in this process.
    """

    def __init__(
        self, task: Task, settings: ScoringSettings | None = None, judges: Judges | None = None
    ) -> None:
        self.task = task
        self.settings = settings or ScoringSettings()
        self.failures: Counter[str] = Counter()
        self._judges = judges

    def score(self, chains: Sequence[Chain], *, deduplicate: bool = True) -> list[ScoredCompletion]:
        """The scored answers of each rollout, see `score_answers`.

        Raises:
            ScoringError: There is no failure value, and an answer could not be scored.
        """
        results = self.try_to_score(chains, deduplicate=deduplicate)
        for result in results:
            if isinstance(result, ScoringError):
                raise result
        return [result for result in results if isinstance(result, ScoredCompletion)]

    def try_to_score(
        self, chains: Sequence[Chain], *, deduplicate: bool = True
    ) -> list[ScoredCompletion | ScoringError]:
        """The same, with the error in the place of a rollout that has one."""
        items = [(row, text) for row, texts in chains for text in texts if text is not None]
        verdicts = iter(self._settle(items, self._judge(items)))
        return [
            self._assembled(
                row,
                texts,
                [None if text is None else next(verdicts) for text in texts],
                deduplicate=deduplicate,
            )
            for row, texts in chains
        ]

    def counters(self) -> Mapping[str, int]:
        """Failures of all time, the late ones among them, and the task's own counters."""
        names = ("score_failures", "score_timeouts")
        elsewhere = {} if self._judges is None else self._judges.counters()
        return {
            **{name: self.failures[name] for name in names},
            **(Counter(self.task.counters()) + Counter(elsewhere)),
        }

    def close(self) -> None:
        """Ends the processes that judge; they start again when they are needed."""
        if self._judges is not None:
            self._judges.close()

    def _judge(self, items: Sequence[tuple[PromptRow, str]]) -> list[Verdict]:
        if self._judges is not None:
            return self._judges.judge(items)
        explain = self.settings.explain
        return [try_to_judge(self.task, row, text, explain=explain) for row, text in items]

    def _assembled(
        self,
        row: PromptRow,
        texts: Sequence[str | None],
        verdicts: Sequence[Verdict | None],
        *,
        deduplicate: bool,
    ) -> ScoredCompletion | ScoringError:
        for verdict in verdicts:
            if verdict is not None and verdict.error is not None and not verdict.rewards:
                error = ScoringError(verdict.error)
                error.__cause__ = verdict.cause
                return error
        return assemble(self.task, row, texts, verdicts, deduplicate=deduplicate)

    def _settle(
        self, items: Sequence[tuple[PromptRow, str]], verdicts: Sequence[Verdict]
    ) -> list[Verdict]:
        """The verdicts, with the failure value where one failed."""
        value, settled, failed = self.settings.failure_value, list(verdicts), 0
        for i, ((row, _), verdict) in enumerate(zip(items, verdicts, strict=True)):
            if verdict.error is None:
                continue
            failed += 1
            self.failures.update(["score_failures", *["score_timeouts"] * verdict.is_late])
            if value is not None:
                settled[i] = replace(verdict, rewards=[float(value)] * len(row.objectives))
                self._report(row, verdict.error)
        if failed == len(items) > 1 and value is not None:
            _log.error("none of %d answers could be scored: %s", failed, verdicts[0].error)
        return settled

    def _report(self, row: PromptRow, reason: str) -> None:
        count = self.failures["score_failures"]
        if count <= _SHOWN or str(count).strip("0") == "1":
            _log.warning(
                "an answer to %s could not be scored and gets %s (failure %d): %s",
                row.id,
                self.settings.failure_value,
                count,
                reason,
            )
