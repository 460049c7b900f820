"""The volume of reward space that a pool dominates, and its mean over k of the pool's answers."""

from __future__ import annotations

import math
from collections.abc import Sequence

import moocore
import torch
from jaxtyping import Float
from torch import Tensor

MAX_CELLS = 200_000
"""Cells of the grid on which the mean over subsets is exact."""
MAX_OBJECTIVES = 6
"""Above it, and above `MAX_CELLS`, hypervolumes cost too much: exact ones grow exponentially."""
SUBSETS = 64


def hypervolume(rewards: Float[Tensor, "n K"]) -> float:
    """The volume between the origin and the answers: 0.75 for (1, .5) and (.5, 1)."""
    points = rewards.double().numpy()
    return float(moocore.hypervolume(points, ref=[0.0] * points.shape[1], maximise=True))


def hypervolume_at_k(
    rewards: Float[Tensor, "n K"], ks: Sequence[int], seed: int = 0
) -> dict[int, float]:
    """The mean hypervolume of k of the n answers drawn without replacement, by k.

    Exact where the distinct rewards of the objectives make few cells: a cell that d answers
    dominate counts its volume times ``1 - C(n - d, k) / C(n, k)``. Else the mean over 64 random
    subsets. Empty where even that costs too much (more than 6 objectives).

    Args:
        rewards: Reward vectors, not negative.
        ks: Numbers of answers, at most n.
        seed: Of the subsets.
    """
    levels = [torch.unique(column.clamp_min(0)) for column in rewards.double().T]
    if math.prod(len(level) for level in levels) <= MAX_CELLS:
        counts, volumes = _cells(rewards.double().clamp_min(0), levels)
        return {k: _mean_over_subsets(counts, volumes, len(rewards), k) for k in ks}
    if rewards.shape[1] > MAX_OBJECTIVES:
        return {}
    generator = torch.Generator().manual_seed(seed)
    orders = [torch.randperm(len(rewards), generator=generator) for _ in range(SUBSETS)]
    return {k: sum(hypervolume(rewards[o[:k]]) for o in orders) / SUBSETS for k in ks}


def _cells(rewards: Tensor, levels: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """How many answers dominate each cell of the grid of distinct rewards, and its volume.

    Cell (i, j, ...) ends at the i-th distinct reward of the first objective and so on, and begins
    at the one below (0 for the first); an answer dominates all cells that end at or below it.
    """
    shape = [len(level) for level in levels]
    place = torch.zeros(len(rewards), dtype=torch.long)
    for level, column in zip(levels, rewards.T, strict=True):
        place = place * len(level) + torch.searchsorted(level, column.contiguous())
    counts = torch.bincount(place, minlength=math.prod(shape)).reshape(shape)
    volumes = torch.ones((), dtype=torch.float64)
    for axis, level in enumerate(levels):
        counts = counts.flip(axis).cumsum(axis).flip(axis)
        volumes = volumes[..., None] * level.diff(prepend=level.new_zeros(1))
    return counts.flatten(), volumes.flatten()


def _mean_over_subsets(counts: Tensor, volumes: Tensor, n: int, k: int) -> float:
    total = math.comb(n, k)
    chance = [1 - math.comb(n - d, k) / total for d in range(n + 1)]
    return float(torch.tensor(chance, dtype=torch.float64)[counts] @ volumes)
