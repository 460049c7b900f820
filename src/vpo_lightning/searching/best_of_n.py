"""Best-of-n and rejection sampling: the same question again, until the budget ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from typing_extensions import override

from vpo_lightning.errors import ConfigError
from vpo_lightning.searching.archive import Proposal, Reply
from vpo_lightning.searching.problem import Problem
from vpo_lightning.searching.quality import Solved
from vpo_lightning.searching.search import RoundSearch, Searcher


@dataclass(frozen=True, kw_only=True)
class BestOfN(RoundSearch):
    """Samples complete chains (or single answers) and hands over the best answer.

    Attributes:
        calls_per_round: Calls that are sampled together. More is faster, and coarser where a limit
            on tokens or seconds ends the search.
        stop_when_solved: Rejection sampling: end with the round that holds a full solution.

    Raises:
        ConfigError: Rounds without a call.
    """

    calls_per_round: int = 10
    stop_when_solved: bool = False

    def __post_init__(self) -> None:
        """Checks the settings."""
        if self.calls_per_round < 1:
            raise ConfigError(
                f"search.calls_per_round={self.calls_per_round}: it must be at least 1"
            )

    @override
    def begin(self, problem: Problem, solved: Solved) -> Searcher:
        return _Sampling(self, problem, solved)


class _Sampling:
    def __init__(self, settings: BestOfN, problem: Problem, solved: Solved) -> None:
        self._settings = settings
        self._problem = problem
        self._solved = solved
        self._missing = solved.parts()

    def propose(self) -> Sequence[Proposal]:
        if self._settings.stop_when_solved and not self._missing:
            return []
        return [self._problem.whole_chain()] * self._settings.calls_per_round

    def learn(self, replies: Sequence[Reply]) -> None:
        task, row = self._problem.task, self._problem.row
        for reply in replies:
            for answer in reply.answers:
                self._missing -= self._solved.reached(task, row, answer.rewards)
