"""Beam search over partial chains: an answer at a time, the most promising beginnings go on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from typing_extensions import override

from vpo_lightning.errors import ConfigError
from vpo_lightning.searching.archive import Chain, Proposal, Reply
from vpo_lightning.searching.problem import Problem
from vpo_lightning.searching.quality import Solved
from vpo_lightning.searching.search import RoundSearch, Searcher

Vectors = tuple[tuple[float, ...], ...]


def check_chains(name: str, problem: Problem) -> None:
    """Refuses what cannot continue a chain behind an answer.

    Raises:
        ConfigError: The policy takes no token ids, or the task's answers have no end.
    """
    if not problem.policy.continues_chains:
        raise ConfigError(
            f"search={name}: chains are continued by token ids, which an endpoint does not take; "
            "set policy to a run folder or a model folder"
        )
    problem.stop_rule(problem.next_answer(Chain()))


@dataclass(frozen=True, kw_only=True)
class Beam(RoundSearch):
    """Keeps the beginnings of chains that are worth most and continues each in several ways.

    A pass begins with width x branches first answers and goes on to m answers; passes follow each
    other until the budget ends. A beginning is worth what its set of answers is worth by the guide.

    Attributes:
        width: Beginnings that go on.
        branches: Continuations of each.

    Raises:
        ConfigError: A width or number of branches below 1.
    """

    width: int = 2
    branches: int = 2

    def __post_init__(self) -> None:
        """Checks the settings."""
        for name in ("width", "branches"):
            if getattr(self, name) < 1:
                raise ConfigError(f"search.{name}={getattr(self, name)}: it must be at least 1")

    @override
    def check(self, problem: Problem) -> None:
        super().check(problem)
        check_chains("beam", problem)

    @override
    def begin(self, problem: Problem, solved: Solved) -> Searcher:
        del solved
        return _Passes(self, problem)


class _Passes:
    def __init__(self, settings: Beam, problem: Problem) -> None:
        self._settings = settings
        self._problem = problem
        self._beam: list[tuple[Chain, Vectors]] = []
        self._known: dict[Chain, Vectors] = {}

    def propose(self) -> Sequence[Proposal]:
        going_on = [chain for chain, _ in self._beam if chain.is_open]
        self._known = dict(self._beam) | {Chain(): ()}
        if not going_on:
            count = self._settings.width * self._settings.branches
            return [self._problem.next_answer(Chain())] * count
        return [
            self._problem.next_answer(chain)
            for chain in going_on
            for _ in range(self._settings.branches)
        ]

    def learn(self, replies: Sequence[Reply]) -> None:
        found: dict[Chain, Vectors] = {}
        for reply in replies:
            earlier = self._known[reply.proposal.chain]
            found[reply.chain] = (*earlier, *(answer.rewards for answer in reply.answers))
        best = sorted(found.items(), key=lambda item: -self._settings.guide.set_value(item[1]))
        self._beam = best[: self._settings.width]
