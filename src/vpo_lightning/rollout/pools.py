"""Pools of answers for evaluation: chains or single answers, an equal number for every method."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Literal

import torch

from vpo_lightning.core.seeding import derive_seed
from vpo_lightning.core.weights import sobol
from vpo_lightning.errors import ConfigError
from vpo_lightning.evaluation.pool import PromptPool
from vpo_lightning.prompting import Message, PromptStyle
from vpo_lightning.rollout.engine import (
    Completion,
    GenerationRequest,
    RolloutEngine,
    SamplingSettings,
)
from vpo_lightning.rollout.exchange import ALONE, Exchange
from vpo_lightning.scorer import Scorer
from vpo_lightning.scoring import RewardVector
from vpo_lightning.task import Objective, PromptRow, Task

Asked = Literal["fixed", "grid"] | Sequence[Sequence[float]]


@dataclass(frozen=True)
class PoolSampler:
    """Samples pools for evaluation.

    Attributes:
        task: Scores answers.
        engine: Samples completions.
        encode: Chat messages to token ids.
        num_answers: Answers in each pool, where there is no token budget.
        seed: Every draw is derived from (seed, prompt id, sample).
        weights: What a style that shows weights is asked with: "fixed", the fixed weights of the
            reward vector; "grid", a Sobol point on the simplex of its own for each chain, the same
            for every prompt; or weight vectors, which the chains of a pool take in turn.
        reward_vector: The objectives that such a prompt names, as in training.
        num_tokens: A budget of completion tokens for each pool instead: completions are taken as
            long as they fit into it together, at least one.
        scorer: Scores answers; None scores them in this process, where a failure raises.
        exchange: The processes that sample together, each its own prompts. They call the engine
            equally often, because it may be one engine for several of them.
    """

    task: Task
    engine: RolloutEngine
    encode: Callable[[list[Message]], list[int]]
    num_answers: int
    seed: int
    weights: Asked = "fixed"
    reward_vector: RewardVector = field(default_factory=RewardVector)
    num_tokens: int | None = None
    scorer: Scorer | None = None
    exchange: Exchange = ALONE

    def sample(
        self, rows: Sequence[PromptRow], prompt: PromptStyle, sampling: SamplingSettings
    ) -> list[PromptPool]:
        """One pool for each row: every slot of every chain scored, duplicates kept.

        Raises:
            ConfigError: The pool does not hold a whole number of chains, or `weights` are not one
                number for each objective.
        """
        if self.num_answers % prompt.num_answers:
            raise ConfigError(
                f"evaluation.num_answers={self.num_answers} is not a whole number of chains of "
                f"m={prompt.num_answers} answers; set it to a multiple of m"
            )
        if self.num_tokens is None:
            chains = range(self.num_answers // prompt.num_answers)
            calls = self._calls(rows, prompt, sampling, chains)
        else:
            calls = self._calls_within(self.num_tokens, rows, prompt, sampling)
        return [self._pool(row, prompt, group) for row, group in zip(rows, calls, strict=True)]

    def _calls_within(
        self,
        budget: int,
        rows: Sequence[PromptRow],
        prompt: PromptStyle,
        sampling: SamplingSettings,
    ) -> list[list[_Call]]:
        """The first completions of each prompt that fit into the budget together."""
        taken: list[list[_Call]] = [[] for _ in rows]
        unfinished, size, first = list(range(len(rows))), max(1, budget // sampling.max_tokens), 0
        while any(self.exchange.gather(bool(unfinished))):
            some = [rows[i] for i in unfinished]
            groups = self._calls(some, prompt, sampling, range(first, first + size))
            for i, group in zip(unfinished, groups, strict=True):
                taken[i] += group
            unfinished = [i for i in unfinished if sum(c.tokens for c in taken[i]) < budget]
            first += size
        return [_fitting(calls, budget) for calls in taken]

    def _calls(
        self,
        rows: Sequence[PromptRow],
        prompt: PromptStyle,
        sampling: SamplingSettings,
        chains: range,
    ) -> list[list[_Call]]:
        """The completions of those numbers for each prompt."""
        wanted: list[tuple[int, Sequence[float] | None, list[int]]] = []
        for i, row in enumerate(rows):
            vectors = self._asked(row, prompt)
            for j, vector in enumerate(vectors):
                numbers = [number for number in chains if number % len(vectors) == j]
                wanted += [(i, vector, numbers)] if numbers else []
        requests = [self._request(rows[i], prompt, vector, ns) for i, vector, ns in wanted]
        found: list[dict[int, _Call]] = [{} for _ in rows]
        sampled = self.engine.generate(requests, sampling)
        for (i, vector, numbers), request, group in zip(wanted, requests, sampled, strict=True):
            for number, completion in zip(numbers, group, strict=True):
                found[i][number] = _Call(completion, vector, len(request.prompt_ids))
        return [[calls[number] for number in chains] for calls in found]

    def _asked(self, row: PromptRow, prompt: PromptStyle) -> list[list[float]] | list[None]:
        """The weights that are stated to the chains of a pool, in turn; None if none are."""
        if not prompt.shows_weights:
            return [None]
        kept = self.reward_vector.select(row.objectives)
        chains = self.num_answers // prompt.num_answers
        if self.weights == "grid":
            return sobol(len(kept), torch.tensor(self.seed), num_draws=chains).tolist()
        vectors = [[o.weight for o in kept]] if self.weights == "fixed" else self.weights
        if any(len(vector) != len(kept) for vector in vectors):
            raise ConfigError(
                f"evaluation.weights={vectors}: prompt {row.id} has {len(kept)} objectives; give "
                "one number for each, or set evaluation.weights to fixed or grid"
            )
        return [[value / sum(vector) for value in vector] for vector in vectors[:chains]]

    def _request(
        self,
        row: PromptRow,
        prompt: PromptStyle,
        weights: Sequence[float] | None,
        chains: Sequence[int],
    ) -> GenerationRequest:
        seen = replace(row, objectives=tuple(self.reward_vector.select(row.objectives)))
        return GenerationRequest(
            id=row.id,
            prompt_ids=self.encode(prompt.messages(self.task, seen, weights)),
            seeds=[derive_seed(self.seed, "pool", row.id, chain) for chain in chains],
            stop=prompt.stop_rule(self.task),
        )

    def _pool(self, row: PromptRow, prompt: PromptStyle, calls: Sequence[_Call]) -> PromptPool:
        completions = [call.completion for call in calls]
        shown = [call.asked for call in calls]
        texts = [prompt.parse(self.task, completion.text) for completion in completions]
        scorer = self.scorer or Scorer(self.task)
        scored = scorer.score([(row, chain) for chain in texts], deduplicate=False)
        return PromptPool(
            prompt_id=row.id,
            objectives=[objective.name for objective in row.objectives],
            importance=[objective.weight for objective in row.objectives],
            rewards=[completion.matrix for completion in scored],
            texts=texts,
            tokens=[len(completion.ids) for completion in completions],
            is_truncated=[completion.finish_reason == "length" for completion in completions],
            asked=_over_all_objectives(row, self.reward_vector.select(row.objectives), shown),
            votes=_votes(self.task, texts),
            prompt_tokens=calls[0].prompt_tokens,
        )


@dataclass(frozen=True)
class _Call:
    """One completion, the weights its prompt stated, and the length of that prompt in tokens."""

    completion: Completion
    asked: Sequence[float] | None
    prompt_tokens: int

    @property
    def tokens(self) -> int:
        return len(self.completion.ids)


def _fitting(calls: Sequence[_Call], budget: int) -> list[_Call]:
    spent = list(accumulate(call.tokens for call in calls))
    return list(calls[: max(1, sum(total <= budget for total in spent))])


def _votes(task: Task, texts: Sequence[Sequence[str | None]]) -> list[list[str | None]] | None:
    """The votes of answers; None if the task has none."""
    if type(task).vote is Task.vote:
        return None
    return [[None if text is None else task.vote(text) for text in chain] for chain in texts]


def _over_all_objectives(
    row: PromptRow, kept: Sequence[Objective], shown: Sequence[Sequence[float] | None]
) -> list[list[float]] | None:
    """The stated weights with 0 for objectives that were not named; None if there were none."""
    position = {objective.name: i for i, objective in enumerate(row.objectives)}
    if any(objective.name not in position for objective in kept):  # collapsed into one
        return None
    asked: list[list[float]] = []
    for weights in shown:
        if weights is None:
            return None
        vector = [0.0] * len(row.objectives)
        for objective, weight in zip(kept, weights, strict=True):
            vector[position[objective.name]] = weight
        asked.append(vector)
    return asked
