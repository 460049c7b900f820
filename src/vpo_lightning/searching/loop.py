"""Drives the searches on all prompts in rounds, within the budget, and keeps a log to resume from.

A round asks the policy for the next calls of every prompt that is not over, in one batch, scores
the answers, and appends ONE line to the log before any search learns of it. Searches depend on the
replies alone, so a run that was interrupted at any point plays the log again, makes the round that
was not logged once more with the same seeds in the same batch, and ends with the same archive.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from vpo_lightning.core.seeding import derive_seed
from vpo_lightning.errors import ConfigError
from vpo_lightning.searching.archive import Answer, Proposal, Reply
from vpo_lightning.searching.budget import Budget, Spent
from vpo_lightning.searching.curves import Curve
from vpo_lightning.searching.events import EventLog
from vpo_lightning.searching.policies import Ask, Policy, Sample
from vpo_lightning.searching.problem import Problem
from vpo_lightning.searching.quality import Solved
from vpo_lightning.searching.scores import AnswerScorer
from vpo_lightning.searching.search import Search, Searcher


@dataclass
class PromptSearch:
    """The search on one prompt.

    Attributes:
        problem: The prompt and its archive.
        searcher: Proposes and learns.
        spent: Its costs.
        curve: Quality against cost.
        failures: Answers and completions that went wrong, by kind.
        is_over: Whether nothing more is proposed or affordable.
    """

    problem: Problem
    searcher: Searcher
    curve: Curve
    spent: Spent = field(default_factory=Spent)
    failures: Counter[str] = field(default_factory=Counter)
    is_over: bool = False


@dataclass
class SearchLoop:
    """Everything that a search on a set of prompts needs.

    Attributes:
        search: The kind of search.
        policy: Answers.
        scorer: Scores.
        budget: Of each prompt.
        solved: When a prompt counts as solved.
        log: Where rounds are recorded.
        is_stopping: Asked between rounds; True ends the run, which can be resumed.
        report: Told of each round: its number and the prompts that are not over.
    """

    search: Search
    policy: Policy
    scorer: AnswerScorer
    budget: Budget
    solved: Solved
    log: EventLog
    is_stopping: Callable[[], bool] = lambda: False
    report: Callable[[int, int], None] = lambda number, active: None

    def run(
        self, problems: Sequence[Problem], begin: Callable[[Problem, Solved], Searcher]
    ) -> tuple[list[PromptSearch], bool]:
        """The searches on all prompts, and whether they came to their end.

        Args:
            problems: The prompts.
            begin: The search on one prompt.

        Raises:
            ConfigError: A problem the search cannot work on, or a log of another search.
        """
        searches = [self._begin(problem, begin) for problem in problems]
        for number, event in enumerate(self.log.recorded()):
            planned = self._plan(searches)
            if event.get("round") != number or set(event["replies"]) != set(planned):
                raise ConfigError(
                    f"{self.log.path}: round {number} was made by another search or other "
                    "prompts; choose another out"
                )
            self._take(searches, planned, event["replies"])
        number = self.log.length
        while planned := self._plan(searches):
            if self.is_stopping():
                return searches, False
            replies = self._make(searches, planned)
            self.log.append({"round": number, "replies": replies})
            self._take(searches, planned, replies)
            number += 1
            self.report(number, sum(not search.is_over for search in searches))
        return searches, True

    def _begin(
        self, problem: Problem, begin: Callable[[Problem, Solved], Searcher]
    ) -> PromptSearch:
        self.solved.check(problem.row)
        self.search.check(problem)
        searcher = begin(problem, self.solved)
        return PromptSearch(problem, searcher, Curve(problem, self.search, self.solved))

    def _plan(self, searches: Sequence[PromptSearch]) -> dict[str, list[Proposal]]:
        """The affordable proposals by prompt id; searches without any are over."""
        planned: dict[str, list[Proposal]] = {}
        for search in searches:
            if search.is_over:
                continue
            proposals = list(search.searcher.propose())
            costs = [(p.num_answers, self._most_tokens(p)) for p in proposals]
            count = self.budget.affordable(search.spent, costs)
            if proposals and not count and not search.spent.calls:
                raise ConfigError(
                    f"budget.answers={self.budget.answers}: the first call of this search asks for "
                    f"{proposals[0].num_answers} answers; raise the budget, or lower m"
                )
            search.is_over = count == 0
            if count:
                planned[search.problem.row.id] = proposals[:count]
        return planned

    def _most_tokens(self, proposal: Proposal) -> int:
        if self.budget.tokens is None:
            return 0
        prompt = self.policy.num_tokens(proposal.messages) + len(proposal.chain.ids)
        return prompt + self.policy.max_tokens

    def _make(
        self, searches: Sequence[PromptSearch], planned: dict[str, list[Proposal]]
    ) -> dict[str, list[dict[str, Any]]]:
        """Asks, scores and rates; what the log holds, by prompt id."""
        active = [search for search in searches if search.problem.row.id in planned]
        pairs = [(s, i, p) for s in active for i, p in enumerate(planned[s.problem.row.id])]
        samples = self.policy.sample([self._ask(s, i, p) for s, i, p in pairs])
        texts = [
            search.problem.read(proposal, sample)[1]
            for (search, _, proposal), sample in zip(pairs, samples, strict=True)
        ]
        jobs = [
            (s.problem.row, text)
            for (s, _, _), slots in zip(pairs, texts, strict=True)
            for text in slots
        ]
        scores = iter(self.scorer.score(jobs))
        replies: dict[str, list[dict[str, Any]]] = {name: [] for name in planned}
        for (search, i, _), sample, slots in zip(pairs, samples, texts, strict=True):
            row = search.problem.row
            scored = [next(scores) for _ in slots]
            call = search.spent.calls + i
            answers = [
                Answer(0, call, 0, text, score.rewards, score.flag, score.key)
                for text, score in zip(slots, scored, strict=True)
            ]
            ratings, judged = self.search.rate(search.problem, answers)
            replies[row.id].append(
                {
                    "sample": asdict(sample),
                    "answers": [
                        {**asdict(score), "rating": rating}
                        for score, rating in zip(scored, ratings, strict=True)
                    ],
                    "judge": None if judged is None else asdict(judged),
                }
            )
        return json.loads(json.dumps(replies))

    def _ask(self, search: PromptSearch, position: int, proposal: Proposal) -> Ask:
        problem = search.problem
        seed = derive_seed(problem.seed, "search", problem.row.id, search.spent.calls + position)
        return Ask(
            problem.row.id,
            proposal.messages,
            proposal.chain.ids,
            seed,
            problem.stop_rule(proposal),
        )

    def _take(
        self,
        searches: Sequence[PromptSearch],
        planned: dict[str, list[Proposal]],
        replies: dict[str, list[dict[str, Any]]],
    ) -> None:
        """Books what a round gave, and lets the searches learn of it."""
        for search in searches:
            name = search.problem.row.id
            if name not in planned:
                continue
            learnt = [
                self._book(search, proposal, record)
                for proposal, record in zip(planned[name], replies[name], strict=True)
            ]
            search.searcher.learn(learnt)

    def _book(self, search: PromptSearch, proposal: Proposal, record: dict[str, Any]) -> Reply:
        sample = Sample(**{**record["sample"], "ids": tuple(record["sample"]["ids"])})
        chain, texts = search.problem.read(proposal, sample)
        archive, answers = search.problem.archive.answers, list[Answer]()
        for slot, (text, score) in enumerate(zip(texts, record["answers"], strict=True)):
            answer = Answer(
                index=len(archive),
                call=search.spent.calls,
                slot=proposal.chain.num_answers + slot,
                text=text,
                rewards=tuple(score["rewards"]),
                flag=score["flag"],
                key=score["key"],
                rating=score["rating"],
            )
            archive.append(answer)
            answers.append(answer)
            search.failures[score["flag"]] += score["flag"] != "ok"
        search.failures["truncated"] += sample.finish == "length"
        search.spent.add(_costs(proposal, sample, record))
        search.curve.add(search.spent, answers)
        return Reply(proposal, chain, answers)


def _costs(proposal: Proposal, sample: Sample, record: dict[str, Any]) -> Spent:
    costs = Spent(
        calls=1,
        answers=proposal.num_answers,
        prompt_tokens=sample.prompt_tokens,
        completion_tokens=sample.completion_tokens,
        generation_seconds=sample.seconds,
        scorer_seconds=sum(score["seconds"] for score in record["answers"]),
    )
    if record["judge"] is not None:
        costs = replace(costs, **{k: v for k, v in record["judge"].items() if v})
    return costs
