"""From prompt rows to credited rollouts: steps 1 to 7 of the way of the data, in one function."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vpo_lightning.core.seeding import derive_seed
from vpo_lightning.rollout.batch import RolloutBatch, RolloutGroup
from vpo_lightning.rollout.credit import (
    Method,
    RewardTensors,
    advantages,
    reward_tensors,
    set_rewards,
    standard_error,
)
from vpo_lightning.rollout.engine import (
    Completion,
    GenerationRequest,
    RolloutEngine,
    SamplingSettings,
)
from vpo_lightning.rollout.exchange import Exchange
from vpo_lightning.rollout.metrics import rollout_cost, rollout_metrics
from vpo_lightning.scorer import Scorer
from vpo_lightning.scoring import ScoredCompletion
from vpo_lightning.task import Objective, PromptRow, Task

if TYPE_CHECKING:
    from vpo_lightning.rollout.ahead import SampledAhead

Encoder = Callable[[list[dict[str, str]]], list[int]]


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
        soft_overlong_tokens: Tokens before the length limit over which the set reward falls by 1
            (arXiv:2503.14476, Eq. 13); 0 is off.
        engine: Samples completions; set before the first call of `collect`.
        scorer: Scores answers; by default in this process, where a failure raises.
    """

    task: Task
    method: Method
    encode: Encoder
    sampling: SamplingSettings
    group_size: int
    seed: int
    soft_overlong_tokens: int = 0
    engine: RolloutEngine | None = None
    scorer: Scorer = None  # type: ignore[assignment]  # made below

    def __post_init__(self) -> None:
        """Makes the default scorer."""
        self.scorer = self.scorer or Scorer(self.task)

    def collect(
        self,
        rows: Sequence[PromptRow],
        step: int,
        *,
        attempt: int = 0,
        exchange: Exchange | None = None,
        sampled: SampledAhead | None = None,
    ) -> RolloutBatch:
        """The credited rollouts of `rows` (B prompts) at training step `step`.

        Args:
            rows: Prompts of this process.
            step: Seeds every draw.
            attempt: Further rounds of a step draw other numbers, see `dynamic_sampling`.
            exchange: Lets the advantage slot see the groups of all processes; all must call.
            sampled: The completions, where they were sampled before, see `rollout.ahead`.

        Raises:
            RuntimeError: There is no engine.
            ScoringError: An answer could not be scored, and the scorer has no value for that.
        """
        if self.engine is None:
            raise RuntimeError("the collector has no engine yet; set `engine` before collecting")
        clock = _Clock()
        method = self.method
        objectives = [method.reward_vector.select(row.objectives) for row in rows]
        weights = self._draw_weights(rows, objectives, step, attempt)
        requests = self._requests(rows, objectives, weights, step, attempt)
        clock.lap("prompt")
        version = self.engine.version if sampled is None else sampled.version
        completions = (
            self.engine.generate(requests, self.sampling)
            if sampled is None
            else sampled.completions
        )
        clock.lap("generate")
        scored = self._score(rows, completions)
        lengths = torch.tensor([[len(c.ids) for c in group] for group in completions])
        tensors = self._reward_tensors(rows, scored, weights, lengths)
        clock.lap("score")
        scores = set_rewards(method, tensors, self.sampling.max_tokens, self.soft_overlong_tokens)
        credited = advantages(method, scores, tensors, exchange)
        groups = [
            RolloutGroup(
                row,
                list(requests[i].prompt_ids),
                weights[i, :, : len(objectives[i])],
                completions[i],
                scored[i],
                scores[i],
                credited[i],
            )
            for i, row in enumerate(rows)
        ]
        batch = RolloutBatch(step, version, groups, seconds=clock.seconds)
        batch.metrics = rollout_metrics(groups, tensors.rewards, tensors.objective_mask)
        batch.cost = rollout_cost(groups)
        if not math.isnan(error := standard_error(method, tensors)):
            batch.metrics["rollout/set_reward_standard_error"] = error
        clock.lap("prompt")
        return batch

    def requests(self, rows: Sequence[PromptRow], step: int) -> list[GenerationRequest]:
        """What `collect` asks the engine for."""
        objectives = [self.method.reward_vector.select(row.objectives) for row in rows]
        weights = self._draw_weights(rows, objectives, step, 0)
        return self._requests(rows, objectives, weights, step, 0)

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
        self,
        rows: Sequence[PromptRow],
        objectives: Sequence[Sequence[Objective]],
        step: int,
        attempt: int,
    ) -> Float[Tensor, "B N K"]:
        if self.method.weights is None:
            return fixed_weights(objectives, normalize=self.method.normalize_weights)
        when = _moment(step, attempt) if self.method.redraw_weights else ()
        seeds = [derive_seed(self.seed, "weights", *when, row.id) for row in rows]
        counts = torch.tensor([len(kept) for kept in objectives])
        return self.method.weights(counts, torch.tensor(seeds), step=step)

    def _requests(
        self,
        rows: Sequence[PromptRow],
        objectives: Sequence[Sequence[Objective]],
        weights: Float[Tensor, "B N K"],
        step: int,
        attempt: int,
    ) -> list[GenerationRequest]:
        moment = _moment(step, attempt)
        return [self._request(row, objectives[i], weights[i], moment) for i, row in enumerate(rows)]

    def _request(
        self,
        row: PromptRow,
        kept: Sequence[Objective],
        weights: Float[Tensor, "N K"],
        moment: tuple[int, ...],
    ) -> GenerationRequest:
        return GenerationRequest(
            id=row.id,
            prompt_ids=self._encode(row, kept, weights.mean(0)[: len(kept)].tolist()),
            seeds=[
                derive_seed(self.seed, "sample", *moment, row.id, sample)
                for sample in range(self.group_size)
            ],
            stop=self.method.prompt.stop_rule(self.task),
        )

    def _score(
        self, rows: Sequence[PromptRow], completions: Sequence[Sequence[Completion]]
    ) -> list[list[ScoredCompletion]]:
        chains = [
            (row, self.method.prompt.parse(self.task, completion.text))
            for row, group in zip(rows, completions, strict=True)
            for completion in group
        ]
        scored = iter(self.scorer.score(chains))
        return [[next(scored) for _ in group] for group in completions]

    def _reward_tensors(
        self,
        rows: Sequence[PromptRow],
        scored: Sequence[Sequence[ScoredCompletion]],
        weights: Float[Tensor, "B N K"],
        lengths: Int[Tensor, "B G"],
    ) -> RewardTensors:
        """The rewards that the method sees."""
        vector = self.method.reward_vector
        matrices = [
            [vector.apply(row.objectives, completion.matrix) for completion in group]
            for row, group in zip(rows, scored, strict=True)
        ]
        return reward_tensors(matrices, weights, lengths, [row.id for row in rows])


def fixed_weights(
    objectives: Sequence[Sequence[Objective]], *, normalize: bool = True
) -> Float[Tensor, "B 1 K"]:
    """The objectives' own weights as a single draw; zero beyond a prompt's own.

    Args:
        objectives: Of each prompt.
        normalize: Divide the weights by their sum.
    """
    weights = torch.zeros(len(objectives), 1, max(len(kept) for kept in objectives)).double()
    for b, kept in enumerate(objectives):
        values = torch.tensor([objective.weight for objective in kept], dtype=torch.float64)
        weights[b, 0, : len(kept)] = values / values.sum() if normalize else values
    return weights


def _moment(step: int, attempt: int) -> tuple[int, ...]:
    """What the draws of a round are seeded with."""
    return (step, attempt) if attempt else (step,)


class _Clock:
    """Wall-clock seconds by stage."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, stage: str) -> None:
        now = time.perf_counter()
        self.seconds[stage] = self.seconds.get(stage, 0.0) + now - self._last
        self._last = now
