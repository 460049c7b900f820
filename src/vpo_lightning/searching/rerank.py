"""Re-ranking: best-of-n that chooses by given weights, by majority, or by what a judge says."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from typing_extensions import override

from vpo_lightning.errors import ConfigError
from vpo_lightning.evaluation.texts import normalised
from vpo_lightning.searching.archive import Answer
from vpo_lightning.searching.best_of_n import BestOfN
from vpo_lightning.searching.budget import Spent
from vpo_lightning.searching.endpoint import Endpoint, read_completion
from vpo_lightning.searching.problem import Problem
from vpo_lightning.task import Task

_KINDS = ("weights", "majority", "judge")
_NUMBER = re.compile(r"(?<![\d.])(10(?:\.0+)?|\d(?:\.\d+)?)(?![\d.])")


@dataclass(frozen=True, kw_only=True)
class Rerank(BestOfN):
    """Samples like best-of-n and ranks the answers in one of three ways.

    Attributes:
        by: ``weights``: by the weighted reward, for the given weights. ``majority``: the answer
            given most often (self-consistency), the first of equals; the task says which are the
            same by `Task.vote`, or else by a `duplicate_key` of its own, or else they are the same
            words. ``judge``: by what a language model says, from 0 to 10.
        judge: The judge's endpoint, for ``by=judge``.
        judge_prompt: What it is asked; ``{question}`` and ``{answer}`` are filled in.

    Raises:
        ConfigError: Another way, or one without what it needs.
    """

    by: str = "majority"
    judge: Endpoint = field(default_factory=Endpoint)
    judge_prompt: str = (
        "Question:\n{question}\n\nAnswer:\n{answer}\n\nHow good is this answer? Reply with one "
        "number from 0 (useless) to 10 (perfect) and nothing else."
    )

    def __post_init__(self) -> None:
        """Checks the settings."""
        super().__post_init__()
        if self.by not in _KINDS:
            raise ConfigError(f"search.by={self.by}: it must be one of {', '.join(_KINDS)}")
        if self.by == "weights" and self.weights is None:
            raise ConfigError("search.by=weights: set search.weights to one weight per objective")
        if self.by == "judge" and self.judge.url is None:
            raise ConfigError("search.by=judge: set search.judge.url to the judge's endpoint")

    @override
    def rate(self, problem: Problem, answers: Sequence[Answer]) -> tuple[list[float | None], Any]:
        if self.by != "judge":
            return super().rate(problem, answers)
        ratings: list[float | None] = []
        spent = Spent()
        model = self.judge.model_name()
        for answer in answers:
            if answer.text is None or not answer.text.strip():
                ratings.append(None)
                continue
            question = self.judge_prompt.format(question=problem.row.prompt, answer=answer.text)
            reply = self.judge.chat(
                {
                    "model": model,
                    "messages": [{"role": "user", "content": question}],
                    "max_tokens": 16,
                    "temperature": 0.0,
                }
            )
            text, _, read, written = read_completion(reply)
            ratings.append(read_rating(text))
            spent.add(Spent(judge_calls=1, judge_tokens=read + written))
        return ratings, spent

    @override
    def select(self, problem: Problem, answers: Sequence[Answer]) -> Answer | None:
        if self.by == "weights" or not answers:
            return super().select(problem, answers)
        if self.by == "judge":
            return max(answers, key=lambda answer: -1.0 if answer.rating is None else answer.rating)
        readable = [answer for answer in answers if answer.flag not in ("missing", "unparsed")]
        ballots = [_ballot(problem.task, answer.text or "", answer.key) for answer in readable]
        counts = Counter(ballot for ballot in ballots if ballot is not None)
        if not counts:
            return (readable or answers)[0]
        (winner, _) = counts.most_common(1)[0]
        return readable[ballots.index(winner)]


def _ballot(task: Task, text: str, key: str) -> str | None:
    """What an answer counts for: its vote, else what makes it a duplicate, else its words.

    Never its rewards, which the duplicates of many tasks are told by: where answers are put to the
    vote nobody knows them.
    """
    if type(task).vote is not Task.vote:
        return task.vote(text)
    return normalised(text) if type(task).duplicate_key is Task.duplicate_key else key


def read_rating(text: str) -> float | None:
    """The first number from 0 to 10 in a judge's reply; None if there is none."""
    found = _NUMBER.search(text)
    return float(found.group(1)) if found else None
