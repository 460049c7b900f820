"""Reward matrices of prompt groups in one layout, checked once, and their scalarized values."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor

from vpo_lightning.core.validation import require_finite

# Scalarized rewards held at a time: 1 MiB of float64 stay inside a core's cache and bound the
# memory of large batches.
_BLOCK_ELEMENTS = 1 << 17


@dataclass(frozen=True)
class RewardGroups:
    """Rewards and weights of B groups in float64, absent entries zero.

    Attributes:
        rewards: One reward vector per answer.
        weights: Draws of each group.
        answer_mask: True where an answer exists.
        objective_mask: True for a prompt's own objectives.
        leading: The shape of the group axes before they were flattened into B.
    """

    rewards: Float64[Tensor, "B G M K"]
    weights: Float64[Tensor, "B N K"]
    answer_mask: Bool[Tensor, "B G M"]
    objective_mask: Bool[Tensor, "B K"]
    leading: torch.Size

    @property
    def num_draws(self) -> int:
        """N, the number of weight vectors of a group."""
        return self.weights.shape[1]

    def zero_scores(self) -> Float64[Tensor, "B G"]:
        """Return a score of 0 for every rollout."""
        return self.rewards.new_zeros(self.rewards.shape[:2])

    def ungroup(self, values: Tensor) -> Tensor:
        """Return values (B, ...) with the caller's group axes in place of B."""
        return values.reshape((*self.leading, *values.shape[1:]))


def prepare_groups(
    rewards: Float[Tensor, "*groups G M K"],
    weights: Float[Tensor, "*#groups N _K"],
    answer_mask: Bool[Tensor, "*groups G M"] | None,
    objective_mask: Bool[Tensor, "*groups K"] | None,
    prompt_ids: Sequence[str] | None,
) -> RewardGroups:
    """Return the groups in one layout, after checking shapes and values.

    Raises:
        ValueError: Unequal numbers of objectives or groups, no draws, NaN or infinite values in an
            answer that is not masked or in a weight.
    """
    num_objectives, num_draws = rewards.shape[-1], weights.shape[-2]
    if weights.shape[-1] != num_objectives:
        raise ValueError(
            f"rewards have K = {num_objectives} objectives, weights have K = {weights.shape[-1]}; "
            "`weights` must be drawn for the task's objectives"
        )
    if num_draws == 0:
        raise ValueError("weights hold no draw (N = 0); set `weights.num_draws` to at least 1")
    leading = rewards.shape[:-3]
    rewards = rewards.reshape(leading.numel(), *rewards.shape[-3:]).double()
    weights = weights.double().expand(*leading, num_draws, num_objectives)
    weights = weights.reshape(leading.numel(), num_draws, num_objectives)
    answers = _flat_mask(answer_mask, rewards.shape[:3], rewards.device)
    objectives = _flat_mask(objective_mask, (rewards.shape[0], num_objectives), rewards.device)
    if answer_mask is not None or objective_mask is not None:
        keep = answers[..., None] & objectives[:, None, None, :]
        rewards = torch.where(keep, rewards, 0.0)
        weights = torch.where(objectives[:, None, :], weights, 0.0)
    require_finite(rewards, "the reward", ("rollout", "answer", "objective"), prompt_ids)
    require_finite(weights, "the weight", ("draw", "objective"), prompt_ids)
    return RewardGroups(rewards, weights, answers, objectives, leading)


def scalarized_blocks(
    groups: RewardGroups, *, chebyshev: bool = False
) -> Iterator[tuple[slice, Float64[Tensor, "b G M n"]]]:
    """Yield blocks of groups with their answers' values under a block of draws.

    The value is ``w . r``, or ``min_k w_k r_k`` over the prompt's own objectives, and -inf for an
    absent answer. A group whose draws do not fit one block appears several times. Nothing is
    yielded if the rollouts have no answer slots at all (M = 0).
    """
    count, rollouts, answers, objectives = groups.rewards.shape
    per_draw = rollouts * answers * (objectives if chebyshev else 1)
    if per_draw == 0:
        return
    draws = min(groups.num_draws, max(1, _BLOCK_ELEMENTS // per_draw))
    rows = max(1, _BLOCK_ELEMENTS // (per_draw * draws))
    complete = bool(groups.answer_mask.all())
    for row in range(0, count, rows):
        block = slice(row, row + rows)
        flat = groups.rewards[block].flatten(1, 2)
        for draw in range(0, groups.num_draws, draws):
            weights = groups.weights[block, draw : draw + draws]
            if chebyshev:
                products = flat[:, :, None, :] * weights[:, None, :, :]
                absent = ~groups.objective_mask[block][:, None, None, :]
                values = products.masked_fill(absent, torch.inf).amin(dim=-1)
            else:
                values = torch.bmm(flat, weights.transpose(1, 2))
            values = values.reshape(len(flat), rollouts, answers, -1)
            if not complete:
                values = values.masked_fill(~groups.answer_mask[block][..., None], -torch.inf)
            yield block, values


def _flat_mask(
    mask: Bool[Tensor, "..."] | None, shape: Sequence[int], device: torch.device
) -> Bool[Tensor, "..."]:
    if mask is None:
        return torch.ones(tuple(shape), dtype=torch.bool, device=device)
    return mask.reshape(tuple(shape))
