"""Advantages for the best of k samples: marginals of the unbiased best@k estimate.

Every estimator takes scores (..., G), computes in float64 and fills an ``advantage`` slot as it is.
"""

import math

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from vpo_lightning.core.advantages import deviations, finite_scores, group_normalized
from vpo_lightning.core.slots import scores_only


def max_at_k_marginals(scores: Float[Tensor, "*groups G"], k: int) -> Float64[Tensor, "*groups G"]:
    """Return each score's gradient weight for best@k (arXiv:2510.23393).

    With ranks i ascending, ``g_i = [C(i - 1, k - 1) r_i + sum_{j > i} C(j - 2, k - 2) r_j] / C(n,
    k)``: the sum over all k-subsets with sample i of their best score. The g add up to k best@k.
    Equal scores get equal g: mathematically so already, and here exactly, by averaging over ties.

    Args:
        scores: One score per rollout.
        k: Subset size.

    Raises:
        ValueError: k is not in 1..G, or a score is NaN or infinite.
    """
    values = finite_scores(scores)
    size = values.shape[-1]
    _require_k(k, size, "1 <= k <= rollouts per prompt")
    ordered, order = values.sort(dim=-1)
    total = math.comb(size, k)
    own = _row(values, [math.comb(i, k - 1) / total for i in range(size)])
    # The coefficient of a larger score; the smallest is never larger than another one.
    larger = [0.0] + [_comb(i - 1, k - 2) / total for i in range(1, size)]
    shares = ordered * _row(values, larger)
    above = shares.flip(-1).cumsum(dim=-1).flip(-1) - shares
    marginals = torch.zeros_like(values).scatter(-1, order, ordered * own + above)
    ties = (values[..., :, None] == values[..., None, :]).double()
    return (ties * marginals[..., None, :]).sum(dim=-1) / ties.sum(dim=-1)


@scores_only
def max_at_k(
    scores: Float[Tensor, "*groups G"],
    k: int | None = None,
    normalize: bool = True,
    ddof: int = 1,
    eps: float = 1e-6,
    floor: float = 1e-6,
) -> Float64[Tensor, "*groups G"]:
    """Return ``max_at_k_marginals`` centred in each group and divided by ``std + eps``.

    The defaults are VPO's reference implementation. A group of one gets 0.

    Args:
        scores: One score per rollout.
        k: Subset size; None is ``max(2, G // 2)``.
        normalize: False centres only.
        ddof: 0 divides by the population std, 1 by the sample std.
        eps: Added to the std of the marginals.
        floor: Groups whose marginals have a smaller std get 0.

    Raises:
        ValueError: k is not in 1..G - 1 (with k = G all marginals are equal and nothing is learnt),
            or a score is NaN or infinite.
    """
    values = finite_scores(scores)
    size = values.shape[-1]
    if size == 1:
        return torch.zeros_like(values)
    k = max(2, size // 2) if k is None else k
    _require_k(k, size - 1, "1 <= k < rollouts per prompt")
    marginals = max_at_k_marginals(values, k)
    if normalize:
        return group_normalized(marginals, ddof=ddof, eps=eps, floor=floor)
    return deviations(marginals)


@scores_only
def pass_at_k_argmax(
    scores: Float[Tensor, "*groups G"], ddof: int = 1, eps: float = 1e-6, floor: float = 1e-6
) -> Float64[Tensor, "*groups G"]:
    """Return ``(best - second best) / (std + eps)`` for the best rollout, 0 for all others.

    The group's best@G with a leave-one-out baseline (arXiv:2503.19595): only the rollout without
    which the maximum would be lower is credited. Nobody is where the best two tie, or alone.

    Raises:
        ValueError: A score is NaN or infinite.
    """
    values = finite_scores(scores)
    if values.shape[-1] == 1:
        return torch.zeros_like(values)
    top = values.topk(2, dim=-1)
    std = values.std(dim=-1, correction=ddof, keepdim=True)
    margin = top.values[..., :1] - top.values[..., 1:]
    credit = torch.where(std < floor, 0.0, margin / (std + eps))
    return torch.zeros_like(values).scatter(-1, top.indices[..., :1], credit)


@scores_only
def pkpo(scores: Float[Tensor, "*groups G"], k: int = 2) -> Float64[Tensor, "*groups G"]:
    """Return ``E_S[max(r_i, max S) - max S]``, S random k - 1 of the other scores.

    PKPO's leave-one-out marginal (arXiv:2505.15201): what sample i adds to the best of k. Only
    smaller scores matter: ``sum_{j < i} (r_i - r_j) C(j - 1, k - 2) / C(n - 1, k - 1)``, ranks
    ascending. It is never negative. A group of one gets 0.

    Args:
        scores: One score per rollout.
        k: Size of the sets, at least 2 (one sample has nothing to add to).

    Raises:
        ValueError: k is not in 2..G, or a score is NaN or infinite.
    """
    values = finite_scores(scores)
    size = values.shape[-1]
    if size == 1:
        return torch.zeros_like(values)
    if k < 2:
        raise ValueError(f"k is {k}; set `advantage.k` to 2 or more")
    _require_k(k, size, "2 <= k <= rollouts per prompt")
    ordered, order = values.sort(dim=-1)
    total = math.comb(size - 1, k - 1)
    chance = _row(values, [math.comb(j, k - 2) / total for j in range(size)])
    gains = (ordered[..., :, None] - ordered[..., None, :]).clamp_min(0.0)
    return torch.zeros_like(values).scatter(-1, order, (gains * chance).sum(dim=-1))


def _comb(n: int, k: int) -> int:
    """Return C(n, k), 0 for a negative k."""
    return math.comb(n, k) if k >= 0 else 0


def _row(like: Tensor, numbers: list[float]) -> Float64[Tensor, " G"]:
    return torch.tensor(numbers, dtype=torch.float64, device=like.device)


def _require_k(k: int, largest: int, expected: str) -> None:
    if not 1 <= k <= largest:
        raise ValueError(
            f"k is {k}, expected {expected} (here at most {largest}); set `advantage.k`, or sample "
            "more rollouts per prompt"
        )
