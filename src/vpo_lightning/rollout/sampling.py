"""Draws tokens from logits: a token depends on its logits and one uniform number, nothing else."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from vpo_lightning.rollout.engine import SamplingSettings

# Mass before a token is compared with top_p up to rounding, so that p = .5, .3, ... and
# top_p = .8 keep two tokens.
_ROUNDING = 1e-9


def sample_tokens(
    logits: Float[Tensor, "R V"], uniforms: Float64[Tensor, " R"], settings: SamplingSettings
) -> tuple[Int64[Tensor, " R"], Float64[Tensor, " R"]]:
    """A token of each row and its log-probability in nats.

    The inverse of the cumulative distribution at the uniform number, computed in float64: the first
    token whose cumulative probability exceeds it. The log-probability is that of the distribution
    drawn from, after temperature and restriction of the support (`restrict_support`). At
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
        return ids, scaled.gather(-1, ids[:, None])[:, 0] - scaled.logsumexp(-1)
    if settings.temperature != 1:
        scaled = scaled / settings.temperature
    scaled = restrict_support(scaled, settings)
    # exp and one running sum give the distribution and its normalisation: mass / total.
    scaled = scaled - scaled.amax(-1, keepdim=True)
    cumulative = scaled.exp().cumsum_(-1)
    total = cumulative[:, -1]
    if not bool(total.isfinite().all()):
        raise FloatingPointError(
            "the logits of the next token are not finite: the weights have diverged (see "
            "train/grad_norm) or overflow in this dtype; lower optimizer.lr, or set model.dtype"
        )
    # Below the total, so that tokens without mass behind the last one with mass are not chosen.
    points = torch.minimum(uniforms * total, torch.nextafter(total, torch.zeros_like(total)))
    ids = torch.searchsorted(cumulative, points[:, None], right=True)
    return ids[:, 0], scaled.gather(-1, ids)[:, 0] - total.log()


def restrict_support(
    logits: Float64[Tensor, "R V"], settings: SamplingSettings
) -> Float64[Tensor, "R V"]:
    """The logits with -inf for the tokens that min-p, then top-k, then top-p leave out.

    The order is vLLM's: each restriction looks at the distribution that the one before left. Of
    equally probable tokens the first is kept.
    """
    if settings.min_p > 0:
        floor = logits.amax(-1, keepdim=True) + torch.tensor(settings.min_p).double().log().item()
        logits = logits.masked_fill(logits < floor, -torch.inf)
    if settings.top_k == 0 and settings.top_p >= 1:
        return logits
    ordered, order = logits.sort(dim=-1, descending=True, stable=True)
    kept: Bool[Tensor, "R V"] = ordered > -torch.inf
    if settings.top_k:
        kept[:, settings.top_k :] = False
    if settings.top_p < 1:
        mass = ordered.masked_fill(~kept, -torch.inf).softmax(-1)
        before = mass.cumsum(-1) - mass
        kept &= before < settings.top_p - _ROUNDING
    return logits.masked_fill(torch.zeros_like(kept).scatter(-1, order, ~kept), -torch.inf)
