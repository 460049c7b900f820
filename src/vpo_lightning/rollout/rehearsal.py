"""A method tried on random rewards before anything expensive begins."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from vpo_lightning.core.seeding import derive_seed
from vpo_lightning.errors import ConfigError
from vpo_lightning.rollout.collector import fixed_weights
from vpo_lightning.rollout.credit import Method, advantages, reward_tensors, set_rewards
from vpo_lightning.task import Objective

_MAX_TOKENS = 8


def rehearse(
    method: Method, objectives: Sequence[Sequence[Objective]], group_size: int
) -> Float[Tensor, "B G"]:
    """The advantages of random rewards in [0, 1], to meet what the slots refuse before a warm-up.

    The shipped slots are checked earlier (`method_rules`); a user's own are met here. Warns if all
    advantages are 0, as for groups of one: rewards would teach the policy nothing.

    Args:
        method: Its four slots.
        objectives: Of a few prompts, as the method sees them.
        group_size: G, rollouts for each prompt.

    Raises:
        ConfigError: A slot refuses its arguments, or returns another shape or a number that is not
            finite.
    """
    try:
        found = _credited(method, objectives, group_size)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"the ablation does not work for these prompts: {error}") from error
    expected = (len(objectives), group_size)
    if tuple(found.shape) != expected or not bool(torch.isfinite(found).all()):
        raise ConfigError(
            f"ablation.advantage returned {tuple(found.shape)} numbers, of which "
            f"{int((~torch.isfinite(found)).sum())} are not finite; expected one finite advantage "
            f"for each of {expected[0]} x {expected[1]} rollouts"
        )
    if not bool(found.any()):
        warnings.warn(
            f"rollout.group_size={group_size}: this method gives every rollout of random rewards "
            "the advantage 0, so rewards teach the policy nothing; raise rollout.group_size",
            stacklevel=2,
        )
    return found


def _credited(
    method: Method, objectives: Sequence[Sequence[Objective]], group_size: int
) -> Float[Tensor, "B G"]:
    names = [f"rehearsal {b}" for b in range(len(objectives))]
    generator = torch.Generator().manual_seed(derive_seed(0, "rehearsal"))
    matrices = [
        torch.rand(
            (group_size, method.prompt.num_answers, len(kept)),
            generator=generator,
            dtype=torch.float64,
        ).tolist()
        for kept in objectives
    ]
    lengths = torch.randint(1, _MAX_TOKENS + 1, (len(names), group_size), generator=generator)
    if method.weights is None:
        weights = fixed_weights(objectives, normalize=method.normalize_weights)
    else:
        counts = torch.tensor([len(kept) for kept in objectives])
        seeds = torch.tensor([derive_seed(0, "rehearsal", name) for name in names])
        weights = method.weights(counts, seeds, step=0)
    tensors = reward_tensors(matrices, weights, lengths, names)
    scores = set_rewards(method, tensors, _MAX_TOKENS)
    if tuple(scores.shape) != (len(names), group_size):
        raise ValueError(
            f"ablation.set_reward returned shape {tuple(scores.shape)}; expected one score for "
            f"each of {len(names)} x {group_size} rollouts"
        )
    return advantages(method, scores, tensors)
