"""The three ways to ask: one answer, a chain of m answers, one answer for stated priorities.

A prompt style is the `prompt` slot of an ablation. It builds the chat messages of a row from what
the task declares and knows how to read the answers out of the completion again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from typing_extensions import override

from vpo_lightning.errors import ConfigError
from vpo_lightning.parsing import StopRule
from vpo_lightning.task import PromptRow, Task

Message = dict[str, str]


def with_instruction(question: str, instruction: str) -> str:
    """The question, then the instruction; behind several lines in a paragraph of its own."""
    return question + ("\n\n" if "\n" in question else " ") + instruction


class PromptStyle(ABC):
    """How a rollout is asked for and read.

    Attributes:
        num_answers: m, the number of answers in one rollout.
        shows_weights: Whether the prompt states the weights under which the answer is rewarded.
    """

    num_answers: int = 1
    shows_weights: bool = False

    @abstractmethod
    def ask(self, task: Task, row: PromptRow, weights: Sequence[float] | None) -> str:
        """The instruction that follows the row's question."""

    def messages(
        self, task: Task, row: PromptRow, weights: Sequence[float] | None = None
    ) -> list[Message]:
        """Chat messages: the system prompt of row or task, if any, then question and instruction.

        Args:
            task: Declares format, objectives and system prompt.
            row: The prompt.
            weights: One weight per objective of the row, summing to 1; only used by a style that
                shows weights.
        """
        content = with_instruction(row.prompt, self.ask(task, row, weights))
        user = {"role": "user", "content": content}
        system = task.system_prompt if row.system_prompt is None else row.system_prompt
        if system is None:
            return [user]
        return [{"role": "system", "content": system}, user]

    def parse(self, task: Task, text: str) -> list[str | None]:
        """The answers of a completion by slot: `num_answers` entries, None where one is missing."""
        return [task.answer_format.parse_single(text)]

    def render(self, task: Task, answers: Sequence[str]) -> str:
        """The completion that holds `num_answers` answers, as a model should write it."""
        (answer,) = answers
        return task.answer_format.render_single(answer)

    def stop_rule(self, task: Task) -> StopRule | None:
        """Where a completion ends, beside the end-of-sequence token."""
        return task.answer_format.stop_single()


@dataclass(frozen=True)
class SingleAnswer(PromptStyle):
    """Asks for one answer."""

    @override
    def ask(self, task: Task, row: PromptRow, weights: Sequence[float] | None) -> str:
        del row, weights
        return task.answer_format.ask_single()


@dataclass(frozen=True)
class MultiAnswer(PromptStyle):
    """Asks for a chain of m answers, each later one written with the earlier in view.

    Raises:
        ConfigError: m < 1.
    """

    m: int = 3

    def __post_init__(self) -> None:
        """Checks m."""
        if self.m < 1:
            raise ConfigError(
                f"m={self.m}: a rollout needs at least one answer; set m to 1 or more"
            )

    @property
    def num_answers(self) -> int:  # type: ignore[override]
        """The number of answers in one rollout, m."""
        return self.m

    @override
    def ask(self, task: Task, row: PromptRow, weights: Sequence[float] | None) -> str:
        del row, weights
        return task.answer_format.ask_multiple(self.m)

    @override
    def parse(self, task: Task, text: str) -> list[str | None]:
        return task.answer_format.parse_multiple(text, self.m)

    @override
    def render(self, task: Task, answers: Sequence[str]) -> str:
        return task.answer_format.render_multiple(answers)

    @override
    def stop_rule(self, task: Task) -> StopRule | None:
        return task.answer_format.stop_multiple(self.m)


@dataclass(frozen=True)
class GoalConditioned(PromptStyle):
    """Asks for one answer and states, in words, the weights under which it is rewarded."""

    shows_weights = True

    @override
    def ask(self, task: Task, row: PromptRow, weights: Sequence[float] | None) -> str:
        if weights is None or len(weights) != len(row.objectives):
            raise ValueError(
                f"a goal-conditioned prompt needs one weight for each of the "
                f"{len(row.objectives)} objectives of {row.id}, got {weights}"
            )
        names = [objective.description for objective in row.objectives]
        goal = task.answer_format.ask_goal(names, weights)
        return f"{goal} {task.answer_format.ask_single()}"
