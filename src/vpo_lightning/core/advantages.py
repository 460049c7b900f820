"""Advantages from the scores of a group: centred, normalised, leave-one-out and MaxRL.

Every estimator takes scores (..., G), computes in float64 and fills an ``advantage`` slot as it is.
``singleton`` says what a group of one gets: "zero", because it holds no comparison (preset
matched), or "raw", the published convention of treating its mean as 0 and its std as 1 (preset
official; warned about, since such a rollout is rewarded for any positive score).
"""

import warnings
from typing import Literal

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from vpo_lightning.core.slots import scores_only
from vpo_lightning.core.validation import require_finite

Singleton = Literal["zero", "raw"]


@scores_only
def group_normalized(
    scores: Float[Tensor, "*groups G"],
    ddof: int = 0,
    eps: float = 1e-6,
    floor: float = 1e-6,
    singleton: Singleton = "zero",
) -> Float64[Tensor, "*groups G"]:
    """Return ``(score - mean) / (std + eps)`` in each group, exactly 0 where ``std < floor``.

    The defaults are the z-norm of VPO's reference implementation (population std, 1e-6). GRPO in
    veRL is ``ddof=1``, in TRL ``ddof=1, eps=1e-4``, in open-instruct ``eps=1e-8``. The population
    form is larger by ``sqrt(G / (G - 1))``, and ``|A| <= sqrt(G - 1)`` holds in both.

    Args:
        scores: One score per rollout.
        ddof: 0 divides by the population std, 1 by the sample std.
        eps: Added to the std.
        floor: Groups with a smaller std carry no signal: what is left is rounding.
        singleton: What a group of one gets, see the module.

    Raises:
        ValueError: A score is NaN or infinite, or the settings are out of range.
    """
    _check_settings(ddof=ddof, eps=eps, floor=floor)
    values = finite_scores(scores)
    if values.shape[-1] == 1:
        return _singleton(values, 1.0 + eps, singleton)
    std = values.std(dim=-1, correction=ddof, keepdim=True)
    advantages = deviations(values) / (std + eps)
    return (
        torch.where(std < floor, 0.0, advantages) if floor > 0 else advantages.nan_to_num(nan=0.0)
    )


@scores_only
def centred(
    scores: Float[Tensor, "*groups G"], singleton: Singleton = "zero"
) -> Float64[Tensor, "*groups G"]:
    """Return ``score - mean`` in each group (Dr.GRPO, arXiv:2503.20783).

    Raises:
        ValueError: A score is NaN or infinite.
    """
    values = finite_scores(scores)
    if values.shape[-1] == 1:
        return _singleton(values, 1.0, singleton)
    return deviations(values)


@scores_only
def rloo(scores: Float[Tensor, "*groups G"]) -> Float64[Tensor, "*groups G"]:
    """Return ``score - mean of the others = G / (G - 1) (score - mean)`` (RLOO, arXiv:2402.14740).

    A group of one gets 0.

    Raises:
        ValueError: A score is NaN or infinite.
    """
    values = finite_scores(scores)
    size = values.shape[-1]
    return deviations(values) * (size / max(size - 1, 1))


@scores_only
def leave_one_out_normalized(
    scores: Float[Tensor, "*groups G"], eps: float = 1e-6, floor: float = 1e-6
) -> Float64[Tensor, "*groups G"]:
    """Return ``(score - mean of the others) / (sample std of the others + eps)`` (NeMo-RL default).

    A rollout whose others have a std below ``floor`` gets exactly 0: rewards ``[.35] * 7 + [0]``
    would otherwise give the odd one an advantage made of rounding. So does every rollout of a group
    of one or two, where the others have no std. ``signal.signal_report`` counts these rollouts.

    Raises:
        ValueError: A score is NaN or infinite, or the settings are out of range.
    """
    _check_settings(ddof=1, eps=eps, floor=floor)
    values = finite_scores(scores)
    size = values.shape[-1]
    if size < 3:
        return torch.zeros_like(values)
    itself = torch.eye(size, dtype=torch.bool, device=values.device)
    others = values.unsqueeze(-2).expand(*values.shape, size)
    mean = others.masked_fill(itself, 0.0).sum(dim=-1) / (size - 1)
    distances = (others - mean[..., None]).masked_fill(itself, 0.0)
    std = (distances.square().sum(dim=-1) / (size - 2)).sqrt()
    largest = others.masked_fill(itself, -torch.inf).amax(dim=-1)
    smallest = others.masked_fill(itself, torch.inf).amin(dim=-1)
    is_guarded = (std < floor) | (largest == smallest)
    return torch.where(is_guarded, 0.0, (values - mean) / (std + eps))


@scores_only
def maxrl(
    scores: Float[Tensor, "*groups G"],
    eps: float = 1e-6,
    floor: float = 1e-6,
    singleton: Singleton = "zero",
) -> Float64[Tensor, "*groups G"]:
    """Return ``(score - mean) / (mean + eps)`` in each group (MaxRL, arXiv:2602.02710).

    Meant for scores that are not negative. A group whose mean is below ``floor`` gets 0: with all
    scores 0 there is nothing to learn, and a negative mean would turn the sign of every advantage.

    Args:
        scores: One score per rollout.
        eps: Added to the mean.
        floor: Smallest mean that is divided by.
        singleton: What a group of one gets; "raw" is ``score / eps``, as published.

    Raises:
        ValueError: A score is NaN or infinite, or the settings are out of range.
    """
    _check_settings(ddof=0, eps=eps, floor=floor)
    values = finite_scores(scores)
    if values.shape[-1] == 1:
        return _singleton(values, eps, singleton)
    mean = values.mean(dim=-1, keepdim=True)
    usable = (mean >= floor) & (mean > 0)
    return torch.where(usable, deviations(values) / torch.where(usable, mean + eps, 1.0), 0.0)


def deviations(values: Float64[Tensor, "*shape"], dim: int = -1) -> Float64[Tensor, "*shape"]:
    """Return ``value - mean`` along an axis, exactly 0 where all values are equal.

    The mean of equal numbers may be off by rounding, which an estimator without a floor divides by
    its epsilon.
    """
    is_flat = values.amax(dim, keepdim=True) == values.amin(dim, keepdim=True)
    return torch.where(is_flat, 0.0, values - values.mean(dim, keepdim=True))


def finite_scores(scores: Float[Tensor, "*groups G"]) -> Float64[Tensor, "*groups G"]:
    """Return the scores in float64.

    Raises:
        ValueError: A score is NaN or infinite; the message names the prompt group.
    """
    values = scores.double()
    require_finite(values, "the score", ("rollout",))
    return values


def _singleton(
    values: Float64[Tensor, "*groups 1"], divisor: float, singleton: str
) -> Float64[Tensor, "*groups 1"]:
    if singleton == "zero":
        return torch.zeros_like(values)
    if singleton != "raw":
        raise ValueError(f"singleton is {singleton!r}; set `advantage.singleton` to zero or raw")
    warnings.warn(
        "a group of one rollout has no baseline: its advantage is its score; set "
        "`advantage.singleton: zero` or sample at least 2 rollouts per prompt",
        stacklevel=3,
    )
    return values / divisor


def _check_settings(*, ddof: int, eps: float, floor: float) -> None:
    if ddof not in (0, 1):
        raise ValueError(f"ddof is {ddof}; set `advantage.ddof` to 0 (population) or 1 (sample)")
    if eps < 0 or floor < 0:
        raise ValueError(
            f"eps is {eps} and floor is {floor}; set `advantage.eps` and `advantage.floor` to 0 or "
            "more"
        )
