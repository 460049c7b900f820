"""Truncated importance weights for rollouts sampled by an engine that is not quite the policy.

The engine (vLLM, another precision) and the trainer give slightly different log-probabilities
for the same weights. Weighting by ``exp(old - engine)`` corrects the gradient; a cap bounds its
variance.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

Level = Literal["token", "sequence"]
OverCap = Literal["truncate", "drop"]


@dataclass(frozen=True)
class ImportanceWeights:
    """Detached weights and what the caller must log about them.

    Attributes:
        weights: One weight per token.
        capped_fraction: Of the tokens (level token) or rows (level sequence) with a weight above
            the cap. A high value means that the cap, not the data, decides: warn about it.
        missing_fraction: Of the tokens without an engine log-probability; their weight is 1.
        num_units: Tokens or rows that ``capped_fraction`` counts, to add up micro-batches.
    """

    weights: Float[Tensor, "R T"]
    capped_fraction: float
    missing_fraction: float
    num_units: int = 0


def importance_weights(
    old_logprobs: Float[Tensor, "R T"],
    engine_logprobs: Float[Tensor, "R T"],
    mask: Bool[Tensor, "R T"],
    *,
    level: Level = "token",
    cap: float = 2.0,
    over_cap: OverCap = "truncate",
) -> ImportanceWeights:
    """Return ``min(exp(old - engine), cap)`` per token, or of the sum over tokens per row.

    The sequence weight grows exponentially with length: a constant difference of 0.012 nats gives
    exp(1.2) = 3.3 after 100 tokens, so ``capped_fraction`` can be 1 although every token agrees.
    An engine log-probability that is NaN is missing: that token's difference counts as 0.

    Args:
        old_logprobs: Of the trainer, for the weights that sampled the rollouts.
        engine_logprobs: Of the engine; NaN where it gave none.
        mask: True for the tokens that count; weights outside are 0.
        level: One weight per token, or one per row.
        cap: Largest weight.
        over_cap: "truncate" sets larger weights to the cap, "drop" to 0 (the token or row is lost).

    Raises:
        ValueError: The cap is not positive, or an unknown level or ``over_cap``.
    """
    if cap <= 0:
        raise ValueError(f"cap is {cap}; set `loss.importance_cap` above 0")
    if level not in ("token", "sequence") or over_cap not in ("truncate", "drop"):
        raise ValueError(
            f"level is {level!r} and over_cap {over_cap!r}; set `loss.importance_level` to token "
            "or sequence and `loss.importance_over_cap` to truncate or drop"
        )
    missing = torch.isnan(engine_logprobs) & mask
    counted = mask & ~missing
    difference = old_logprobs.detach().double() - engine_logprobs.double()
    difference = torch.where(counted, difference, 0.0)
    if level == "sequence":
        difference = difference.sum(dim=-1, keepdim=True)
    ratio = difference.exp()
    above = ratio > cap
    bounded = torch.where(above, cap if over_cap == "truncate" else 0.0, ratio)
    units = mask if level == "token" else mask.any(dim=-1, keepdim=True)
    weights = torch.where(mask, bounded.expand(mask.shape), 0.0).to(old_logprobs.dtype)
    return ImportanceWeights(
        weights,
        float((above & units).sum() / units.sum().clamp_min(1)),
        float(missing.sum() / mask.sum().clamp_min(1)),
        int(units.sum()),
    )
