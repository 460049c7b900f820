"""Scores of whole answer sets: how the reward matrix of a rollout becomes one number.

A ``set_reward`` slot is called as ``set_reward(rewards, weights, answer_mask=..., objective_mask=
...)`` with the rewards of whole groups and the weights that each group shares, and returns one
score per rollout. All arithmetic is in float64; large batches are worked through in blocks.
"""

from collections.abc import Sequence
from typing import Literal

import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor

from vpo_lightning.core.groups import RewardGroups, prepare_groups, scalarized_blocks

OverAnswers = Literal["max", "sum", "mean"]

# Equal answers may differ in the last bits of w . r, depending on their place in the batch.
_TIE = 1e-12


def set_reward(
    rewards: Float[Tensor, "*groups G M K"],
    weights: Float[Tensor, "*#groups N _K"],
    answer_mask: Bool[Tensor, "*groups G M"] | None = None,
    over_answers: OverAnswers = "max",
    *,
    objective_mask: Bool[Tensor, "*groups K"] | None = None,
    prompt_ids: Sequence[str] | None = None,
) -> Float64[Tensor, "*groups G"]:
    """Return ``mean_w over_s w . r(x, s)`` of each rollout, over its answers s and the N draws w.

    With ``over_answers="max"`` this is VPO's ``R(S) = E_w[max_{s in S} w . r(x, s)]``
    (arXiv:2605.22817) estimated with draws shared by all rollouts of a group. "sum" is Multi-RLVR
    as published by the same authors, "mean" divides it by the number of the rollout's answers.
    A masked answer takes no part, whatever its rewards; a rollout with no answer scores 0.

    Args:
        rewards: One reward vector per answer.
        weights: Draws of each group, or one (N, K) matrix for all groups.
        answer_mask: True where an answer exists; None if all do.
        over_answers: How the scalarized answers of one rollout become one number.
        objective_mask: False where an objective only pads a prompt that has fewer; None if none.
        prompt_ids: Names of the groups, for error messages.

    Raises:
        ValueError: Unequal numbers of objectives or groups, no draws, NaN or infinite values, or an
            unknown ``over_answers``.
    """
    groups = prepare_groups(rewards, weights, answer_mask, objective_mask, prompt_ids)
    if over_answers == "max":
        return _expected_best(groups, chebyshev=False)
    if over_answers not in ("sum", "mean"):
        raise ValueError(
            f"over_answers is {over_answers!r}; set `set_reward.over_answers` to max, sum or mean"
        )
    # Linear in w: the mean over draws is the value under the mean weights.
    values = torch.einsum("bgmk,bk->bgm", groups.rewards, groups.weights.mean(dim=1))
    scores = values.masked_fill(~groups.answer_mask, 0.0).sum(dim=-1)
    if over_answers == "mean":
        scores = scores / groups.answer_mask.sum(dim=-1).clamp_min(1)
    return groups.ungroup(scores)


def chebyshev_set_reward(
    rewards: Float[Tensor, "*groups G M K"],
    weights: Float[Tensor, "*#groups N _K"],
    answer_mask: Bool[Tensor, "*groups G M"] | None = None,
    *,
    objective_mask: Bool[Tensor, "*groups K"] | None = None,
    prompt_ids: Sequence[str] | None = None,
) -> Float64[Tensor, "*groups G"]:
    """Return ``mean_w max_s min_k w_k r_k(x, s)`` of each rollout (Chebyshev scalarization).

    The minimum rewards balanced answers, which no linear scalarization can single out where the
    Pareto front is concave. It is taken over a prompt's own objectives; a weight of exactly 0 makes
    the value at most 0. Arguments, masked answers and errors are those of ``set_reward``.
    """
    groups = prepare_groups(rewards, weights, answer_mask, objective_mask, prompt_ids)
    return _expected_best(groups, chebyshev=True)


def pool_credit(
    rewards: Float[Tensor, "*groups G M K"],
    weights: Float[Tensor, "*#groups N _K"],
    answer_mask: Bool[Tensor, "*groups G M"] | None = None,
    *,
    objective_mask: Bool[Tensor, "*groups K"] | None = None,
    prompt_ids: Sequence[str] | None = None,
) -> Float64[Tensor, "*groups G"]:
    """Return each rollout's share of the whole group's ``E_w[max w . r]``.

    Under each of the N draws the best answer of the whole group gives its rollout 1 / N of its
    value, so the scores of a group add up to the set reward of all its answers together. Rollouts
    whose best answers tie share the value equally (our choice: the score must not depend on the
    order of the rollouts). Arguments, masked answers and errors are those of ``set_reward``.
    """
    groups = prepare_groups(rewards, weights, answer_mask, objective_mask, prompt_ids)
    scores = groups.zero_scores()
    for rows, values in scalarized_blocks(groups):
        best = values.amax(dim=2)
        pool = best.amax(dim=1, keepdim=True)
        wins = _best(best, dim=1)
        shares = wins / wins.sum(dim=1, keepdim=True).clamp_min(1)
        scores[rows] += (shares * pool.masked_fill(~torch.isfinite(pool), 0.0)).sum(dim=-1)
    return groups.ungroup(scores / groups.num_draws)


def diversity_bonus(
    rewards: Float[Tensor, "*groups G M K"],
    weights: Float[Tensor, "*#groups N _K"],
    answer_mask: Bool[Tensor, "*groups G M"] | None = None,
    *,
    bonus: float = 0.5,
    floors: float | Sequence[float] | None = None,
    objective_mask: Bool[Tensor, "*groups K"] | None = None,
    prompt_ids: Sequence[str] | None = None,
) -> Float64[Tensor, "*groups G"]:
    """Return ``w . r_i + bonus * d_i``, d_i the mean L1 distance to the group's other answers.

    ``d_i = mean_{j != i} |r_i - r_j|_1`` over all answers of the group, and 0 for an answer below a
    floor of any objective (a bad answer must not be paid for being different) or alone in its
    group. A rollout with several answers scores their mean x, one with none scores 0; w is the mean
    of the draws. A variant of ``sum_k E[r_k] + lambda * Diversity`` that the paper compares with.

    Args:
        rewards: One reward vector per answer.
        weights: Draws of each group; fixed weights as a rule.
        answer_mask: True where an answer exists.
        bonus: lambda, the weight of the distance.
        floors: Smallest reward that still earns the bonus, one number or one per objective.
        objective_mask: False where an objective only pads a prompt that has fewer.
        prompt_ids: Names of the groups, for error messages.

    Raises:
        ValueError: As ``set_reward``; or the number of floors is not K.
    """
    groups = prepare_groups(rewards, weights, answer_mask, objective_mask, prompt_ids)
    pool, present = groups.rewards.flatten(1, 2), groups.answer_mask.flatten(1, 2)
    distances = torch.cdist(pool, pool, p=1.0).masked_fill(~present[:, None, :], 0.0)
    spread = distances.sum(dim=-1) / (present.sum(dim=-1, keepdim=True) - 1).clamp_min(1)
    if floors is not None:
        below = (pool < _floors(floors, pool)) & groups.objective_mask[:, None, :]
        spread = spread.masked_fill(below.any(dim=-1), 0.0)
    values = torch.einsum("bpk,bk->bp", pool, groups.weights.mean(dim=1)) + bonus * spread
    values = values.masked_fill(~present, 0.0).reshape(groups.answer_mask.shape)
    return groups.ungroup(values.sum(dim=-1) / groups.answer_mask.sum(dim=-1).clamp_min(1))


def win_shares(
    rewards: Float[Tensor, "*groups G M K"],
    weights: Float[Tensor, "*#groups N _K"],
    answer_mask: Bool[Tensor, "*groups G M"] | None = None,
    *,
    objective_mask: Bool[Tensor, "*groups K"] | None = None,
    prompt_ids: Sequence[str] | None = None,
) -> Float64[Tensor, "*groups G M"]:
    """Return the fraction of draws under which each answer is the best of its rollout.

    Tied answers share a draw equally; the shares of a rollout add up to 1, or are all 0 if it has
    no answer. Arguments and errors are those of ``set_reward``.
    """
    groups = prepare_groups(rewards, weights, answer_mask, objective_mask, prompt_ids)
    shares = torch.zeros_like(groups.answer_mask, dtype=torch.float64)
    for rows, values in scalarized_blocks(groups):
        wins = _best(values, dim=2)
        shares[rows] += (wins / wins.sum(dim=2, keepdim=True).clamp_min(1)).sum(dim=-1)
    return groups.ungroup(shares / groups.num_draws)


def monte_carlo_standard_error(
    rewards: Float[Tensor, "*groups G M K"],
    weights: Float[Tensor, "*#groups N _K"],
    answer_mask: Bool[Tensor, "*groups G M"] | None = None,
    *,
    objective_mask: Bool[Tensor, "*groups K"] | None = None,
    prompt_ids: Sequence[str] | None = None,
) -> Float64[Tensor, "*groups G"]:
    """Return the standard error of ``set_reward``'s N-draw mean: sample std over draws / sqrt(N).

    It holds for independent draws (Sobol points do better) and for the scores one by one: rollouts
    of a group share their draws, so differences between them are more precise than this says.
    Arguments are those of ``set_reward``.

    Raises:
        ValueError: As ``set_reward``; or fewer than two draws.
    """
    groups = prepare_groups(rewards, weights, answer_mask, objective_mask, prompt_ids)
    if groups.num_draws < 2:
        raise ValueError("a standard error needs at least 2 draws; raise `weights.num_draws`")
    first, second, origin = (groups.zero_scores() for _ in range(3))
    seen: set[int] = set()
    for rows, values in scalarized_blocks(groups):
        best = values.amax(dim=2).masked_fill(~groups.answer_mask[rows].any(-1, keepdim=True), 0.0)
        if rows.start not in seen:
            # Sums of squares around a value close to the mean lose no digits.
            origin[rows] = best.mean(dim=-1)
            seen.add(rows.start)
        shifted = best - origin[rows][..., None]
        first[rows] += shifted.sum(dim=-1)
        second[rows] += shifted.square().sum(dim=-1)
    variance = (second - first.square() / groups.num_draws) / (groups.num_draws - 1)
    return groups.ungroup((variance.clamp_min(0.0) / groups.num_draws).sqrt())


def _expected_best(groups: RewardGroups, *, chebyshev: bool) -> Float64[Tensor, "*groups G"]:
    scores = groups.zero_scores()
    for rows, values in scalarized_blocks(groups, chebyshev=chebyshev):
        scores[rows] += values.amax(dim=2).sum(dim=-1)
    scores = (scores / groups.num_draws).masked_fill(~groups.answer_mask.any(dim=-1), 0.0)
    return groups.ungroup(scores)


def _best(values: Float64[Tensor, "*shape"], dim: int) -> Float64[Tensor, "*shape"]:
    """Return 1 for the finite values that are the largest along an axis up to rounding, else 0."""
    finite = torch.isfinite(values)
    largest = values.amax(dim, keepdim=True)
    slack = _TIE * torch.where(torch.isfinite(largest), largest, 0.0).abs()
    return ((values >= largest - slack) & finite).double()


def _floors(
    floors: float | Sequence[float], pool: Float64[Tensor, "B P K"]
) -> Float64[Tensor, " K"]:
    num_objectives = pool.shape[-1]
    if isinstance(floors, int | float):
        floors = [float(floors)] * num_objectives
    if len(floors) != num_objectives:
        raise ValueError(
            f"{len(floors)} floors were given for {num_objectives} objectives; set "
            "`set_reward.floors` to one number or one per objective"
        )
    return torch.tensor([float(floor) for floor in floors], dtype=torch.float64, device=pool.device)
