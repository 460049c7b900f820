"""A rollout batch cut into optimizer steps (mini-batches) and forward passes (micro-batches)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from vpo_lightning.core.aggregation import StepTotals
from vpo_lightning.core.signal import groups_with_signal
from vpo_lightning.errors import ConfigError
from vpo_lightning.rollout.batch import MicroBatch, RolloutBatch, RolloutGroup, token_batch
from vpo_lightning.rollout.engine import Completion


@dataclass(frozen=True)
class UpdatePlan:
    """How the policy is updated with one rollout batch.

    Attributes:
        epochs: PPO epochs: passes over the rollout batch.
        minibatches: Optimizer steps in one epoch.
        micro_batch_size: Rollouts in one forward pass, on each process. It bounds memory; the
            gradient does not depend on it.
        skip_groups_without_signal: Leave rollouts of groups with zero advantage out of the update.
            Their policy gradient is zero anyway; what they lose is their pull to the reference.
        drop_truncated: Leave rollouts that hit the length limit out of the loss (DAPO's overlong
            filtering, arXiv:2503.14476): out of its numerator and of what it is divided by. They
            still count in the statistics of their group.
        share_prompts: Compute each prompt once for its completions; False for models whose
            attention does not see the whole prompt. Gradient checkpointing turns it off.

    Raises:
        ConfigError: A number below 1.
    """

    epochs: int = 1
    minibatches: int = 1
    micro_batch_size: int = 64
    skip_groups_without_signal: bool = True
    drop_truncated: bool = False
    share_prompts: bool = True

    def __post_init__(self) -> None:
        """Checks the numbers."""
        for name in ("epochs", "minibatches", "micro_batch_size"):
            if getattr(self, name) < 1:
                raise ConfigError(f"ppo.{name}={getattr(self, name)}: it must be at least 1")

    @property
    def is_single_update(self) -> bool:
        """Whether each rollout batch makes exactly one optimizer step."""
        return self.epochs == self.minibatches == 1

    def accumulation(self, rollouts: int) -> int:
        """Micro-batches of one optimizer step, for `rollouts` rollouts on each process."""
        return -(-(rollouts // self.minibatches) // self.micro_batch_size)

    def batches_per_step(self, rollouts: int) -> int:
        """Micro-batches of a whole rollout batch."""
        return self.epochs * self.minibatches * self.accumulation(rollouts)


def micro_batches(
    batch: RolloutBatch, plan: UpdatePlan, group_size: int, minibatch: int
) -> list[MicroBatch]:
    """The micro-batches of one optimizer step; always `plan.accumulation` of them.

    Groups are laid out one after the other, short completions first, so that a prompt is computed
    once and little is padded. `step_tokens` and `step_rows` count this process's completions, also
    those of groups that are left out: leaving them out does not change the gradient of the others.
    Dropped truncated completions count nowhere: the loss is that of the batch without them.
    """
    groups = _groups_of(batch, plan, minibatch)
    counted = [(group, i) for group in groups for i in _members(group, plan)]
    lengths = [len(group.completions[i].ids) for group, i in counted]
    totals = StepTotals(sum(lengths), sum(length > 0 for length in lengths))
    kept = [group for group in groups if _has_signal(group) or not plan.skip_groups_without_signal]
    kept.sort(key=lambda group: max(len(c.ids) for c in group.completions))
    members = [(group, sample) for group in kept for sample in _members(group, plan)]
    count = plan.accumulation(group_size * len(batch.groups))
    bounds = [round(i * len(members) / count) for i in range(count + 1)]
    return [
        _micro_batch(members[bounds[i] : bounds[i + 1]], totals, batch.policy_version)
        for i in range(count)
    ]


def _members(group: RolloutGroup, plan: UpdatePlan) -> list[int]:
    """The completions of a group that enter the loss."""
    return [
        i
        for i, completion in enumerate(group.completions)
        if completion.finish_reason != "length" or not plan.drop_truncated
    ]


def _groups_of(batch: RolloutBatch, plan: UpdatePlan, minibatch: int) -> list[RolloutGroup]:
    """A contiguous block of groups: with prompts dealt out in turn, the same for any world size."""
    size = len(batch.groups) // plan.minibatches
    return batch.groups[minibatch * size : (minibatch + 1) * size]


def _has_signal(group: RolloutGroup) -> bool:
    return bool(groups_with_signal(group.advantages))


def _micro_batch(
    members: Sequence[tuple[RolloutGroup, int]], totals: StepTotals, policy_version: int
) -> MicroBatch:
    parts: list[tuple[list[int], list[Completion]]] = []
    last: RolloutGroup | None = None
    for group, sample in members:
        if group is not last:
            parts.append((group.prompt_ids, []))
            last = group
        parts[-1][1].append(group.completions[sample])
    tokens = token_batch(parts)
    logprobs = torch.zeros(tokens.completion_ids.shape)
    for i, completion in enumerate(c for _, completions in parts for c in completions):
        logprobs[i, : len(completion.ids)] = torch.tensor(completion.logprobs)
    return MicroBatch(
        tokens=tokens,
        advantages=torch.tensor(
            [float(group.advantages[sample]) for group, sample in members], dtype=torch.float64
        ),
        has_signal=torch.tensor([_has_signal(group) for group, _ in members], dtype=torch.bool),
        engine_logprobs=logprobs,
        step_tokens=totals.num_tokens,
        step_rows=totals.num_rows,
        policy_version=policy_version,
    )
