"""What pools of the start policy say about a task before training: is there a conflict to exploit?

VPO pays where no single answer is the best under all weights, the start policy offers the different
best ones, and their rewards can be told apart. Everything is computed from pools of single answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import torch
from jaxtyping import Float
from torch import Tensor

from vpo_lightning.core.metrics import pareto_mask
from vpo_lightning.errors import ConfigError
from vpo_lightning.evaluation.intervals import Estimate, estimate
from vpo_lightning.evaluation.pool import PromptPool
from vpo_lightning.evaluation.pool_metrics import PoolMetrics

FLAT = 1e-9
"""Spread of rewards that counts as none."""


@dataclass(frozen=True)
class ObjectiveSummary:
    """One objective over all answers.

    Attributes:
        name: Of the objective.
        mean: Over answers.
        std: Over the answers of a prompt, root mean square over prompts.
        flat: Share of prompts whose answers all have the same value.
    """

    name: str
    mean: float
    std: float
    flat: float


@dataclass(frozen=True)
class Diagnosis:
    """The figures behind a verdict.

    Attributes:
        prompts: Number of prompts.
        answers: Answers for each.
        parsed: Share of single answers that the task could read.
        parsed_in_chains: Share of slots of chains, likewise.
        truncated: Share of single answers that hit the length limit.
        truncated_chains: Share of chains that did.
        objectives: Each objective; empty where prompts have different ones.
        correlations: Between objectives within prompts (K, K); 0 with a constant one.
        effective_objectives: (sum of eigenvalues)^2 / sum of their squares, of the correlation
            matrix: 1 if all rise and fall together, K if they are independent.
        varied: Share of prompts whose answers differ in reward.
        conflicting: Share of prompts with two different answers that nothing dominates.
        expected_max: E_w[max over the pool], w uniform on the simplex.
        best_answer: max over answers of E_w[w . r], what one answer can reach.
        headroom: The first minus the second: what a set can gain over its best answer.
    """

    prompts: int
    answers: int
    parsed: float
    parsed_in_chains: float
    truncated: float
    truncated_chains: float
    objectives: list[ObjectiveSummary]
    correlations: list[list[float]]
    effective_objectives: float
    varied: float
    conflicting: float
    expected_max: Estimate
    best_answer: Estimate
    headroom: Estimate


@dataclass(frozen=True)
class VerdictThresholds:
    """Where verdicts begin; measured in docs/diagnose.md.

    Attributes:
        parsed: Least share of answers, alone and in chains, that can be read.
        truncated: Largest share of truncated completions.
        varied: Least share of prompts whose answers differ in reward.
        headroom: Least headroom with which VPO is likely to help, in units of reward.

    Raises:
        ConfigError: A value outside [0, 1].
    """

    parsed: float = 0.5
    truncated: float = 0.5
    varied: float = 0.2
    headroom: float = 0.03

    def __post_init__(self) -> None:
        """Checks the values."""
        for name, value in vars(self).items():
            if not isinstance(value, int | float) or not 0 <= value <= 1:
                raise ConfigError(f"thresholds.{name}={value}: expected a number from 0 to 1")


@dataclass(frozen=True)
class Readability:
    """How much of what was sampled can be read: shares of parsed answers, and truncated ones."""

    parsed: float
    parsed_in_chains: float
    truncated: float
    truncated_chains: float


def diagnose(pools: Sequence[PromptPool], readability: Readability) -> Diagnosis:
    """The figures of pools of single answers.

    Args:
        pools: One for each prompt, over the objectives that training would see.
        readability: Counted with the task.
    """
    rewards = [torch.tensor(pool.rewards, dtype=torch.float64).flatten(0, 1) for pool in pools]
    values = [_values(of_prompt) for of_prompt in rewards]
    is_uniform = len({tuple(pool.objectives) for pool in pools}) == 1
    centred = [r - r.mean(0) for r in rewards]
    correlations = _correlations(torch.cat(centred)) if is_uniform else torch.zeros(0, 0)
    return Diagnosis(
        len(pools),
        len(rewards[0]),
        **vars(readability),
        objectives=_objectives(pools[0].objectives, rewards) if is_uniform else [],
        correlations=correlations.tolist(),
        effective_objectives=(
            effective_number(correlations)
            if is_uniform
            else fmean(effective_number(_correlations(c)) for c in centred)
        ),
        varied=fmean(float((r - r[0]).abs().max() > FLAT) for r in rewards),
        conflicting=fmean(float(is_conflicting(r)) for r in rewards),
        expected_max=estimate([best for best, _ in values]),
        best_answer=estimate([single for _, single in values]),
        headroom=estimate([best - single for best, single in values]),
    )


def is_conflicting(rewards: Float[Tensor, "n K"]) -> bool:
    """Whether two answers with different rewards are dominated by none."""
    distinct = torch.unique(rewards, dim=0)
    return int(pareto_mask(distinct).sum()) > 1


def effective_number(correlations: Float[Tensor, "K K"]) -> float:
    """The participation ratio of the eigenvalues; a constant objective adds nothing."""
    varied = correlations.diagonal() > 0
    matrix = correlations[varied][:, varied]
    if not len(matrix):
        return 0.0
    return float(len(matrix) ** 2 / matrix.square().sum())


def verdict(found: Diagnosis, thresholds: VerdictThresholds) -> tuple[str, str]:
    """A short name of the verdict, and the reason with its numbers.

    ``teach_format``, ``too_sparse``, ``saturated``, ``vpo``, ``like_grpo``, or ``unclear``.
    """
    parsed = min(found.parsed, found.parsed_in_chains)
    truncated = max(found.truncated, found.truncated_chains)
    if parsed < thresholds.parsed or truncated > thresholds.truncated:
        return "teach_format", (
            f"The format must be taught first: {found.parsed:.0%} of single answers and "
            f"{found.parsed_in_chains:.0%} of answers in chains can be read, "
            f"{found.truncated:.0%} and {found.truncated_chains:.0%} are truncated. Warm up on "
            "demonstrations, allow longer completions, or take a model that follows instructions."
        )
    if found.varied < thresholds.varied:
        return _without_signal(found)
    room = found.headroom
    low, high = (room.mean if end is None else end for end in (room.low, room.high))
    numbers = (
        f"a pool of {found.answers} is worth {found.expected_max.mean:.3f} under random weights, "
        f"its best single answer {found.best_answer.mean:.3f}: headroom {room.mean:.3f} "
        f"[{low:.3f}, {high:.3f}], threshold {thresholds.headroom:g}; {found.conflicting:.0%} of "
        f"prompts conflict, {found.effective_objectives:.1f} effective objectives"
    )
    if low > thresholds.headroom:
        return "vpo", f"VPO is likely to help: {numbers}."
    if high < thresholds.headroom:
        return "like_grpo", f"VPO is likely to end like GRPO: {numbers}."
    return "unclear", f"Unclear, take more prompts: {numbers}."


def _without_signal(found: Diagnosis) -> tuple[str, str]:
    reached = found.best_answer.mean
    if reached > 0.95:
        return "saturated", (
            f"Nothing left to learn: answers differ in reward on {found.varied:.0%} of the prompts "
            f"and reach {reached:.2f}."
        )
    return "too_sparse", (
        f"The reward is too sparse: answers differ in reward on {found.varied:.0%} of the prompts, "
        f"the best of {found.answers} reaches {reached:.2f}. Take easier prompts, a stronger "
        "model, or objectives that reward parts of a solution."
    )


def _values(rewards: Float[Tensor, "n K"]) -> tuple[float, float]:
    """E_w[max] of a pool, and the mean weight's value of its best answer."""
    grid = PoolMetrics().weight_grid(rewards.shape[1])
    scores = rewards @ grid.T
    return float(scores.amax(0).mean()), float(scores.mean(1).max())


def _objectives(names: Sequence[str], rewards: Sequence[Tensor]) -> list[ObjectiveSummary]:
    means = torch.cat(list(rewards)).mean(0)
    variances = torch.stack([r.var(0, correction=0) for r in rewards])
    flat = (torch.stack([r.amax(0) - r.amin(0) for r in rewards]) < FLAT).double().mean(0)
    spread = variances.mean(0).sqrt()
    return [
        ObjectiveSummary(name, float(means[k]), float(spread[k]), float(flat[k]))
        for k, name in enumerate(names)
    ]


def _correlations(centred: Float[Tensor, "n K"]) -> Float[Tensor, "K K"]:
    """Correlations of columns that have mean 0; rows and columns of constant ones are 0."""
    covariance = centred.T @ centred / max(len(centred), 1)
    scale = covariance.diagonal().sqrt()
    varied = scale > FLAT
    inverse = torch.where(varied, 1 / scale.clamp_min(FLAT), 0.0)
    return covariance * inverse[:, None] * inverse
