"""Draws tokens from logits: a token depends on its logits and one uniform number, nothing else."""

from __future__ import annotations

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from vpo_lightning.core.support import kept_tokens
from vpo_lightning.rollout.engine import SamplingSettings


def sample_tokens(
    logits: Float[Tensor, "R V"], uniforms: Float64[Tensor, " R"], settings: SamplingSettings
) -> tuple[Int64[Tensor, " R"], Float64[Tensor, " R"]]:
    """A token of each row and its log-probability in nats.

    The inverse of the cumulative distribution at the uniform number, computed in float64: the first
    token whose cumulative probability exceeds it. The log-probability is that of the distribution
    drawn from, after temperature and restriction of the support (`core.support.kept_tokens`). At
    temperature 0 the token is the most probable one (the first of equals) and the log-probability
    that of temperature 1 without restriction.

    Args:
        logits: Of the next token.
        uniforms: One number in [0, 1) for each row.
        settings: Temperature, top-p, top-k and min-p.

    Raises:
        FloatingPointError: Logits that are not finite.
    """
    scaled = logits.double()
    if settings.temperature == 0:
        ids = scaled.argmax(-1)
        return ids, _checked(scaled.gather(-1, ids[:, None])[:, 0] - scaled.logsumexp(-1))
    if settings.temperature != 1:
        scaled = scaled / settings.temperature
    if settings.top_p < 1 or settings.top_k > 0 or settings.min_p > 0:
        kept = kept_tokens(
            logits,
            temperature=settings.temperature,
            top_k=settings.top_k,
            top_p=settings.top_p,
            min_p=settings.min_p,
        )
        scaled = scaled.masked_fill(~kept, -torch.inf)
    # exp and one running sum give the distribution and its normalisation: mass / total.
    scaled = scaled - scaled.amax(-1, keepdim=True)
    cumulative = scaled.exp().cumsum_(-1)
    total = _checked(cumulative[:, -1])
    # Below the total, so that tokens without mass behind the last one with mass are not chosen.
    points = torch.minimum(uniforms * total, torch.nextafter(total, torch.zeros_like(total)))
    ids = torch.searchsorted(cumulative, points[:, None], right=True)
    return ids[:, 0], scaled.gather(-1, ids)[:, 0] - total.log()


def _checked(values: Float64[Tensor, " R"]) -> Float64[Tensor, " R"]:
    """`values`, which are finite exactly if all logits of their rows are below infinity."""
    if not bool(values.isfinite().all()):
        raise FloatingPointError(
            "the logits of the next token are not finite: the weights have diverged (see "
            "train/grad_norm) or overflow in this dtype; lower optimizer.lr, or set model.dtype"
        )
    return values
