"""From reward matrices to scores and advantages: steps 6 and 7 of the way of the data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor
from torch.nn.functional import pad

from vpo_lightning.core.masks import soft_overlong_penalty
from vpo_lightning.core.validation import require_finite
from vpo_lightning.prompting import PromptStyle
from vpo_lightning.rollout.exchange import Exchange
from vpo_lightning.scoring import RewardVector

_ERROR_BLOCKS = 5


@dataclass(frozen=True)
class Method:
    """The four slots that make a method, and the reward vector they see.

    Attributes:
        prompt: How a rollout is asked for and read.
        weights: Draws weights over each prompt's own objectives:
            ``(num_objectives (B,), seeds (B,), step=) -> (B, N, K)``; None takes the fixed weights
            of the reward vector (N = 1).
        set_reward: ``(rewards (B, G, M, K), weights (B, N, K), answer_mask=(B, G, M),
            objective_mask=(B, K)) -> (B, G)``.
        advantage: ``(scores (B, G), rewards=, weights=, lengths=, objective_mask=) -> (B, G)``; B
            counts the prompts of all processes.
        reward_vector: Which objectives, and their scaling.
        redraw_weights: Draw new weights at each step; False keeps those of a prompt for the run.
        normalize_weights: Divide fixed weights by their sum.
    """

    prompt: PromptStyle
    weights: Callable[..., Tensor] | None
    set_reward: Callable[..., Tensor]
    advantage: Callable[..., Tensor]
    reward_vector: RewardVector
    redraw_weights: bool = True
    normalize_weights: bool = True


@dataclass(frozen=True)
class RewardTensors:
    """What the set reward and advantage slots are given; padding is zero and masked.

    Attributes:
        rewards: One reward vector per answer.
        weights: Draws of each group.
        answer_mask: True where an answer exists.
        objective_mask: True for a prompt's own objectives.
        lengths: Completion lengths in tokens.
    """

    rewards: Float64[Tensor, "B G M K"]
    weights: Float[Tensor, "B N K"]
    answer_mask: Bool[Tensor, "B G M"]
    objective_mask: Bool[Tensor, "B K"]
    lengths: Int[Tensor, "B G"]


def reward_tensors(
    matrices: Sequence[Sequence[Sequence[Sequence[float]]]],
    weights: Float[Tensor, "B N K"],
    lengths: Int[Tensor, "B G"],
    prompt_ids: Sequence[str],
) -> RewardTensors:
    """The reward matrices of B groups as one tensor, padded over answers and objectives.

    Args:
        matrices: The matrix (answers, objectives) of each rollout of each group.
        weights: Draws of each group.
        lengths: Completion lengths in tokens.
        prompt_ids: Names of the groups, for error messages.

    Raises:
        ValueError: Unequal numbers of objectives in a group, or a NaN or infinite reward; the
            message names the prompt.
    """
    num_answers = max(len(matrix) for group in matrices for matrix in group)
    widths = [_width(group, name) for group, name in zip(matrices, prompt_ids, strict=True)]
    size = len(matrices[0])
    rewards = torch.zeros(len(matrices), size, num_answers, max(widths), dtype=torch.float64)
    answer_mask = torch.zeros(rewards.shape[:-1], dtype=torch.bool)
    for b, group in enumerate(matrices):
        for g, matrix in enumerate(group):
            rows = torch.tensor(matrix, dtype=torch.float64)
            rewards[b, g, : len(matrix), : widths[b]] = rows
            answer_mask[b, g, : len(matrix)] = True
    require_finite(rewards, "the reward", ("rollout", "answer", "objective"), prompt_ids)
    objective_mask = torch.arange(max(widths))[None, :] < torch.tensor(widths)[:, None]
    return RewardTensors(rewards, weights, answer_mask, objective_mask, lengths)


def set_rewards(
    method: Method, tensors: RewardTensors, max_tokens: int, soft_overlong_tokens: int = 0
) -> Float[Tensor, "B G"]:
    """The set reward of each rollout, lowered by DAPO's soft overlong penalty on request.

    Args:
        method: Gives the slot.
        tensors: Rewards and weights.
        max_tokens: Length limit of a completion in tokens.
        soft_overlong_tokens: Tokens before the limit over which the penalty grows to 1; 0 is none.
    """
    scores = method.set_reward(
        tensors.rewards,
        tensors.weights,
        answer_mask=tensors.answer_mask,
        objective_mask=tensors.objective_mask,
    )
    if soft_overlong_tokens == 0:
        return scores
    return scores + soft_overlong_penalty(tensors.lengths, max_tokens, soft_overlong_tokens)


def advantages(
    method: Method,
    scores: Float[Tensor, "B G"],
    tensors: RewardTensors,
    exchange: Exchange | None = None,
) -> Float[Tensor, "B G"]:
    """The advantage of each rollout of this process.

    The slot sees the groups of all processes, in the order in which one process would hold them: an
    estimator with statistics of the whole batch (GDPO) gives the same for any number of processes.
    """
    if exchange is None:
        return _estimated(method, scores, tensors)
    shares = exchange.gather((scores, tensors))
    parts: dict[str, list[Tensor]] = {
        name: [getattr(share, name) for _, share in shares] for name in vars(tensors)
    }
    whole = RewardTensors(**{name: _dealt_out(part) for name, part in parts.items()})
    estimated = _estimated(method, _dealt_out([scores for scores, _ in shares]), whole)
    return estimated[exchange.rank :: len(shares)]


def standard_error(method: Method, tensors: RewardTensors) -> float:
    """The mean standard error of a set reward that comes from the finite number of draws.

    The draws are split into 5 blocks and scored block by block: the standard deviation of the block
    means over the square root of 5. It holds for independent draws (Sobol points do better) and is
    0 for a slot that does not use them. NaN with fewer than two draws in a block.
    """
    size = tensors.weights.shape[1] // _ERROR_BLOCKS
    if size < 2:
        return float("nan")
    means = [
        method.set_reward(
            tensors.rewards,
            tensors.weights[:, block * size : (block + 1) * size],
            answer_mask=tensors.answer_mask,
            objective_mask=tensors.objective_mask,
        )
        for block in range(_ERROR_BLOCKS)
    ]
    return float(torch.stack(means).std(dim=0).mean() / _ERROR_BLOCKS**0.5)


def _estimated(
    method: Method, scores: Float[Tensor, "B G"], tensors: RewardTensors
) -> Float[Tensor, "B G"]:
    return method.advantage(
        scores,
        rewards=tensors.rewards,
        weights=tensors.weights,
        lengths=tensors.lengths,
        objective_mask=tensors.objective_mask,
    )


def _dealt_out(parts: Sequence[Tensor]) -> Tensor:
    """Equally many groups of each process, in turn; padded to the same answers and objectives."""
    shape = [max(part.shape[axis] for part in parts) for axis in range(1, parts[0].dim())]
    padded: list[Tensor] = []
    for part in parts:
        missing = [n - present for n, present in zip(shape, part.shape[1:], strict=True)]
        padded.append(pad(part, [side for n in reversed(missing) for side in (0, n)]))
    return torch.stack(padded, dim=1).flatten(0, 1)


def _width(group: Sequence[Sequence[Sequence[float]]], prompt_id: str) -> int:
    widths = sorted({len(row) for matrix in group for row in matrix})
    if len(widths) != 1:
        raise ValueError(
            f"the answers to prompt {prompt_id!r} have {widths} rewards; every answer needs one "
            "reward for each objective of its row (the task's score() returns them)"
        )
    return widths[0]
