"""Scores of whole answer sets: how the reward matrix of a rollout becomes one number.

A ``set_reward`` slot is called as ``set_reward(rewards, weights, answer_mask=...)`` with the
rewards of whole groups and the weights each group shares. All arithmetic is in float64.
"""

from collections.abc import Iterator, Sequence
from typing import Literal

import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor

from vpo_lightning.core.validation import group_name, require_finite

OverAnswers = Literal["max", "sum", "mean"]

# Scalarized rewards (groups x rollouts x answers x draws) held at a time: 2 MiB of float64, which
# stays in a core's cache and bounds the memory of large batches.
_CHUNK_ELEMENTS = 1 << 18


def set_reward(
    rewards: Float[Tensor, "*groups G M K"],
    weights: Float[Tensor, "*groups N K"],
    answer_mask: Bool[Tensor, "*groups G M"] | None = None,
    over_answers: OverAnswers = "max",
    prompt_ids: Sequence[str] | None = None,
) -> Float64[Tensor, "*groups G"]:
    """Return the set reward ``mean_w over_s w . r(x, s)`` of each rollout (arXiv:2605.22817).

    With ``over_answers="max"`` this is VPO's ``R(S) = E_w[max_{s in S} w . r]`` estimated with the N
    draws that all rollouts of a group share; "sum" is Multi-RLVR as its authors published it and
    "mean" divides that by the number of answers. A masked answer takes no part (its rewards may be
    anything); a rollout with no answer scores 0. Objectives that pad a shorter prompt must have
    reward 0 or weight 0.

    Args:
        rewards: One reward vector per answer.
        weights: Draws of each group, or one (N, K) matrix for all groups.
        answer_mask: True where an answer exists; None if all do.
        over_answers: How the scalarized answers of one rollout become one number.
        prompt_ids: Names of the groups for error messages.

    Raises:
        ValueError: Unequal numbers of objectives or groups, no draws, NaN or infinite values.
    """
    if over_answers not in ("max", "sum", "mean"):
        raise ValueError(
            f"over_answers is {over_answers!r}; set `set_reward.over_answers` to max, sum or mean"
        )
    batch = _GroupBatch(rewards, weights, answer_mask, prompt_ids)
    scores = torch.zeros(batch.rewards.shape[:2], dtype=torch.float64, device=rewards.device)
    for group, draws, values in batch.scalarized():
        if over_answers == "max":
            values.masked_fill_(~batch.mask[group][..., None], -torch.inf)
            totals = values.amax(dim=2).sum(dim=-1) if values.shape[2] else scores[group] * 0
        else:
            totals = values.sum(dim=(2, 3))
        scores[group] += totals / draws
    return scores
