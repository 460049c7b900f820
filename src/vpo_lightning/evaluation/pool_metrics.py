"""What pools of answers are worth: best@k, E_w[max of k], diversity and coverage.

All methods are measured on one weight grid for every k; otherwise E_w[max of 10] could exceed
E_w[max of 30]. k counts answers. Estimators over subsets of a pool are unbiased for answers drawn
without replacement from it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import comb

import torch
from jaxtyping import Float
from torch import Tensor

from vpo_lightning.core.metrics import best_at_k, expected_max_at_k, pairwise_diversity
from vpo_lightning.core.weights import sobol
from vpo_lightning.evaluation.pool import PromptPool


@dataclass(frozen=True)
class PoolMetrics:
    """Which figures are computed from pools.

    Attributes:
        ks: Numbers of answers.
        deployed_answers: Answers as deployed: a chain of m, or that many single answers.
        cover: Least value of each of some objectives. A pool covers a prompt if for each of them
            some answer reaches it; a deployed set holds all sides if its answers do.
        grid_size: Points of the Sobol weight grid on the simplex.
        grid_seed: Of its scrambling; the same for every method, k and run.
    """

    ks: Sequence[int] = (1, 3, 10, 30)
    deployed_answers: int = 3
    cover: Mapping[str, float] = field(default_factory=dict)
    grid_size: int = 256
    grid_seed: int = 0

    def per_prompt(self, pool: PromptPool) -> dict[str, float]:
        """Every figure for one prompt, by metric key."""
        rewards = torch.tensor(pool.rewards, dtype=torch.float64)
        answers = rewards.flatten(0, 1)
        importance = torch.tensor(pool.importance, dtype=torch.float64)
        scalar = answers @ (importance / importance.sum())
        grid = self.weight_grid(answers.shape[1])
        ks = [k for k in self.ks if k <= len(answers)]
        figures = {f"best@{k}": float(best_at_k(scalar, k)) for k in ks}
        figures |= {f"expected_max@{k}": float(expected_max_at_k(answers, grid, k)) for k in ks}
        figures["deployed_expected_max"] = self._deployed_expected_max(rewards, grid)
        figures["diversity"] = float(pairwise_diversity(answers))
        nonzero = answers[answers.sum(-1) > 0]
        figures["nonzero_fraction"] = len(nonzero) / len(answers)
        figures["nonzero_diversity"] = float(pairwise_diversity(nonzero))
        figures["truncated_fraction"] = sum(pool.is_truncated) / len(pool.is_truncated)
        figures["tokens_per_answer"] = sum(pool.tokens) / len(answers)
        for k, name in enumerate(pool.objectives):
            figures[f"objective/{name}"] = float(answers[:, k].mean())
        if pool.asked is not None:
            asked = torch.tensor(pool.asked, dtype=torch.float64)
            figures["asked_reward"] = float((rewards @ asked[..., None]).amax(dim=1).mean())
        if self.cover:
            sides = self._sides(rewards, pool.objectives)
            figures["cover"] = float(sides.flatten(0, 1).any(0).all())
            figures["deployed_cover"] = self._deployed_cover(sides)
        return figures

    def weight_grid(self, num_objectives: int) -> Float[Tensor, "N K"]:
        """The weight grid over K objectives."""
        seed = torch.tensor(self.grid_seed)
        return sobol(num_objectives, seed, num_draws=self.grid_size)

    def _deployed_expected_max(
        self, rewards: Float[Tensor, "C m K"], grid: Float[Tensor, "N K"]
    ) -> float:
        if rewards.shape[1] == 1:
            k = min(self.deployed_answers, rewards.shape[0])
            return float(expected_max_at_k(rewards[:, 0], grid, k))
        return float((rewards @ grid.T).amax(1).mean())

    def _sides(self, rewards: Tensor, objectives: Sequence[str]) -> Tensor:
        """Whether each answer reaches each side: (C, m, sides)."""
        columns = [objectives.index(name) for name in self.cover]
        least = torch.tensor(list(self.cover.values()), dtype=torch.float64)
        return rewards[:, :, columns] >= least - 1e-9

    def _deployed_cover(self, sides: Tensor) -> float:
        """The chance that a deployed set holds every side.

        Exact for single answers by inclusion and exclusion over the sides that are missed.
        """
        if sides.shape[1] > 1:
            return float(sides.any(1).all(-1).double().mean())
        flags = sides[:, 0]
        total, k = len(flags), min(self.deployed_answers, len(flags))
        chance = 0.0
        for subset in range(2 ** flags.shape[1]):
            missed = [side for side in range(flags.shape[1]) if subset >> side & 1]
            without = int((~flags[:, missed].any(1)).sum()) if missed else total
            chance += (-1) ** len(missed) * comb(without, k) / comb(total, k)
        return chance


def mean_figures(figures: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The mean over prompts of each figure that every prompt has."""
    keys = [key for key in figures[0] if all(key in other for other in figures)]
    return {key: sum(f[key] for f in figures) / len(figures) for key in keys}
