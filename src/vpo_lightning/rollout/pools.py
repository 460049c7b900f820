"""Pools of answers for evaluation: chains or single answers, an equal number for every method."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
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
        num_answers: Answers in each pool.
        seed: Every draw is derived from (seed, prompt id, sample).
        weights: What a style that shows weights is asked with: "fixed", the fixed weights of the
            reward vector; "grid", a Sobol point on the simplex of its own for each chain, the same
            for every prompt; or weight vectors, which the chains of a pool take in turn.
        reward_vector: The objectives that such a prompt names, as in training.
        scorer: Scores answers; None scores them in this process, where a failure raises.
    """

    task: Task
    engine: RolloutEngine
    encode: Callable[[list[Message]], list[int]]
    num_answers: int
    seed: int
    weights: Asked = "fixed"
    reward_vector: RewardVector = field(default_factory=RewardVector)
    scorer: Scorer | None = None

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
        chains = self.num_answers // prompt.num_answers
        asked = [self._asked(row, prompt, chains) for row in rows]
        requests = [
            self._request(row, prompt, asked[i][j], range(j, chains, len(asked[i])))
            for i, row in enumerate(rows)
            for j in range(len(asked[i]))
        ]
        shares = iter(self.engine.generate(requests, sampling))
        pools: list[PromptPool] = []
        for row, vectors in zip(rows, asked, strict=True):
            parts = [next(shares) for _ in vectors]
            group = [parts[c % len(parts)][c // len(parts)] for c in range(chains)]
            shown = [vectors[c % len(vectors)] for c in range(chains)]
            pools.append(self._pool(row, prompt, group, shown))
        return pools

    def _asked(
        self, row: PromptRow, prompt: PromptStyle, chains: int
    ) -> list[list[float]] | list[None]:
        """The weights that are stated to the chains of a pool, in turn; None if none are."""
        if not prompt.shows_weights:
            return [None]
        kept = self.reward_vector.select(row.objectives)
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

    def _pool(
        self,
        row: PromptRow,
        prompt: PromptStyle,
        completions: Sequence[Completion],
        shown: Sequence[Sequence[float] | None],
    ) -> PromptPool:
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
        )


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
