"""GDPO: every objective normalised on its own, summed, and whitened over the batch.

Group reward-Decoupled normalisation Policy Optimization (NVIDIA's GDPO). The libraries agree on the
idea and differ in the details; ``convention`` names them.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor

from vpo_lightning.core.advantages import deviations
from vpo_lightning.core.validation import require_finite

Convention = Literal["matched", "verl", "none", "trl"]


@dataclass(frozen=True)
class _Rules:
    """How a convention normalises.

    Attributes:
        ddof: Of each objective's std in the group; None centres only.
        eps: Added to that std.
        floor: Smallest std of an objective that is divided by.
        whitening: Over rollouts with their sample or population std, or over response tokens.
    """

    ddof: int | None
    eps: float
    floor: float
    whitening: Literal["tokens", "sample", "population"]


_RULES: dict[str, _Rules] = {
    "matched": _Rules(ddof=0, eps=0.0, floor=1e-6, whitening="population"),
    "verl": _Rules(ddof=1, eps=1e-6, floor=0.0, whitening="tokens"),
    "none": _Rules(ddof=None, eps=0.0, floor=0.0, whitening="tokens"),
    "trl": _Rules(ddof=1, eps=1e-4, floor=0.0, whitening="sample"),
}
# Of the whitening: veRL adds its epsilon to the variance, TRL to the std.
_VERL_VARIANCE_EPS = 1e-8
_TRL_STD_EPS = 1e-4
_MATCHED_STD_FLOOR = 1e-6


def gdpo(
    scores: Float[Tensor, "B G"] | None = None,
    *,
    rewards: Float[Tensor, "B G M K"],
    weights: Float[Tensor, "B N K"],
    lengths: Int[Tensor, "B G"] | None = None,
    objective_mask: Bool[Tensor, "B K"] | None = None,
    convention: Convention = "matched",
) -> Float64[Tensor, "B G"]:
    """Return GDPO advantages of a whole batch of groups.

    ``z_k = (r_k - mean_k) / (std_k + eps)`` in each group, ``S = sum_k w_k z_k`` with w the mean of
    the group's draws, then ``(S - mean S) / std S`` over the batch:

    - ``verl`` (also VPO's reference implementation): sample std + 1e-6; whitened over all response
      tokens, so long responses count more, with ``sqrt(variance + 1e-8)``.
    - ``none``: as verl, but the objectives are centred and not divided by their std.
    - ``trl``: sample std + 1e-4; whitened over rollouts with the sample std + 1e-4.
    - ``matched`` (our default): population std, no eps, but z_k = 0 where ``std_k < 1e-6`` and
      everything 0 where the batch has std S < 1e-6. Two perfectly opposed objectives hold no
      signal; an epsilon leaves a residue of them that the whitening blows up, here it is exactly 0.

    A group of one has mean 0 and std 1 in the published conventions and z = 0 in ``matched``.

    Args:
        scores: Not used; the slot gives them.
        rewards: One answer per rollout (M = 1).
        weights: Importance of the objectives; a common factor is whitened away.
        lengths: Response lengths in tokens, needed by ``verl`` and ``none``.
        objective_mask: False where an objective only pads a prompt that has fewer.
        convention: See above.

    Raises:
        ValueError: An unknown convention, missing lengths, several answers per rollout, or a reward
            that is NaN or infinite.
    """
    del scores
    if convention not in _RULES:
        raise ValueError(
            f"convention is {convention!r}; set `advantage.convention` to one of {sorted(_RULES)}"
        )
    if rewards.shape[2] != 1:
        raise ValueError(
            f"GDPO takes one answer per rollout, got {rewards.shape[2]}; use a single-answer "
            "`prompt` with `advantage: gdpo`"
        )
    values = _present(rewards[:, :, 0, :].double(), objective_mask)
    require_finite(values, "the reward", ("rollout", "objective"))
    sums = normalized_sums(values, weights.double().mean(dim=1), convention)
    return whitened(sums, lengths, convention)


def normalized_sums(
    values: Float64[Tensor, "B G K"], weights: Float64[Tensor, "B K"], convention: Convention
) -> Float64[Tensor, "B G"]:
    """Return ``sum_k w_k z_k``, each objective normalised in its group as the convention says."""
    return torch.einsum("bgk,bk->bg", _normalized(values, _RULES[convention]), weights)


def whitened(
    sums: Float64[Tensor, "*rollouts"],
    lengths: Int[Tensor, "*rollouts"] | None,
    convention: Convention,
) -> Float64[Tensor, "*rollouts"]:
    """Return the sums centred and scaled over the whole batch as the convention says.

    Raises:
        ValueError: The convention whitens over response tokens and no lengths are given.
    """
    whitening = _RULES[convention].whitening
    if whitening == "tokens":
        return _whitened_over_tokens(sums, lengths)
    centred_sums = sums - sums.mean()
    if whitening == "sample":
        std = sums.std(correction=1) if sums.numel() > 1 else torch.zeros_like(sums.mean())
        return centred_sums / (std + _TRL_STD_EPS)
    std = sums.std(correction=0)
    return torch.zeros_like(sums) if float(std) < _MATCHED_STD_FLOOR else centred_sums / std


def floored_objectives(
    rewards: Float[Tensor, "B G M K"], objective_mask: Bool[Tensor, "B K"] | None = None
) -> Bool[Tensor, "B K"]:
    """Return the objectives without signal in their group: population std below 1e-6."""
    values = _present(rewards[:, :, 0, :].double(), objective_mask)
    floored = values.std(dim=1, correction=0) < _RULES["matched"].floor
    return floored if objective_mask is None else floored & objective_mask


def _present(
    values: Float64[Tensor, "B G K"], objective_mask: Bool[Tensor, "B K"] | None
) -> Float64[Tensor, "B G K"]:
    return values if objective_mask is None else values.masked_fill(~objective_mask[:, None], 0.0)


def _normalized(values: Float64[Tensor, "B G K"], rules: _Rules) -> Float64[Tensor, "B G K"]:
    if values.shape[1] == 1:
        published = values if rules.ddof is None else values / (1.0 + rules.eps)
        return torch.zeros_like(values) if rules.floor > 0 else published
    centred_values = deviations(values, dim=1)
    if rules.ddof is None:
        return centred_values
    std = values.std(dim=1, correction=rules.ddof, keepdim=True)
    divisor = torch.where(std < rules.floor, torch.inf, std + rules.eps)
    return centred_values / divisor


def _whitened_over_tokens(
    sums: Float64[Tensor, "*rollouts"], lengths: Int[Tensor, "*rollouts"] | None
) -> Float64[Tensor, "*rollouts"]:
    if lengths is None:
        raise ValueError(
            "the GDPO conventions verl and none whiten over response tokens and need `lengths`; "
            "use `advantage.convention: matched` without them"
        )
    tokens = lengths.double()
    total = tokens.sum()
    if float(total) < 2:
        return torch.zeros_like(sums)
    centred_sums = sums - (sums * tokens).sum() / total
    variance = (centred_sums.square() * tokens).sum() / (total - 1)
    return centred_sums / (variance + _VERL_VARIANCE_EPS).sqrt()
