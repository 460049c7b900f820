"""Whether answers hold every side of a conflict: for each of some objectives one reaches it."""

from __future__ import annotations

from collections.abc import Mapping
from math import comb

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def reached(
    rewards: Float[Tensor, "*calls m K"], least: Mapping[int, float]
) -> Bool[Tensor, "*calls m sides"]:
    """Return whether each answer reaches the least value of each column that has one."""
    values = torch.tensor(list(least.values()), dtype=torch.float64)
    return rewards[..., list(least)] >= values - 1e-9


def covers(sides: Bool[Tensor, "C m sides"]) -> float:
    """1 if each side is reached by some answer of the pool, else 0."""
    return float(sides.flatten(0, 1).any(0).all())


def deployed_cover(sides: Bool[Tensor, "C m sides"], deployed_answers: int) -> float:
    """The chance that answers as deployed hold every side: one chain, or so many single answers.

    Exact for single answers by inclusion and exclusion over the sides that are missed.
    """
    if sides.shape[1] > 1:
        return float(sides.any(1).all(-1).double().mean())
    flags = sides[:, 0]
    total, k = len(flags), min(deployed_answers, len(flags))
    chance = 0.0
    for subset in range(2 ** flags.shape[1]):
        missed = [side for side in range(flags.shape[1]) if subset >> side & 1]
        without = int((~flags[:, missed].any(1)).sum()) if missed else total
        chance += (-1) ** len(missed) * comb(without, k) / comb(total, k)
    return chance
