"""Measures of a pool of answers: unbiased best@k and pass@k, E_w[max], diversity, Pareto front.

Answers of one multi-answer completion (chain) are not independent draws. Where k counts model
calls, k chains are drawn: give these functions whole chains (``expected_max_at_k`` with an answer
axis, or ``best_at_k`` of each chain's best score).
"""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor

from vpo_lightning.core.groups import prepare_groups, scalarized_blocks

# A reward smaller by less than this is not worse (rounding of fractions).
PARETO_TOLERANCE = 1e-12


def best_at_k(
    scores: Float[Tensor, "*pools n"], k: int | Sequence[int]
) -> Float64[Tensor, "*pools_and_ks"]:
    """Return the expected best score of k of the n scores drawn without replacement.

    ``sum_i C(i - 1, k - 1) x_(i) / C(n, k)`` with x ascending: unbiased for the expected best of k
    independent draws (a bootstrap with replacement is biased low). Several k give one more axis.

    Raises:
        ValueError: A k is not in 1..n.
    """
    ordered = scores.double().sort(dim=-1).values
    return ordered @ _coefficients(scores, k)


def pass_at_k(num_samples: int, num_correct: int, k: int) -> float:
    """Return ``1 - C(n - c, k) / C(n, k)``, the chance that k of n samples hold a correct one.

    As in the reference implementation, a k above n draws all n samples, and k = 0 or n = 0 gives 0.

    Raises:
        ValueError: A number is negative, or more samples are correct than there are.
    """
    if min(num_samples, num_correct, k) < 0 or num_correct > num_samples:
        raise ValueError(
            f"pass@k of n = {num_samples}, c = {num_correct}, k = {k}; expected 0 <= c <= n, k >= 0"
        )
    k = min(k, num_samples)
    total = math.comb(num_samples, k)
    return (total - math.comb(num_samples - num_correct, k)) / total


def expected_max_at_k(
    rewards: Float[Tensor, "*pools n K"], weights: Float[Tensor, "N K"], k: int | Sequence[int]
) -> Float64[Tensor, "*pools_and_ks"]:
    """Return ``E_w[best@k of w . r]``: the best of k of the n answers under each w, then the mean.

    With k = n this is the expected maximum over the whole pool. Several k give one more axis.

    Args:
        rewards: One reward vector per answer.
        weights: N weight vectors, the same for all pools.
        k: Number or numbers of answers.

    Raises:
        ValueError: A k is not in 1..n, or shapes or values do not fit.
    """
    return expected_max_at_k_chains(rewards.unsqueeze(-2), weights, k)


def expected_max_at_k_chains(
    rewards: Float[Tensor, "*pools C M K"],
    weights: Float[Tensor, "N K"],
    k: int | Sequence[int],
    answer_mask: Bool[Tensor, "*pools C M"] | None = None,
) -> Float64[Tensor, "*pools_and_ks"]:
    """Return ``expected_max_at_k`` where one draw is a whole chain of M answers.

    Under each weight a chain's score is that of its best answer, 0 if it has none; k of the C
    chains are drawn. This is the figure to use where k counts model calls.

    Args:
        rewards: C chains of M answers per pool.
        weights: N weight vectors, the same for all pools.
        k: Number or numbers of chains.
        answer_mask: True where an answer exists.

    Raises:
        ValueError: A k is not in 1..C, or shapes or values do not fit.
    """
    groups = prepare_groups(rewards, weights, answer_mask, None, None)
    ordered = groups.zero_scores()
    empty = ~groups.answer_mask.any(dim=-1)
    for rows, values in scalarized_blocks(groups):
        best = values.amax(dim=2).masked_fill(empty[rows][..., None], 0.0)
        ordered[rows] += best.sort(dim=1).values.sum(dim=-1)
    return groups.ungroup(ordered / groups.num_draws @ _coefficients(ordered, k))


def order_statistic_weights(num_samples: int, ks: Sequence[int]) -> Float64[Tensor, "k n"]:
    """Return ``C(i - 1, k - 1) / C(n, k)``: the weight of the i-th smallest of n scores in best@k.

    Raises:
        ValueError: A k is not in 1..n.
    """
    rows: list[list[float]] = []
    for k in ks:
        if not 1 <= k <= num_samples:
            raise ValueError(
                f"best@{k} of {num_samples} samples; expected 1 <= k <= {num_samples}: sample "
                "more, or lower the entries of `evaluation.ks`"
            )
        total = math.comb(num_samples, k)
        rows.append([math.comb(i, k - 1) / total for i in range(num_samples)])
    return torch.tensor(rows, dtype=torch.float64).reshape(len(ks), num_samples)


def mean_weighted(
    rewards: Float[Tensor, "*pools n K"], weights: Float[Tensor, "N K"]
) -> Float64[Tensor, "*pools"]:
    """Return the mean of ``w . r`` over the pool's answers and the weights; 0 for an empty pool."""
    if rewards.shape[-2] == 0:
        return rewards.new_zeros(rewards.shape[:-2], dtype=torch.float64)
    return (rewards.double() @ weights.double().mean(dim=0)).mean(dim=-1)


def pairwise_diversity(rewards: Float[Tensor, "*pools n K"]) -> Float64[Tensor, "*pools"]:
    """Return the mean L1 distance between the reward vectors of two answers; 0 for n < 2."""
    size = rewards.shape[-2]
    if size < 2:
        return rewards.new_zeros(rewards.shape[:-2], dtype=torch.float64)
    distances = torch.cdist(rewards.double(), rewards.double(), p=1.0)
    return distances.sum(dim=(-2, -1)) / (size * (size - 1))


def pareto_mask(
    rewards: Float[Tensor, "*pools n K"], tolerance: float = PARETO_TOLERANCE
) -> Bool[Tensor, "*pools n"]:
    """Return True for the answers that no other answer dominates.

    A row is dominated if another is at least as good everywhere and better somewhere, both up to
    the tolerance; equal rows do not dominate each other, so duplicates all stay.
    """
    values = rewards.double()
    other, row = values.unsqueeze(-2), values.unsqueeze(-3)
    covers = (other >= row - tolerance).all(dim=-1) & (other > row + tolerance).any(dim=-1)
    return ~covers.any(dim=-2)


def pareto_count(rewards: Float[Tensor, "*pools n K"]) -> Float64[Tensor, "*pools"]:
    """Return the number of answers that no other answer dominates."""
    return pareto_mask(rewards).double().sum(dim=-1)


def _coefficients(scores: Tensor, k: int | Sequence[int]) -> Tensor:
    ks = [k] if isinstance(k, int) else k
    table = order_statistic_weights(scores.shape[-1], ks).T.to(scores.device)
    return table[:, 0] if isinstance(k, int) else table
