"""Log-probabilities over the tokens that a restricted sampler could have drawn.

With top-k, top-p or min-p an engine renormalises over the kept tokens and reports log-probabilities
of that distribution. A trainer with the full softmax would compare two different things; here the
same restriction is applied to the trainer's logits.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vpo_lightning.core.logprobs import sampled_logprobs

# A cumulative probability this close to top_p has reached it (float32 sums of probabilities).
_TOP_P_TOLERANCE = 1e-6


def kept_tokens(
    logits: Float[Tensor, "*rows V"],
    *,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
) -> Bool[Tensor, "*rows V"]:
    """Return which tokens a sampler keeps, in vLLM's order: temperature, min-p, top-k, top-p.

    min-p keeps tokens with at least ``min_p`` times the largest probability; top-k the k likeliest
    (and those tied with the last); top-p the likeliest of what is left whose probabilities,
    renormalised, first add up to ``top_p``. The likeliest token is always kept.

    Args:
        logits: Of the position that predicts the token.
        temperature: The logits are divided by it first.
        top_k: 0 or -1 keeps all.
        top_p: 1 keeps all.
        min_p: 0 keeps all.

    Raises:
        ValueError: A setting is out of range.
    """
    if temperature <= 0 or top_k < -1 or not 0 < top_p <= 1 or not 0 <= min_p <= 1:
        raise ValueError(
            f"temperature {temperature}, top_k {top_k}, top_p {top_p}, min_p {min_p}: expected "
            "temperature > 0, top_k >= -1, 0 < top_p <= 1, 0 <= min_p <= 1; set them in `engine`"
        )
    scaled = logits.detach().float() / temperature
    kept = torch.isfinite(scaled)
    if min_p > 0:
        probabilities = scaled.softmax(dim=-1)
        kept &= probabilities >= min_p * probabilities.amax(dim=-1, keepdim=True)
    if 0 < top_k < scaled.shape[-1]:
        smallest = scaled.masked_fill(~kept, -torch.inf).topk(top_k, dim=-1).values[..., -1:]
        kept &= scaled >= smallest
    if top_p < 1:
        probabilities = scaled.masked_fill(~kept, -torch.inf).softmax(dim=-1)
        ordered, order = probabilities.sort(dim=-1, descending=True)
        before = ordered.cumsum(dim=-1) - ordered
        within = (before < top_p - _TOP_P_TOLERANCE) | (before == 0)
        kept &= torch.zeros_like(kept).scatter(-1, order, within)
    return kept


def restricted_logprobs(
    logits: Float[Tensor, "*rows V"],
    ids: Int[Tensor, "*rows"],
    *,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
) -> Float[Tensor, "*rows"]:
    """Return log-probabilities renormalised over ``kept_tokens``, in nats.

    Probabilities (.5, .3, .15, .05) with top_p .8 give the first token log(.5 / .8) = -.470004, the
    full softmax -.693147. A token outside the support has -inf: the present policy, with this
    sampler, would never draw it, and its importance weight is 0.

    Args:
        logits: Of the position that predicts the token.
        ids: The sampled tokens.
        temperature: See ``kept_tokens``.
        top_k: See ``kept_tokens``.
        top_p: See ``kept_tokens``.
        min_p: See ``kept_tokens``.

    Raises:
        ValueError: A setting is out of range.
    """
    kept = kept_tokens(logits, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    return sampled_logprobs(logits.masked_fill(~kept, -torch.inf), ids, temperature)
