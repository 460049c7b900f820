"""From parsed answers to the reward matrix of a rollout, and what happened to each slot."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from vpo_lightning.errors import ConfigError
from vpo_lightning.task import Objective, PromptRow, Task
from vpo_lightning.verdict import Verdict, judge_answer


@dataclass(frozen=True)
class ScoredAnswer:
    """One slot of a chain.

    Attributes:
        slot: Position in the chain, from 0.
        text: Text of the answer, None if the slot is missing.
        rewards: Its own reward vector (K), zeros if it was not parsed.
        is_parsed: Whether the task could read it.
        is_duplicate: Whether an earlier slot holds the same answer.
        explanation: Why it got these rewards, for a reader; empty unless asked for.
        error: Why it could not be scored, so that its rewards are the declared failure value.
    """

    slot: int
    text: str | None
    rewards: list[float]
    is_parsed: bool
    is_duplicate: bool
    explanation: str = ""
    error: str | None = None


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
    """The rewards of the answers of one rollout, computed here and now; see `scorer` for more.

    Args:
        task: Scores each answer on its own.
        row: The prompt that was answered.
        texts: The parsed answers by slot (m entries, None where one is missing).
        deduplicate: Training removes duplicates; evaluation scores every slot (False: one row per
            slot, in place).

    Raises:
        ScoringError: The task returned something else than one finite number for each objective.
        Exception: Whatever the task raises.
    """
    verdicts = [None if text is None else judge_answer(task, row, text) for text in texts]
    return assemble(task, row, texts, verdicts, deduplicate=deduplicate)


def assemble(
    task: Task,
    row: PromptRow,
    texts: Sequence[str | None],
    verdicts: Sequence[Verdict | None],
    *,
    deduplicate: bool = True,
) -> ScoredCompletion:
    """The rewards of a rollout from the verdicts on its answers, None where a slot is missing.

    An answer that could not be scored counts as parsed and is a duplicate of none.
    """
    zeros = [0.0] * len(row.objectives)
    seen: set[Hashable] = set()
    answers: list[ScoredAnswer] = []
    matrix: list[list[float]] = []
    for slot, (text, given) in enumerate(zip(texts, verdicts, strict=True)):
        verdict = given or Verdict(is_parsed=False, rewards=zeros, key=tuple(zeros))
        is_dropped = not verdict.is_parsed and task.drops_unparsed
        is_duplicate = not is_dropped and verdict.error is None and verdict.key in seen
        if not is_dropped and verdict.error is None:
            seen.add(verdict.key)
        is_repeated = is_duplicate and verdict.is_parsed
        answers.append(
            ScoredAnswer(
                slot,
                text,
                verdict.rewards,
                verdict.is_parsed,
                is_repeated,
                verdict.explanation,
                verdict.error,
            )
        )
        if not deduplicate or not (is_dropped or is_duplicate):
            matrix.append(verdict.rewards)
    if task.pads_answers or not deduplicate:
        matrix += [zeros] * (len(texts) - len(matrix))
    return ScoredCompletion(answers, matrix or [zeros])


@dataclass(frozen=True)
class RewardVector:
    """The reward vector a method sees, made from the one a task scores.

    Attributes:
        objectives: Names of the objectives to keep, in this order; None keeps all.
        scale: Factor by objective name; 1 where a name is missing, None for all.
        floor: Smallest value by objective name that still counts: below it the whole answer is
            worth zero.
        weights: Fixed weight by objective name, for scalar methods; None uses the task's.
        collapse: One objective, the weighted mean of those kept (what scalar RL sees).
    """

    objectives: Sequence[str] | None = None
    scale: Mapping[str, float] | None = None
    floor: Mapping[str, float] | None = None
    weights: Mapping[str, float] | None = None
    collapse: bool = False

    def select(self, declared: Sequence[Objective]) -> list[Objective]:
        """The objectives that are left of those a row declares, with their fixed weights.

        Raises:
            ConfigError: A name that the row does not have, or weights that sum to nothing.
        """
        by_name = {objective.name: objective for objective in declared}
        wanted = list(self.objectives) if self.objectives is not None else list(by_name)
        for key, names in (
            ("objectives", wanted),
            ("scale", self.scale or {}),
            ("floor", self.floor or {}),
            ("weights", self.weights or {}),
        ):
            unknown = [name for name in names if name not in by_name]
            if unknown:
                raise ConfigError(
                    f"reward_vector.{key}={unknown}: no such objective; "
                    f"the task has {list(by_name)}"
                )
        kept = [self._weighted(by_name[name]) for name in wanted]
        if not kept or sum(objective.weight for objective in kept) <= 0:
            raise ConfigError(
                "reward_vector leaves no objective with a positive weight; "
                "set reward_vector.objectives or reward_vector.weights"
            )
        if self.collapse:
            return [Objective("scalar", "the weighted mean of all objectives")]
        return kept

    def apply(
        self, declared: Sequence[Objective], matrix: Sequence[Sequence[float]]
    ) -> list[list[float]]:
        """The rows of a reward matrix over the selected objectives."""
        if self == RewardVector():
            return [list(row) for row in matrix]
        names = [objective.name for objective in declared]
        wanted = list(self.objectives) if self.objectives is not None else names
        kept = [self._weighted(declared[names.index(name)]) for name in wanted]
        return [self._row(dict(zip(names, row, strict=True)), kept) for row in matrix]

    def _weighted(self, objective: Objective) -> Objective:
        if self.weights is None:
            return objective
        weight = self.weights.get(objective.name, 0.0)
        return Objective(objective.name, objective.description, weight)

    def _row(self, values: Mapping[str, float], kept: Sequence[Objective]) -> list[float]:
        if any(values[name] < least for name, least in (self.floor or {}).items()):
            row = [0.0] * len(kept)
        else:
            scale = self.scale or {}
            row = [values[o.name] * scale.get(o.name, 1.0) for o in kept]
        if not self.collapse:
            return row
        total = sum(o.weight for o in kept)
        return [sum(o.weight * value for o, value in zip(kept, row, strict=True)) / total]
