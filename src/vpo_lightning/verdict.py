"""What a task says about one answer, checked."""

from __future__ import annotations

import math
import traceback
from collections.abc import Hashable
from dataclasses import dataclass, replace

from vpo_lightning.task import PromptRow, Task


class ScoringError(ValueError):
    """A task gave something else than K finite numbers for an answer, or nothing in time."""


@dataclass(frozen=True)
class Verdict:
    """What a task says about one answer.

    Attributes:
        is_parsed: Whether the task could read it.
        rewards: K finite numbers; zeros if it was not parsed.
        key: Answers of a chain with equal keys are duplicates.
        explanation: Why it got these rewards, for a reader; empty unless asked for.
        error: Why it could not be scored; None if it was.
        is_late: Whether that is because the deadline passed.
        cause: What the task raised, where that is known.
    """

    is_parsed: bool
    rewards: list[float]
    key: Hashable
    explanation: str = ""
    error: str | None = None
    is_late: bool = False
    cause: BaseException | None = None


def judge_answer(task: Task, row: PromptRow, text: str, *, explain: bool = False) -> Verdict:
    """What the task says about one answer; raises what `score_answers` raises."""
    is_parsed = task.is_parsed(text)
    rewards = _checked(task, row, text) if is_parsed else [0.0] * len(row.objectives)
    key = task.duplicate_key(text, rewards)
    hash(key)
    return Verdict(bool(is_parsed), rewards, key, _explained(task, row, text) if explain else "")


def try_to_judge(task: Task, row: PromptRow, text: str, *, explain: bool = False) -> Verdict:
    """The same, with whatever the task raises as the verdict's error; its rewards are empty then.

    The task may be anyone's, so its faults belong to the answer and not to the run.
    """
    try:
        return judge_answer(task, row, text, explain=explain)
    except (Exception, SystemExit) as error:
        return replace(failed_verdict(_reason(error)), cause=error)


def failed_verdict(reason: str, *, is_late: bool = False) -> Verdict:
    """The verdict on an answer that could not be scored."""
    return Verdict(is_parsed=True, rewards=[], key=None, error=reason, is_late=is_late)


def _checked(task: Task, row: PromptRow, text: str) -> list[float]:
    rewards, names = task.score(text, row), [objective.name for objective in row.objectives]
    place = f"{type(task).__name__}.score returned"
    expected = f"for row {row.id}; expected one number for each objective of {names}"
    if isinstance(rewards, str | bytes) or not hasattr(rewards, "__len__"):
        raise ScoringError(f"{place} {rewards!r:.60} {expected}")
    if len(rewards) != len(names):
        raise ScoringError(f"{place} {len(rewards)} values {expected}")
    values: list[float] = []
    for name, reward in zip(names, rewards, strict=True):
        is_number = hasattr(reward, "__float__") and math.isfinite(float(reward))
        if not is_number:
            raise ScoringError(f"{place} {reward!r:.60} as {name} {expected}")
        values.append(float(reward))
    return values


def _explained(task: Task, row: PromptRow, text: str) -> str:
    try:
        return " ".join(str(task.explain(text, row)).split())
    except Exception as error:  # the answer has been scored; only its reader misses something
        return f"not explained: {_reason(error)}"


def _reason(error: BaseException) -> str:
    """What was raised, and where, in one line."""
    if isinstance(error, ScoringError):
        return str(error)
    (frame,) = traceback.extract_tb(error.__traceback__)[-1:] or [None]
    place = f" ({frame.filename}, line {frame.lineno})" if frame is not None else ""
    return " ".join(f"{type(error).__name__}: {error}".split())[:500] + place
