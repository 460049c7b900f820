"""One step's rollouts: what was asked, sampled, scored and how each rollout is credited."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from vpo_lightning.core.types import TokenBatch
from vpo_lightning.rollout.engine import Completion
from vpo_lightning.scoring import ScoredCompletion
from vpo_lightning.task import PromptRow


@dataclass
class RolloutGroup:
    """The G rollouts of one prompt.

    Attributes:
        row: The prompt.
        prompt_ids: Its token ids.
        weights: The weight draws shared by the group.
        completions: G sampled completions.
        scored: Their scored answers, in the same order.
        set_rewards: The set reward of each rollout.
        advantages: The advantage of each rollout.
    """

    row: PromptRow
    prompt_ids: list[int]
    weights: Float[Tensor, "N K"]
    completions: list[Completion]
    scored: list[ScoredCompletion]
    set_rewards: Float[Tensor, " G"]
    advantages: Float[Tensor, " G"]


@dataclass
class RolloutBatch:
    """The rollouts of one step, on this process.

    Attributes:
        step: Training step, from 0.
        policy_version: Version of the weights that sampled them.
        groups: One entry for each prompt.
        metrics: Figures of this batch by metric key; means over this process's rollouts.
        seconds: Time spent by stage ("generate", "score", "prompt").
        cost: Counts of everything that was sampled for it (`rollout.metrics.rollout_cost`).
    """

    step: int
    policy_version: int
    groups: list[RolloutGroup]
    metrics: dict[str, float] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    cost: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class MicroBatch:
    """Rollouts that go through the policy together.

    Attributes:
        tokens: Prompts and completions.
        advantages: One value for each completion.
        has_signal: Whether the completion's group has any non-zero advantage.
        engine_logprobs: Log-probabilities the engine reported, zero-padded.
        step_tokens: Completion tokens of the whole optimizer step over all processes: what a token
            mean divides by.
        policy_version: Version of the weights that sampled the completions.
        old_logprobs: Log-probabilities before the first update; None when the update is the first,
            where they equal the policy's own.
        reference_logprobs: Log-probabilities of the reference policy, None without one.
        step_rows: Completions of the whole optimizer step over all processes: what a mean over
            sequences divides by.
    """

    tokens: TokenBatch
    advantages: Float[Tensor, " R"]
    has_signal: Tensor
    engine_logprobs: Float[Tensor, "R T"]
    step_tokens: int
    policy_version: int
    old_logprobs: Float[Tensor, "R T"] | None = None
    reference_logprobs: Float[Tensor, "R T"] | None = None
    step_rows: int = 0

    def to(self, device: torch.device) -> MicroBatch:
        """The same micro-batch on `device`."""

        def moved(value: object) -> object:
            if isinstance(value, Tensor):
                return value.to(device)
            if isinstance(value, TokenBatch):
                return TokenBatch(**{k: v.to(device) for k, v in vars(value).items()})
            return value

        return MicroBatch(**{k: moved(v) for k, v in vars(self).items()})  # type: ignore[arg-type]


def pad_ids(rows: Sequence[Sequence[int]], value: int = 0) -> Tensor:
    """Token ids as one tensor (rows, longest), padded on the right with `value`."""
    width = max((len(row) for row in rows), default=0)
    padded = torch.full((len(rows), width), value, dtype=torch.long)
    for i, row in enumerate(rows):
        padded[i, : len(row)] = torch.tensor(row, dtype=torch.long)
    return padded


def token_batch(groups: Sequence[tuple[Sequence[int], Sequence[Completion]]]) -> TokenBatch:
    """Prompts and completions as tensors, group by group.

    Args:
        groups: Prompt ids and the completions that share them; a group may be a part of one.
    """
    completions = [completion for _, group in groups for completion in group]
    counts = torch.tensor([len(group) for _, group in groups], dtype=torch.long)
    return TokenBatch(
        prompt_ids=pad_ids([prompt for prompt, _ in groups]),
        prompt_lengths=torch.tensor([len(prompt) for prompt, _ in groups], dtype=torch.long),
        completion_ids=pad_ids([completion.ids for completion in completions]),
        completion_lengths=torch.tensor([len(c.ids) for c in completions], dtype=torch.long),
        prompt_index=torch.repeat_interleave(torch.arange(len(groups)), counts),
    )


def mean_metrics(shares: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The mean of each figure over the processes that have it."""
    keys = dict.fromkeys(key for share in shares for key in share)
    values = {key: [share[key] for share in shares if key in share] for key in keys}
    return {key: sum(numbers) / len(numbers) for key, numbers in values.items()}


def sum_metrics(shares: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The sum of each figure over processes."""
    keys = dict.fromkeys(key for share in shares for key in share)
    return {key: sum(share.get(key, 0.0) for share in shares) for key in keys}
