"""From parsed answers to the reward matrix of a rollout, and what happened to each slot on the way."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from vpo_lightning.task import PromptRow, Task


@dataclass(frozen=True)
class ScoredAnswer:
    """One slot of a chain.

    Attributes:
        slot: Position in the chain, from 0.
        text: Text of the answer, None if the slot is missing.
        rewards: Its own reward vector (K), zeros if it was not parsed.
        is_parsed: Whether the task could read it.
        is_duplicate: Whether an earlier slot holds the same answer.
    """

    slot: int
    text: str | None
    rewards: list[float]
    is_parsed: bool
    is_duplicate: bool


@dataclass(frozen=True)
class ScoredCompletion:
    """The scored answers of one rollout.

    Attributes:
        answers: Every slot as it was written (m entries).
        matrix: The reward matrix that training uses: duplicates removed, later rows moved forward,
            zero rows up to m (unless the task does not pad).
    """

    answers: list[ScoredAnswer]
    matrix: list[list[float]]

    @property
    def num_parsed(self) -> int:
        """Parsed answers, counted before duplicates are removed."""
        return sum(answer.is_parsed for answer in self.answers)


def score_answers(
    task: Task, row: PromptRow, texts: Sequence[str | None], *, deduplicate: bool = True
) -> ScoredCompletion:
    """The rewards of the answers of one rollout.

    Args:
        task: Scores each answer on its own.
        row: The prompt that was answered.
        texts: The parsed answers by slot (m entries, None where one is missing).
        deduplicate: Training removes duplicates; evaluation scores every slot (False: one row per
            slot, in place).

    Raises:
        ValueError: The task returned a vector whose length is not the row's number of objectives.
    """
    zeros = [0.0] * len(row.objectives)
    seen: set[Hashable] = set()
    answers: list[ScoredAnswer] = []
    matrix: list[list[float]] = []
    for slot, text in enumerate(texts):
        is_parsed = text is not None and task.is_parsed(text)
        rewards = _checked(task, row, text) if text is not None and is_parsed else zeros
        is_dropped = not is_parsed and task.drops_unparsed
        key = task.duplicate_key(text, rewards) if text is not None else tuple(zeros)
        is_duplicate = not is_dropped and key in seen
        if not is_dropped:
            seen.add(key)
        answers.append(ScoredAnswer(slot, text, rewards, is_parsed, is_duplicate and is_parsed))
        if not deduplicate or not (is_dropped or is_duplicate):
            matrix.append(rewards)
    if task.pads_answers or not deduplicate:
        matrix += [zeros] * (len(texts) - len(matrix))
    return ScoredCompletion(answers, matrix or [zeros])


def _checked(task: Task, row: PromptRow, text: str) -> list[float]:
    rewards = task.score(text, row)
    if len(rewards) != len(row.objectives):
        names = [objective.name for objective in row.objectives]
        raise ValueError(
            f"{type(task).__name__}.score returned {len(rewards)} values for row {row.id}; "
            f"expected one for each objective of {names}"
        )
    return rewards
