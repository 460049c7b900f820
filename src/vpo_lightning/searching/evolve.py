"""A small evolutionary loop over answers: islands, Pareto archives, parents by lexicase."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from dataclasses import dataclass

from typing_extensions import override

from vpo_lightning.core.seeding import derive_seed
from vpo_lightning.errors import ConfigError
from vpo_lightning.prompting import MultiAnswer
from vpo_lightning.searching.archive import Answer, Proposal, Reply, pareto_front
from vpo_lightning.searching.beam import check_chains
from vpo_lightning.searching.problem import Problem
from vpo_lightning.searching.quality import Solved
from vpo_lightning.searching.search import RoundSearch, Searcher
from vpo_lightning.task import PromptRow

_SELECTIONS = ("lexicase", "pareto")
_SHOWN = ("words", "chain")


@dataclass(frozen=True, kw_only=True)
class Evolve(RoundSearch):
    """Islands of answers that nothing on the island dominates; new answers grow from parents.

    A generation makes ``calls_per_island`` calls on every island. The first asks the plain
    question. Later ones choose parents on their island and either put them, with their reward
    vectors in words, into the prompt (``words``), or begin the chain with them, so that the policy
    goes on with answers that differ from its "own" earlier ones, which is what VPO trains
    (``chain``; the way for models with a closed vocabulary, which know no words for scores).

    Attributes:
        islands: Populations that meet only by migration.
        calls_per_island: Calls of a generation on each island.
        parents: Parents of a call; with ``chain`` fewer than the answers of a chain.
        shown: ``words`` or ``chain``.
        selection: ``lexicase``: the objectives are shuffled and those who are best at one after the
            other stay; ``pareto``: uniform over the front.
        capacity: Answers of an island at most; beyond it the front keeps those that lexicase
            chooses.
        migrate_every: Generations after which every island gets a parent of its neighbour; 0 never.
        most_parent_chars: Longer answers are not put into a prompt.

    Raises:
        ConfigError: A setting out of its range.
    """

    islands: int = 2
    calls_per_island: int = 1
    parents: int = 2
    shown: str = "words"
    selection: str = "lexicase"
    capacity: int = 16
    migrate_every: int = 3
    most_parent_chars: int = 4000

    def __post_init__(self) -> None:
        """Checks the settings."""
        for name in ("islands", "calls_per_island", "parents", "capacity", "most_parent_chars"):
            if getattr(self, name) < 1:
                raise ConfigError(f"search.{name}={getattr(self, name)}: it must be at least 1")
        if self.migrate_every < 0:
            raise ConfigError(f"search.migrate_every={self.migrate_every}: it must be at least 0")
        for name, choices in (("shown", _SHOWN), ("selection", _SELECTIONS)):
            if getattr(self, name) not in choices:
                raise ConfigError(
                    f"search.{name}={getattr(self, name)}: it must be {' or '.join(choices)}"
                )

    @override
    def check(self, problem: Problem) -> None:
        super().check(problem)
        if self.shown == "words":
            parent = Answer(0, 0, 0, "", (0.0,) * len(problem.row.objectives), "ok", "")
            try:
                problem.policy.num_tokens(problem.messages(with_parents(problem.row, [parent])))
            except ConfigError as error:
                raise ConfigError(
                    f"search.shown=words: {error}; or set search.shown=chain, which begins the "
                    "chain with the parents"
                ) from error
            return
        check_chains("evolve", problem)
        if not isinstance(problem.style, MultiAnswer) or self.parents >= problem.chain_length:
            raise ConfigError(
                f"search.parents={self.parents} with search.shown=chain: the policy writes chains "
                f"of {problem.chain_length} answers, and the parents are its beginning; set "
                "search.parents lower, or use a policy that writes longer chains"
            )

    @override
    def begin(self, problem: Problem, solved: Solved) -> Searcher:
        del solved
        return _Evolution(self, problem)


class _Evolution:
    def __init__(self, settings: Evolve, problem: Problem) -> None:
        self._settings = settings
        self._problem = problem
        self._islands: list[list[Answer]] = [[] for _ in range(settings.islands)]
        self._generation = 0

    def propose(self) -> Sequence[Proposal]:
        return [
            self._proposal(island, call)
            for island in range(self._settings.islands)
            for call in range(self._settings.calls_per_island)
        ]

    def learn(self, replies: Sequence[Reply]) -> None:
        calls = self._settings.calls_per_island
        for position, reply in enumerate(replies):
            island = position // calls
            born = [answer for answer in reply.answers if answer.flag == "ok"]
            self._islands[island] = self._surviving(self._islands[island] + born, island)
        self._generation += 1
        every = self._settings.migrate_every
        if every and self._generation % every == 0:
            self._migrate()

    def _proposal(self, island: int, call: int) -> Proposal:
        settings, problem = self._settings, self._problem
        rng = self._rng("parents", island, call)
        candidates = [
            answer
            for answer in self._islands[island]
            if len(answer.text or "") <= settings.most_parent_chars
        ]
        parents = self._chosen(candidates, settings.parents, rng)
        if not parents:
            return problem.whole_chain()
        if settings.shown == "words":
            return problem.whole_chain(with_parents(problem.row, parents))
        chain = problem.chain_of([answer.text or "" for answer in parents])
        left = problem.chain_length - len(parents)
        return Proposal(problem.messages(), chain, left, problem.chain_length)

    def _chosen(self, candidates: Sequence[Answer], count: int, rng: random.Random) -> list[Answer]:
        """Different parents, in random order of their choice."""
        left, chosen = list(candidates), []
        while left and len(chosen) < count:
            if self._settings.selection == "lexicase":
                parent = lexicase(left, rng)
            else:
                parent = rng.choice(left)
            chosen.append(parent)
            left = [answer for answer in left if answer.key != parent.key]
        return chosen

    def _surviving(self, answers: Sequence[Answer], island: int) -> list[Answer]:
        front = pareto_front(answers)
        if len(front) <= self._settings.capacity:
            return front
        rng = self._rng("survivors", island, len(self._problem.archive.answers))
        kept: list[Answer] = []
        while len(kept) < self._settings.capacity:
            kept.append(lexicase([answer for answer in front if answer not in kept], rng))
        return sorted(kept, key=lambda answer: answer.index)

    def _migrate(self) -> None:
        """Every island gets one parent of the island before it, in a ring."""
        guests = [
            lexicase(island, self._rng("migration", number, 0)) if island else None
            for number, island in enumerate(self._islands)
        ]
        for number in range(len(self._islands)):
            guest = guests[number - 1]
            if guest is not None and guest not in self._islands[number]:
                self._islands[number] = self._surviving([*self._islands[number], guest], number)

    def _rng(self, purpose: str, island: int, call: int) -> random.Random:
        names = (self._problem.row.id, purpose, self._generation, island, call)
        return random.Random(derive_seed(self._problem.seed, "evolve", *names))


def lexicase(answers: Sequence[Answer], rng: random.Random) -> Answer:
    """One of the answers: best at a first random objective, of those best at a second, and so on.

    Lexicase selection (Spector, 2012; Helmuth, Spector and Matheson, 2015): every objective decides
    first in some draws, so specialists are parents too.
    """
    left = list(answers)
    objectives = list(range(len(left[0].rewards)))
    rng.shuffle(objectives)
    for k in objectives:
        best = max(answer.rewards[k] for answer in left)
        left = [answer for answer in left if answer.rewards[k] == best]
    return rng.choice(left)


def with_parents(row: PromptRow, parents: Sequence[Answer]) -> PromptRow:
    """The row with its question followed by earlier answers and their reward vectors in words."""
    parts = [row.prompt, "Earlier answers, each rated from 0 (worst) to 1 (best):"]
    for number, parent in enumerate(parents, 1):
        ratings = "; ".join(
            f"{objective.description}: {reward:.2f}"
            for objective, reward in zip(row.objectives, parent.rewards, strict=True)
        )
        parts.append(f"Earlier answer {number} ({ratings}):\n{parent.text}")
    parts.append("Do better than these in at least one rating, and do not repeat them.")
    return dataclasses.replace(row, prompt="\n\n".join(parts))
