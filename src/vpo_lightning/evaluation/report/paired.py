"""The headline's differences on the same held-out prompts, from the pools of both sides."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

import torch

from vpo_lightning.core.metrics import expected_max_at_k, pairwise_diversity
from vpo_lightning.errors import ConfigError
from vpo_lightning.evaluation.intervals import Difference, paired
from vpo_lightning.evaluation.pool import PromptPool, read_pools
from vpo_lightning.evaluation.pool_metrics import PoolMetrics, deployed_expected_max
from vpo_lightning.evaluation.report.evaluations import Evaluated


def paired_differences(
    first: Sequence[Evaluated],
    second: Sequence[Evaluated],
    keys: Sequence[str],
    metrics: PoolMetrics,
) -> dict[str, Difference]:
    """First minus second for each figure, prompt by prompt, each prompt a mean over the seeds.

    Empty unless every evaluation has its pools, whole, on at least two prompts that all share.

    Args:
        first: The evaluations of one method, one for each seed.
        second: Those of what it is compared with.
        keys: Figures of `headline_figures`.
        metrics: The weight grid and the size of a deployed set, as the evaluations had them.
    """
    try:
        sides: list[list[Mapping[str, Mapping[str, float]]]] = [
            [_values(entry.pools, keys, metrics) for entry in side if entry.pools]
            for side in (first, second)
        ]
    except ConfigError:  # a pool file that is broken; the report goes on without the intervals
        return {}
    if len(sides[0]) < len(first) or len(sides[1]) < len(second):
        return {}
    tables = [*sides[0], *sides[1]]
    shared = [prompt for prompt in tables[0] if all(prompt in table for table in tables)]
    if len(shared) < 2:
        return {}
    gaps: dict[str, Difference] = {}
    for key in keys:
        mine, theirs = (
            [fmean(table[prompt][key] for table in side) for prompt in shared] for side in sides
        )
        gaps[key] = paired(mine, theirs)
    return gaps


def _values(
    paths: Sequence[Path], keys: Sequence[str], metrics: PoolMetrics
) -> dict[str, dict[str, float]]:
    """The figures of every prompt that all of the pool files have, as means over the files."""
    first, *others = (
        {pool.prompt_id: _figures(pool, keys, metrics) for pool in read_pools(path)}
        for path in paths
    )
    return {
        prompt: {key: fmean([own[key], *(o[prompt][key] for o in others)]) for key in keys}
        for prompt, own in first.items()
        if all(prompt in other for other in others)
    }


def _figures(pool: PromptPool, keys: Sequence[str], metrics: PoolMetrics) -> dict[str, float]:
    """The headline's figures as `PoolMetrics` computes them, and none of its many others."""
    rewards = torch.tensor(pool.rewards, dtype=torch.float64)
    answers = rewards.flatten(0, 1)
    grid = metrics.weight_grid(answers.shape[1])
    figures: dict[str, float] = {}
    for key in keys:
        if match := re.fullmatch(r"expected_max@(\d+)", key):
            figures[key] = float(expected_max_at_k(answers, grid, int(match.group(1))))
        elif key == "deployed_expected_max":
            figures[key] = deployed_expected_max(rewards, grid, metrics.deployed_answers)
        elif key == "best@1":
            importance = torch.tensor(pool.importance, dtype=torch.float64)
            figures[key] = float((answers @ (importance / importance.sum())).mean())
        else:
            figures[key] = float(pairwise_diversity(answers))
    return figures
