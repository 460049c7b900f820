"""What a domain declares: prompt rows, objectives, and how to score ONE answer.

The framework does the rest: it asks for m answers, parses them, drops duplicates, pads, and builds
the single, multi-answer and goal-conditioned prompts (`prompting`, `parsing`, `scoring`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from vpo_lightning.errors import ConfigError
from vpo_lightning.parsing import AnswerFormat
from vpo_lightning.picture import Element


@dataclass(frozen=True)
class Objective:
    """One component of the reward vector.

    Attributes:
        name: Key in metrics and tables, for instance ``gold``.
        description: What a high value means, in words a language model understands; it is shown in
            goal-conditioned prompts.
        weight: Relative weight in the task's scalar reward (the fixed scalarization of GRPO).
    """

    name: str
    description: str
    weight: float = 1.0


@dataclass(frozen=True)
class PromptRow:
    """One prompt of a task.

    Attributes:
        id: Unique within its split; random draws for the prompt are derived from it.
        prompt: The question, without any instruction about the answer format.
        ground_truth: JSON-serialisable data that `Task.score` needs.
        objectives: The K objectives of this row; K may differ between the rows of a task.
        system_prompt: System message of this row, in place of the task's; None for the task's.
    """

    id: str
    prompt: str
    ground_truth: Mapping[str, Any] = field(repr=False)
    objectives: tuple[Objective, ...]
    system_prompt: str | None = None


def first_rows(rows: Sequence[PromptRow], most: int | None = None) -> list[PromptRow]:
    """The first rows, at most so many; None takes all."""
    return [rows[i] for i in range(len(rows) if most is None else min(most, len(rows)))]


class Task(ABC):
    """A domain. A subclass and one yaml are all that a user's own domain needs.

    Class attributes:
        objectives: The objectives of rows that do not bring their own.
        answer_format: How answers are delimited in a completion.
        system_prompt: Text of the system message, or None for no system message.
        drops_unparsed: What removing duplicates does with an unparsed answer: True removes it and
            moves later answers forward, False keeps a zero row in its place.
        pads_answers: Whether a scored chain is padded with zero rows up to m.
        may_block: Whether scoring an answer may hang, wait or crash. If so it runs in processes of
            its own that can be killed, unless ``scoring.workers`` says otherwise; there only the
            constructor has run, not `rows`.
    """

    objectives: tuple[Objective, ...]
    answer_format: AnswerFormat
    system_prompt: str | None = None
    drops_unparsed: bool = False
    pads_answers: bool = True
    may_block: bool = True

    @abstractmethod
    def rows(self, split: str) -> Sequence[PromptRow]:
        """The prompts of `split` ("train" or "test"); random access, a fixed order.

        Raises:
            ConfigError: An unknown split, or a data file that is missing or malformed.
        """

    @abstractmethod
    def score(self, answer: str, row: PromptRow) -> list[float]:
        """The reward vector of one answer: K floats in [0, 1], in the order of `row.objectives`."""

    def is_parsed(self, answer: str) -> bool:
        """Whether the text of an answer holds something that can be scored at all."""
        return bool(answer.strip())

    def duplicate_key(self, answer: str, rewards: Sequence[float]) -> Hashable:
        """Answers of a chain with equal keys are duplicates; by default an equal reward vector."""
        del answer
        return tuple(rewards)

    def explain(self, answer: str, row: PromptRow) -> str:
        """Why an answer got its rewards, in one line for a reader: what was found and wanted.

        It is asked for right after `score`, and stored with the rollouts.
        """
        del answer, row
        return ""

    def vote(self, answer: str) -> str | None:
        """What majority voting counts: the final answer in a normal form, None for no vote.

        A task with free-form answers, where no two need be equal, does not override it.
        """
        del answer
        return None

    def scalar(self, rewards: Sequence[float], row: PromptRow) -> float:
        """The scalar reward of one answer: the mean of its K rewards by `Objective.weight`."""
        weights = [objective.weight for objective in row.objectives]
        return sum(w * r for w, r in zip(weights, rewards, strict=True)) / sum(weights)

    def set_scalar(self, matrix: Sequence[Sequence[float]], row: PromptRow) -> float:
        """The scalar reward of a chain: the sum over the rows of its reward matrix."""
        return sum(self.scalar(rewards, row) for rewards in matrix)

    def goal_scalar(
        self, rewards: Sequence[float], weights: Sequence[float], row: PromptRow
    ) -> float:
        """The scalar reward of a goal-conditioned answer: ``sum_i w_i r_i``.

        Raises:
            ConfigError: There is not one weight for each of the row's objectives.
        """
        if len(weights) != len(row.objectives):
            raise ConfigError(
                f"{len(weights)} weights for the {len(row.objectives)} objectives of {row.id}; "
                f"expected one for each"
            )
        return sum(w * r for w, r in zip(weights, rewards, strict=True))

    def row_from_ground_truth(self, row_id: str, ground_truth: Mapping[str, Any]) -> PromptRow:
        """A row without a question, to score completions whose ground truth is at hand.

        A task whose objectives depend on the row, or that can check the fields, overrides this.

        Raises:
            ConfigError: A field of the ground truth is missing or has another type.
        """
        return PromptRow(row_id, "", ground_truth, self.objectives)

    def row_from_record(self, row_id: str, record: Mapping[str, Any]) -> PromptRow:
        """The row of one record in the data set's own schema.

        Raises:
            ConfigError: A field is missing or has another type, or the task reads no records.
        """
        raise ConfigError(f"{type(self).__name__} reads no records; give ground_truth instead")

    def demonstrate(self, row: PromptRow, rng: Random) -> str:
        """The text of one answer to learn the format from, drawn by `rng`; not always the best.

        Raises:
            ConfigError: The task has no demonstrations.
        """
        raise ConfigError(
            f"{type(self).__name__} has no demonstrations to warm up with; set warmup=none"
        )

    def counters(self) -> Mapping[str, int]:
        """What could not be scored as it should since the task was made, by name; for logs."""
        return {}

    def picture(
        self, row: PromptRow, answers: Sequence[str], rewards: Sequence[Sequence[float]]
    ) -> Element | None:
        """The answers of one chain as a picture for the report, built by `picture.draw`.

        None, the default, shows the texts and rewards only. Nothing is scored again here.

        Args:
            row: The prompt.
            answers: The chain's answers by slot; the empty string where a slot is missing.
            rewards: The reward vector of each.
        """
        del row, answers, rewards
        return None

    def vocabulary(self) -> list[str]:
        """Every word of prompts and answers, for a model that is built from nothing.

        Raises:
            ConfigError: The task is written in natural language.
        """
        raise ConfigError(
            f"{type(self).__name__} has no closed vocabulary, so no model can be built for its "
            "words; choose a pretrained model, e.g. model=smollm2_135m"
        )

    def check(self) -> None:  # noqa: B027  (a task without settings has nothing to check)
        """Refuses settings and data files that cannot work; quick, and without importing torch.

        Raises:
            ConfigError: Names the key or the file and row to change.
        """
