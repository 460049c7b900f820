"""Pools of answers for evaluation: chains or single answers, an equal number for every method."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from vpo_lightning.core.seeding import derive_seed
from vpo_lightning.errors import ConfigError
from vpo_lightning.evaluation.pool import PromptPool
from vpo_lightning.prompting import Message, PromptStyle
from vpo_lightning.rollout.engine import (
    Completion,
    GenerationRequest,
    RolloutEngine,
    SamplingSettings,
)
from vpo_lightning.scoring import score_answers
from vpo_lightning.task import PromptRow, Task


@dataclass(frozen=True)
class PoolSampler:
    """Samples pools for evaluation.

    Attributes:
        task: Scores answers.
        engine: Samples completions.
        encode: Chat messages to token ids.
        num_answers: Answers in each pool.
        seed: Every draw is derived from (seed, prompt id, sample).
    """

    task: Task
    engine: RolloutEngine
    encode: Callable[[list[Message]], list[int]]
    num_answers: int
    seed: int

    def sample(
        self, rows: Sequence[PromptRow], prompt: PromptStyle, sampling: SamplingSettings
    ) -> list[PromptPool]:
        """One pool for each row: every slot of every chain scored, duplicates kept.

        A style that shows weights is asked with the fixed weights of the task.

        Raises:
            ConfigError: The pool does not hold a whole number of chains.
        """
        if self.num_answers % prompt.num_answers:
            raise ConfigError(
                f"evaluation.num_answers={self.num_answers} is not a whole number of chains of "
                f"m={prompt.num_answers} answers; set it to a multiple of m"
            )
        chains = self.num_answers // prompt.num_answers
        requests = [self._request(row, prompt, chains) for row in rows]
        completions = self.engine.generate(requests, sampling)
        return [
            self._pool(row, prompt, group) for row, group in zip(rows, completions, strict=True)
        ]

    def _request(self, row: PromptRow, prompt: PromptStyle, chains: int) -> GenerationRequest:
        total = sum(objective.weight for objective in row.objectives)
        weights = [objective.weight / total for objective in row.objectives]
        shown = weights if prompt.shows_weights else None
        return GenerationRequest(
            id=row.id,
            prompt_ids=self.encode(prompt.messages(self.task, row, shown)),
            seeds=[derive_seed(self.seed, "pool", row.id, sample) for sample in range(chains)],
            stop=prompt.stop_rule(self.task),
        )

    def _pool(
        self, row: PromptRow, prompt: PromptStyle, completions: Sequence[Completion]
    ) -> PromptPool:
        texts = [prompt.parse(self.task, completion.text) for completion in completions]
        scored = [score_answers(self.task, row, chain, deduplicate=False) for chain in texts]
        return PromptPool(
            prompt_id=row.id,
            objectives=[objective.name for objective in row.objectives],
            importance=[objective.weight for objective in row.objectives],
            rewards=[completion.matrix for completion in scored],
            texts=texts,
            tokens=[len(completion.ids) for completion in completions],
            is_truncated=[completion.finish_reason == "length" for completion in completions],
        )
