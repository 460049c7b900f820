"""What every search is: it proposes calls, learns from the scored answers, and selects one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from typing_extensions import override

from vpo_lightning.searching.archive import Answer, Proposal, Reply
from vpo_lightning.searching.problem import Problem
from vpo_lightning.searching.quality import Guide, Solved

if TYPE_CHECKING:
    from vpo_lightning.searching.loop import PromptSearch, SearchLoop


class Searcher(Protocol):
    """A search on one prompt.

    It draws from generators derived from the problem's seed and reads nothing but the problem and
    the replies, so that equal replies make an equal search: that is what resuming rests on.
    """

    def propose(self) -> Sequence[Proposal]:
        """The calls to make next, the most wanted first; empty when the search is over.

        As many of them are made as the budget affords.
        """
        ...

    def learn(self, replies: Sequence[Reply]) -> None:
        """Takes in what came of the proposals that were made; the archive holds the answers."""
        ...


@dataclass(frozen=True, kw_only=True)
class Search(ABC):
    """A kind of search and its settings.

    Attributes:
        weights: One weight for each objective, what the search is to find the best answer for;
            None: the priorities are unknown (see `quality.Guide`).
    """

    weights: Sequence[float] | None = None

    @property
    def guide(self) -> Guide:
        """What the search steers by."""
        return Guide(self.weights)

    @abstractmethod
    def run(
        self, loop: SearchLoop, problems: Sequence[Problem], folder: Path
    ) -> tuple[list[PromptSearch], bool]:
        """Searches on all problems within the budget.

        Args:
            loop: Policy, scorer, budget and log.
            problems: The prompts.
            folder: For files of a search's own.

        Returns:
            The searches, and whether they came to their end.
        """

    def check(self, problem: Problem) -> None:
        """Refuses a problem that this search cannot work on.

        Raises:
            ConfigError: Names the key to change.
        """
        self.guide.check(problem.row)

    def rate(self, problem: Problem, answers: Sequence[Answer]) -> tuple[list[float | None], Any]:
        """What a judge says of new answers, and its `budget.Spent`; no rating and None without."""
        del problem
        return [None] * len(answers), None

    def select(self, problem: Problem, answers: Sequence[Answer]) -> Answer | None:
        """The answer to hand over: the best by the weights, the first of equals; None of none."""
        values = [
            self.guide.answer_value(problem.task, problem.row, answer.rewards) for answer in answers
        ]
        return answers[values.index(max(values))] if answers else None


@dataclass(frozen=True, kw_only=True)
class RoundSearch(Search):
    """A search that proposes calls and learns from the answers, round by round."""

    @abstractmethod
    def begin(self, problem: Problem, solved: Solved) -> Searcher:
        """A search on one prompt."""

    @override
    def run(
        self, loop: SearchLoop, problems: Sequence[Problem], folder: Path
    ) -> tuple[list[PromptSearch], bool]:
        del folder
        return loop.run(problems, self.begin)
