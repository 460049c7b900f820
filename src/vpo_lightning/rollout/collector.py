"""From prompt rows to credited rollouts: steps 1 to 7 of the way of the data, in one function."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from vpo_lightning.core.seeding import derive_seed
from vpo_lightning.prompting import PromptStyle
from vpo_lightning.rollout.batch import RolloutBatch, RolloutGroup
from vpo_lightning.rollout.engine import (
    Completion,
    GenerationRequest,
    RolloutEngine,
    SamplingSettings,
)
from vpo_lightning.rollout.metrics import rollout_metrics
from vpo_lightning.scoring import RewardVector, ScoredCompletion, score_answers
from vpo_lightning.task import Objective, PromptRow, Task

Encoder = Callable[[list[dict[str, str]]], list[int]]


@dataclass(frozen=True)
class Method:
    """The four slots that make a method, and the reward vector they see.

    Attributes:
        prompt: How a rollout is asked for and read.
        weights: Draws weights over each prompt's own objectives:
            ``(num_objectives (B,), seeds (B,), step=) -> (B, N, K)``; None takes the fixed weights
            of the reward vector (N = 1).
        set_reward: ``(rewards (B, G, M, K), weights (B, N, K), answer_mask=(B, G, M)) -> (B, G)``.
        advantage: ``(scores (B, G), rewards=, weights=, lengths=, objective_mask=) -> (B, G)``.
        reward_vector: Which objectives, and their scaling.
    """

    prompt: PromptStyle
    weights: Callable[..., Tensor] | None
    set_reward: Callable[..., Tensor]
    advantage: Callable[..., Tensor]
    reward_vector: RewardVector


@dataclass
class RolloutCollector:
    """Collects rollouts with an engine and credits them with a method; knows nothing of Lightning.

    Attributes:
        task: Declares prompts and scores answers.
        method: The four slots.
        encode: Chat messages to token ids.
        sampling: How tokens are drawn.
        group_size: G, rollouts for each prompt.
        seed: The run's seed; every draw is derived from (seed, step, prompt id).
        engine: Samples completions; set before the first call of `collect`.
    """

    task: Task
    method: Method
    encode: Encoder
    sampling: SamplingSettings
    group_size: int
    seed: int
    engine: RolloutEngine | None = None

    def collect(self, rows: Sequence[PromptRow], step: int) -> RolloutBatch:
        """The credited rollouts of `rows` (B prompts) at training step `step`."""
        if self.engine is None:
            raise RuntimeError("the collector has no engine yet; set `engine` before collecting")
        clock = _Clock()
        method = self.method
        objectives = [method.reward_vector.select(row.objectives) for row in rows]
        weights = self._draw_weights(rows, objectives, step)
        requests = [
            self._request(row, objectives[i], weights[i], step) for i, row in enumerate(rows)
        ]
        clock.lap("prompt")
        completions = self.engine.generate(requests, self.sampling)
        clock.lap("generate")
        scored = [
            [self._score(row, completion) for completion in group]
            for row, group in zip(rows, completions, strict=True)
        ]
        rewards, objective_mask = self._reward_tensor(rows, scored)
        clock.lap("score")
        lengths = torch.tensor([[len(c.ids) for c in group] for group in completions])
        answer_mask = torch.ones(rewards.shape[:-1], dtype=torch.bool)
        set_rewards = method.set_reward(rewards, weights, answer_mask=answer_mask)
        advantages = method.advantage(
            set_rewards,
            rewards=rewards,
            weights=weights,
            lengths=lengths,
            objective_mask=objective_mask,
        )
        groups = [
            RolloutGroup(
                row,
                list(requests[i].prompt_ids),
                weights[i, :, : len(objectives[i])],
                completions[i],
                scored[i],
                set_rewards[i],
                advantages[i],
            )
            for i, row in enumerate(rows)
        ]
        batch = RolloutBatch(step, self.engine.version, groups, seconds=clock.seconds)
        batch.metrics = rollout_metrics(groups, rewards)
        clock.lap("prompt")
        return batch

    def encode_row(self, row: PromptRow) -> list[int]:
        """The token ids of a row's prompt; a style that shows weights is given equal ones."""
        kept = self.method.reward_vector.select(row.objectives)
        return self._encode(row, kept, [1 / len(kept)] * len(kept))

    def _encode(
        self, row: PromptRow, kept: Sequence[Objective], weights: Sequence[float]
    ) -> list[int]:
        seen = replace(row, objectives=tuple(kept))
        return self.encode(self.method.prompt.messages(self.task, seen, weights))

    def _draw_weights(
        self, rows: Sequence[PromptRow], objectives: Sequence[Sequence[Objective]], step: int
    ) -> Float[Tensor, "B N K"]:
        if self.method.weights is None:
            return fixed_weights(objectives)
        seeds = [derive_seed(self.seed, "weights", step, row.id) for row in rows]
        counts = torch.tensor([len(kept) for kept in objectives])
        return self.method.weights(counts, torch.tensor(seeds), step=step)

    def _request(
        self, row: PromptRow, kept: Sequence[Objective], weights: Float[Tensor, "N K"], step: int
    ) -> GenerationRequest:
        return GenerationRequest(
            id=row.id,
            prompt_ids=self._encode(row, kept, weights.mean(0)[: len(kept)].tolist()),
            seeds=[
                derive_seed(self.seed, "sample", step, row.id, sample)
                for sample in range(self.group_size)
            ],
            stop=self.method.prompt.stop_rule(self.task),
        )

    def _score(self, row: PromptRow, completion: Completion) -> ScoredCompletion:
        answers = self.method.prompt.parse(self.task, completion.text)
        return score_answers(self.task, row, answers)

    def _reward_tensor(
        self, rows: Sequence[PromptRow], scored: Sequence[Sequence[ScoredCompletion]]
    ) -> tuple[Float[Tensor, "B G M K"], Bool[Tensor, "B K"]]:
        """The reward matrices of all rollouts, zero-padded over answers and objectives."""
        vectors = [
            [
                self.method.reward_vector.apply(row.objectives, completion.matrix)
                for completion in group
            ]
            for row, group in zip(rows, scored, strict=True)
        ]
        num_answers = max(len(matrix) for group in vectors for matrix in group)
        widths = [len(group[0][0]) for group in vectors]
        shape = (len(rows), self.group_size, num_answers, max(widths))
        rewards = torch.zeros(shape, dtype=torch.float64)
        mask = torch.arange(shape[-1])[None, :] < torch.tensor(widths)[:, None]
        for b, group in enumerate(vectors):
            for g, matrix in enumerate(group):
                rewards[b, g, : len(matrix), : widths[b]] = torch.tensor(
                    matrix, dtype=torch.float64
                )
        return rewards, mask


def fixed_weights(objectives: Sequence[Sequence[Objective]]) -> Float[Tensor, "B 1 K"]:
    """The objectives' own weights, summing to 1, as a single draw; zero beyond a prompt's own."""
    weights = torch.zeros(len(objectives), 1, max(len(kept) for kept in objectives)).double()
    for b, kept in enumerate(objectives):
        values = torch.tensor([objective.weight for objective in kept], dtype=torch.float64)
        weights[b, 0, : len(kept)] = values / values.sum()
    return weights


class _Clock:
    """Wall-clock seconds by stage."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, stage: str) -> None:
        now = time.perf_counter()
        self.seconds[stage] = self.seconds.get(stage, 0.0) + now - self._last
        self._last = now
