"""Stored rollouts scored again by other methods, and how much the methods agree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float64
from torch import Tensor
from torch.nn.functional import pad

from vpo_lightning.core.seeding import derive_seed
from vpo_lightning.core.signal import NO_SIGNAL, groups_with_signal
from vpo_lightning.rollout.collector import fixed_weights
from vpo_lightning.rollout.credit import (
    Method,
    RewardTensors,
    advantages,
    set_rewards,
    standard_error,
)
from vpo_lightning.rollout.stored import StoredRollouts


@dataclass(frozen=True)
class Settings:
    """How stored rollouts are scored again.

    Attributes:
        seed: Of the weights; with the run's own seed, VPO draws what the run drew (in its first
            round of sampling).
        resamples: Sets of weights under which each method is scored, for the variance.
        max_tokens: Length limit of the run's completions, for the penalty.
        soft_overlong_tokens: The run's length penalty, see `credit.set_rewards`; 0 is none.
    """

    seed: int
    resamples: int
    max_tokens: int = 0
    soft_overlong_tokens: int = 0


@dataclass(frozen=True)
class Rescored:
    """What one method makes of the rollouts.

    Attributes:
        advantages: Of every stored rollout; the mean over its answers if they were credited alone.
        num_answers: Answers in one of the rollouts that were compared: those of a chain, or 1.
        group_size: Rollouts that were compared in a group: G, or G x M single answers.
        signal_fraction: Of the groups, those with a non-zero advantage.
        mean_abs_advantage: Of what was compared.
        standard_error: Of a set reward, from the finite number of weights drawn; NaN for a method
            without random weights.
        weight_variance: Mean variance of an advantage over the resampled weights, relative to the
            variance of the advantages; 0 for a method without random weights.
    """

    advantages: Float64[Tensor, "B G"]
    num_answers: int
    group_size: int
    signal_fraction: float
    mean_abs_advantage: float
    standard_error: float
    weight_variance: float


def rescore(method: Method, stored: StoredRollouts, settings: Settings) -> Rescored:
    """What a method makes of stored rollouts, each training step taken as its batch.

    A method that asks for one answer would have sampled each answer alone: every slot of every
    chain is a rollout of its own, in groups of G x M, and a chain's advantage is the mean of its
    answers'. Other methods see the chains, with duplicates removed as in training.

    Args:
        method: Its prompt style says which of the two; its reward vector is not used.
        stored: As the method should see them, see `StoredRollouts.seen_through`.
        settings: Seeds and length penalty.

    Raises:
        ValueError: The method is not defined for these rollouts (k too large, K too large).
    """
    is_single = method.prompt.num_answers == 1
    tensors = stored.singles if is_single else stored.chains
    drawn = _weighted(method, stored, tensors, settings, 0)
    found = _credited(method, stored, drawn, settings)
    variance = 0.0
    if method.weights is not None and settings.resamples > 1:
        others = [
            _credited(method, stored, _weighted(method, stored, tensors, settings, i), settings)
            for i in range(1, settings.resamples)
        ]
        spread = torch.stack([found, *others]).var(dim=0).mean()
        variance = float(spread / found.var().clamp_min(1e-12))
    return Rescored(
        advantages=found.unflatten(1, (stored.advantages.shape[1], -1)).mean(dim=2),
        num_answers=1 if is_single else stored.num_answers,
        group_size=found.shape[1],
        signal_fraction=float(groups_with_signal(found).double().mean()),
        mean_abs_advantage=float(found.abs().mean()),
        standard_error=standard_error(method, drawn),
        weight_variance=variance,
    )


def correlation(columns: Sequence[Tensor]) -> Float64[Tensor, "n n"]:
    """The Pearson correlation of advantages; NaN with a method whose advantages are all equal."""
    flat = torch.stack([column.flatten() for column in columns]).double()
    centred = flat - flat.mean(dim=1, keepdim=True)
    scale = centred.norm(dim=1)
    scale = torch.where(scale > 0, scale, torch.nan)
    return (centred @ centred.T) / (scale[:, None] * scale[None, :])


def sign_agreement(columns: Sequence[Tensor]) -> Float64[Tensor, "n n"]:
    """The share of rollouts with advantages of equal sign, of those where neither is 0."""
    flat = torch.stack([column.flatten() for column in columns]).double()
    signs = torch.where(flat.abs() > NO_SIGNAL, flat.sign(), 0.0)
    both = signs.abs() @ signs.abs().T
    return (signs @ signs.T / both + 1) / 2


def _weighted(
    method: Method,
    stored: StoredRollouts,
    tensors: RewardTensors,
    settings: Settings,
    resample: int,
) -> RewardTensors:
    """The rewards with a set of weights: the run's own (0), or one of those drawn again."""
    width = tensors.rewards.shape[-1]
    drawn = [_weights(method, stored, step, settings, resample) for step in stored.by_step()]
    weights = torch.cat([pad(part, (0, width - part.shape[-1])) for part in drawn])
    return replace(tensors, weights=weights)


def _credited(
    method: Method, stored: StoredRollouts, whole: RewardTensors, settings: Settings
) -> Float64[Tensor, "B G"]:
    scores = set_rewards(method, whole, settings.max_tokens, settings.soft_overlong_tokens)
    parts: list[Tensor] = []
    for step in stored.by_step():
        batch = RewardTensors(**{name: value[step] for name, value in vars(whole).items()})
        parts.append(advantages(method, scores[step], batch))
    return torch.cat(parts)


def _weights(
    method: Method, stored: StoredRollouts, step: slice, settings: Settings, resample: int
) -> Float64[Tensor, "B N K"]:
    objectives = stored.objectives[step]
    if method.weights is None:
        return fixed_weights(objectives, normalize=method.normalize_weights)
    number = stored.steps[step.start]
    moment = (number,) if method.redraw_weights else ()
    again = ("resample", resample) if resample else ()
    seeds = [
        derive_seed(settings.seed, "weights", *again, *moment, prompt)
        for prompt in stored.prompt_ids[step]
    ]
    counts = torch.tensor([len(kept) for kept in objectives])
    return method.weights(counts, torch.tensor(seeds), step=number)
