"""Policy losses per token, to be minimised, and estimates of the KL divergence per token.

Every policy loss is called as ``loss(logprobs, old_logprobs, advantages, mask)`` with one row per
rollout and fills a ``loss`` slot. ``advantages`` is (R, C) with C = T or 1. Entries outside the
mask are 0 whatever the log-probabilities there; ``aggregation.aggregate`` turns the rest into a
scalar. Log-probabilities are natural logarithms (nats).
"""

from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

# exp() of a larger log ratio may leave float32, and inf times a zero gradient is NaN.
_MAX_LOG_RATIO = 20.0

KlEstimator = Literal["k1", "k2", "k3"]


def clipped_surrogate(
    logprobs: Float[Tensor, "R T"],
    old_logprobs: Float[Tensor, "R T"],
    advantages: Float[Tensor, "R C"],
    mask: Bool[Tensor, "R T"],
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float | None = None,
) -> Float[Tensor, "R T"]:
    """Return PPO's ``-min(ratio A, clip(ratio, 1 - low, 1 + high) A)`` (arXiv:1707.06347).

    ``clip_high > clip_low`` is DAPO's clip-higher (arXiv:2503.14476). The dual clip
    (arXiv:1912.09729) bounds the loss of a token with a negative advantage by ``dual_clip * |A|``.

    Args:
        logprobs: Of the policy being trained.
        old_logprobs: Of the policy before the first update on this rollout batch.
        advantages: Per rollout or per token.
        mask: True for the tokens that count.
        clip_low: Distance of the lower bound of the ratio from 1.
        clip_high: Distance of the upper bound of the ratio from 1.
        dual_clip: Bound on the ratio where A < 0, above 1; None for none.

    Raises:
        ValueError: A clip range is out of bounds.
    """
    _check_clip(clip_low, clip_high)
    if dual_clip is not None and dual_clip <= 1:
        raise ValueError(f"dual_clip is {dual_clip}; set `loss.dual_clip` above 1 or to null")
    ratio = _log_ratio(logprobs, old_logprobs, mask).exp()
    loss = _clipped(ratio, advantages, clip_low, clip_high)
    if dual_clip is not None:
        bounded = torch.minimum(loss, -dual_clip * advantages)
        loss = torch.where(advantages < 0, bounded, loss)
    return torch.where(mask, loss, 0.0)


def gspo(
    logprobs: Float[Tensor, "R T"],
    old_logprobs: Float[Tensor, "R T"],
    advantages: Float[Tensor, "R C"],
    mask: Bool[Tensor, "R T"],
    *,
    clip_low: float = 3e-4,
    clip_high: float = 4e-4,
) -> Float[Tensor, "R T"]:
    """Return the clipped surrogate of the sequence ratio, repeated over tokens (arXiv:2507.18071).

    ``s = exp(mean over tokens of (logprob - old))``, one ratio per rollout, clipped like PPO's.
    With the aggregation ``seq_mean_token_mean`` this is the paper's objective; the defaults are its
    clip range.

    Raises:
        ValueError: A clip range is out of bounds.
    """
    _check_clip(clip_low, clip_high)
    tokens = mask.sum(dim=-1, keepdim=True).clamp_min(1)
    mean = _log_ratio(logprobs, old_logprobs, mask).sum(dim=-1, keepdim=True) / tokens
    loss = _clipped(mean.exp(), advantages, clip_low, clip_high)
    return torch.where(mask, loss.expand_as(logprobs), 0.0)


def cispo(
    logprobs: Float[Tensor, "R T"],
    old_logprobs: Float[Tensor, "R T"],
    advantages: Float[Tensor, "R C"],
    mask: Bool[Tensor, "R T"],
    *,
    min_ratio: float = 0.0,
    max_ratio: float = 5.0,
) -> Float[Tensor, "R T"]:
    """Return ``-clamp(ratio, min, max).detach() A logprob`` per token (CISPO, arXiv:2506.13585).

    Unlike under PPO's clip no token loses its gradient; only its weight is bounded. TRL clamps the
    maximum only (the defaults), veRL clamps to ``[1 - low, 1 + high]``, e.g. 0.8 and 1.2.

    Raises:
        ValueError: Not ``0 <= min_ratio <= max_ratio``.
    """
    if not 0 <= min_ratio <= max_ratio:
        raise ValueError(
            f"min_ratio is {min_ratio} and max_ratio {max_ratio}; set `loss.min_ratio` and "
            "`loss.max_ratio` so that 0 <= min_ratio <= max_ratio"
        )
    ratio = _log_ratio(logprobs, old_logprobs, mask).exp().clamp(min_ratio, max_ratio).detach()
    return torch.where(mask, -ratio * advantages * torch.where(mask, logprobs, 0.0), 0.0)


def reinforce(
    logprobs: Float[Tensor, "R T"],
    old_logprobs: Float[Tensor, "R T"],
    advantages: Float[Tensor, "R C"],
    mask: Bool[Tensor, "R T"],
) -> Float[Tensor, "R T"]:
    """Return ``-A logprob`` per token (on-policy: the old log-probabilities are not read)."""
    del old_logprobs
    return torch.where(mask, -advantages * torch.where(mask, logprobs, 0.0), 0.0)


def clipped_fraction(
    logprobs: Float[Tensor, "R T"],
    old_logprobs: Float[Tensor, "R T"],
    advantages: Float[Tensor, "R C"],
    mask: Bool[Tensor, "R T"],
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
) -> Float[Tensor, ""]:
    """Return the fraction of masked tokens whose gradient PPO's clip removes.

    These have a ratio above ``1 + clip_high`` with A > 0, or below ``1 - clip_low`` with A < 0.
    """
    ratio = _log_ratio(logprobs, old_logprobs, mask).detach().exp()
    clipped = ((ratio > 1 + clip_high) & (advantages > 0)) | (
        (ratio < 1 - clip_low) & (advantages < 0)
    )
    return (clipped & mask).sum() / mask.sum().clamp_min(1)


def kl_estimate(
    logprobs: Float[Tensor, "R T"],
    reference_logprobs: Float[Tensor, "R T"],
    mask: Bool[Tensor, "R T"],
    estimator: KlEstimator = "k3",
) -> Float[Tensor, "R T"]:
    """Return an estimate of ``KL(policy || reference)`` per token, in nats (Schulman 2020).

    With ``d = logprob - reference``: k1 = d, k2 = d^2 / 2, k3 = exp(-d) - 1 + d. As a loss term, k1
    has an expected gradient of 0 and k2 that of the KL divergence; k3 is the usual choice.

    Raises:
        ValueError: An unknown estimator.
    """
    difference = _log_ratio(logprobs, reference_logprobs, mask)
    if estimator == "k1":
        return difference
    if estimator == "k2":
        return difference.square() / 2
    if estimator == "k3":
        return torch.expm1(-difference) + difference
    raise ValueError(f"kl estimator is {estimator!r}; set `loss.kl_estimator` to k1, k2 or k3")


def _log_ratio(
    logprobs: Float[Tensor, "R T"], other: Float[Tensor, "R T"], mask: Bool[Tensor, "R T"]
) -> Float[Tensor, "R T"]:
    """Return the difference, 0 outside the mask and bounded so that its exponential is finite."""
    difference = torch.where(mask, logprobs, 0.0) - torch.where(mask, other, 0.0)
    return difference.clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO)


def _clipped(
    ratio: Float[Tensor, "R C1"],
    advantages: Float[Tensor, "R C2"],
    clip_low: float,
    clip_high: float,
) -> Float[Tensor, "R C"]:
    inside = ratio.clamp(1 - clip_low, 1 + clip_high)
    return torch.maximum(-ratio * advantages, -inside * advantages)


def _check_clip(clip_low: float, clip_high: float) -> None:
    if not (0 <= clip_low < 1 and clip_high >= 0):
        raise ValueError(
            f"clip_low is {clip_low} and clip_high {clip_high}; set `loss.clip_low` in [0, 1) and "
            "`loss.clip_high` to 0 or more"
        )
