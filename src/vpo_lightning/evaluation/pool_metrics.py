"""What pools of answers are worth: best@k, E_w[max of k], pass@k, diversity and coverage.

All methods are measured on one weight grid for every k; otherwise E_w[max of 10] could exceed
E_w[max of 30]. Estimators over subsets of a pool are unbiased (`evaluation.estimators`).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from vpo_lightning.core.metrics import expected_max_at_k, pairwise_diversity, pareto_count
from vpo_lightning.core.weights import sobol
from vpo_lightning.errors import ConfigError
from vpo_lightning.evaluation.coverage import covers, deployed_cover, reached
from vpo_lightning.evaluation.estimators import (
    Scalarizations,
    figures_by_answers,
    figures_by_calls,
    figures_by_tokens,
    without_each_call,
)
from vpo_lightning.evaluation.hypervolume import hypervolume_at_k
from vpo_lightning.evaluation.intervals import jackknife_error
from vpo_lightning.evaluation.pool import PromptPool
from vpo_lightning.evaluation.texts import distinct_fraction, edit_diversity, normalised
from vpo_lightning.evaluation.votes import majority_at_k

SOLVED = 1 - 1e-9
_ERROR_GRID = 32  # weights that a standard error is computed with; it needs no more


@dataclass(frozen=True)
class PoolMetrics:
    """Which figures are computed from pools.

    Attributes:
        ks: Numbers of answers, and of calls.
        deployed_answers: Answers as deployed: a chain of m, or that many single answers.
        cover: Least value of each of some objectives. A pool covers a prompt if for each of them
            some answer reaches it; a deployed set holds all sides if its answers do.
        grid_size: Points of the Sobol weight grid on the simplex.
        grid_seed: Of its scrambling; the same for every method, k and run.
        weights: Further scalar scores by name, each a weight by objective.
        solved: Least value by objective of an answer that solves its prompt; empty asks for the
            full reward of every objective.
        token_budgets: Budgets for the figures by tokens.
        hypervolume_reference: Lower corner of the dominated volume in every objective. At 0 an
            answer without any reward in one objective has no volume; a little below it has.
    """

    ks: Sequence[int] = (1, 3, 10, 30)
    deployed_answers: int = 3
    cover: Mapping[str, float] = field(default_factory=dict)
    grid_size: int = 256
    grid_seed: int = 0
    weights: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    solved: Mapping[str, float] = field(default_factory=dict)
    token_budgets: Sequence[int] = (64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
    hypervolume_reference: float = 0.0

    def per_prompt(self, pool: PromptPool) -> dict[str, float]:
        """Every figure for one prompt, by metric key.

        Raises:
            ConfigError: A setting names an objective that the prompt does not have.
        """
        rewards = torch.tensor(pool.rewards, dtype=torch.float64)
        answers = rewards.flatten(0, 1)
        solved = self._solved(rewards, pool.objectives)
        scalarizations = self._scalarizations(pool, self.grid_size)
        ks = [k for k in self.ks if k <= len(answers)]
        by_k = figures_by_answers(rewards, solved, scalarizations, ks)
        by_k |= figures_by_calls(rewards, solved, scalarizations.without_names(), self.ks)
        figures = {key: float(value) for key, value in by_k.items()}
        figures |= figures_by_tokens(
            rewards, solved, pool.tokens, scalarizations, self.token_budgets
        )
        volumes = hypervolume_at_k(answers - self.hypervolume_reference, ks)
        figures |= {f"hypervolume@{k}": volume for k, volume in volumes.items()}
        figures |= self._diversity(pool, answers)
        figures |= self._lengths(pool, answers)
        if pool.votes is not None:
            votes = [vote for chain in pool.votes for vote in chain]
            scores = (answers @ scalarizations.named[""]).tolist()
            figures |= {f"majority@{k}": majority_at_k(votes, scores, k) for k in ks}
        figures["deployed_expected_max"] = deployed_expected_max(
            rewards, scalarizations.grid, self.deployed_answers
        )
        if self.cover:
            sides = reached(rewards, self._columns(self.cover, pool.objectives, "cover"))
            figures["cover"] = covers(sides)
            figures["deployed_cover"] = deployed_cover(sides, self.deployed_answers)
        return figures

    def sampling_errors(self, pool: PromptPool) -> dict[str, float]:
        """The standard error of figures by answers and calls due to the sampled completions.

        Completions are the units: each is left out in turn. Those of k that need all completions
        cannot be had and are missing.
        """
        rewards = torch.tensor(pool.rewards, dtype=torch.float64)
        if len(rewards) < 3:
            return {}
        solved = without_each_call(self._solved(rewards, pool.objectives), 0)
        scalarizations = self._scalarizations(pool, _ERROR_GRID)
        fewer = without_each_call(rewards, 0)
        most = fewer.shape[1] * fewer.shape[2]
        estimates = figures_by_answers(
            fewer, solved, scalarizations, [k for k in self.ks if k <= most]
        )
        estimates |= figures_by_calls(fewer, solved, scalarizations.without_names(), self.ks)
        return {key: float(jackknife_error(values)) for key, values in estimates.items()}

    def weight_grid(self, num_objectives: int, size: int | None = None) -> Float[Tensor, "N K"]:
        """The weight grid over K objectives."""
        return _grid(num_objectives, size or self.grid_size, self.grid_seed)

    def _scalarizations(self, pool: PromptPool, size: int) -> Scalarizations:
        """The task's own scalar, each objective by itself, and the weights of the settings."""
        importance = torch.tensor(pool.importance, dtype=torch.float64)
        unit = torch.eye(len(importance), dtype=torch.float64)
        named = {"": importance / importance.sum()} | dict(zip(pool.objectives, unit, strict=True))
        for name, weights in self.weights.items():
            columns = self._columns(weights, pool.objectives, f"weights.{name}")
            vector = torch.zeros_like(importance)
            vector[list(columns)] = torch.tensor(list(columns.values()), dtype=torch.float64)
            named[name] = vector / vector.sum()
        return Scalarizations(self.weight_grid(len(importance), size), named)

    def _solved(self, rewards: Tensor, objectives: Sequence[str]) -> Tensor:
        """Whether each answer solves its prompt: (C, m)."""
        if not self.solved:
            return (rewards >= SOLVED).all(-1)
        return reached(rewards, self._columns(self.solved, objectives, "solved")).all(-1)

    def _columns(
        self, settings: Mapping[str, float], objectives: Sequence[str], key: str
    ) -> dict[int, float]:
        unknown = [name for name in settings if name not in objectives]
        if unknown:
            raise ConfigError(
                f"evaluation.metrics.{key}={unknown}: no such objective; the task has "
                f"{list(objectives)}"
            )
        return {objectives.index(name): value for name, value in settings.items()}

    def _diversity(self, pool: PromptPool, answers: Tensor) -> dict[str, float]:
        """How different the answers are, in rewards and as texts."""
        nonzero = answers[answers.sum(-1) > 0]
        texts = [text for chain in pool.texts for text in chain if text is not None]
        keys = [
            None if text is None else vote or normalised(text)
            for chain, votes in zip(pool.texts, pool.votes or pool.texts, strict=True)
            for text, vote in zip(chain, votes if pool.votes else [None] * len(chain), strict=True)
        ]
        return {
            "diversity": float(pairwise_diversity(answers)),
            "nonzero_diversity": float(pairwise_diversity(nonzero)),
            "distinct_fraction": distinct_fraction(keys),
            "edit_diversity": edit_diversity(texts),
            "pareto_count": float(pareto_count(torch.unique(answers, dim=0))),
        }

    def _lengths(self, pool: PromptPool, answers: Tensor) -> dict[str, float]:
        """What was sampled: answers worth something, lengths, and each objective's mean."""
        figures = {
            "nonzero_fraction": float((answers.sum(-1) > 0).double().mean()),
            "truncated_fraction": sum(pool.is_truncated) / len(pool.is_truncated),
            "tokens_per_answer": sum(pool.tokens) / len(answers),
        }
        figures |= {
            f"objective/{n}": float(v)
            for n, v in zip(pool.objectives, answers.mean(0), strict=True)
        }
        if pool.asked is not None:
            asked = torch.tensor(pool.asked, dtype=torch.float64)
            rewards = answers.reshape(len(asked), -1, asked.shape[1])
            figures["asked_reward"] = float((rewards @ asked[..., None]).amax(dim=1).mean())
        return figures


def deployed_expected_max(
    rewards: Float[Tensor, "C m K"], grid: Float[Tensor, "N K"], deployed_answers: int
) -> float:
    """E_w[max] of answers as deployed: one chain, or so many single answers.

    Args:
        rewards: C completions of m answers.
        grid: The weights that the mean is over.
        deployed_answers: Single answers of a set; fewer where the pool has no more.
    """
    if rewards.shape[1] > 1:
        return float((rewards @ grid.T).amax(1).mean())
    return float(expected_max_at_k(rewards[:, 0], grid, min(deployed_answers, len(rewards))))


@functools.lru_cache(maxsize=16)
def _grid(num_objectives: int, size: int, seed: int) -> Float[Tensor, "{size} {num_objectives}"]:
    return sobol(num_objectives, torch.tensor(seed), num_draws=size)
