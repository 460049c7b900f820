"""DAPO's dynamic sampling: further prompts until enough groups have a signal (arXiv:2503.14476).

The filter looks at a group's advantages, the method's own signal: under VPO a group of equal summed
rewards may well have one, and under GDPO a group whose objectives cancel has none. Once the batch
is full its groups are credited again, together: an estimator that normalises over the whole batch
(GDPO) must see the batch that is trained on, not one round of sampling.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch.nn.functional import pad

from vpo_lightning.core.signal import groups_with_contrast
from vpo_lightning.rollout.batch import RolloutBatch, RolloutGroup
from vpo_lightning.rollout.credit import Method, advantages, reward_tensors
from vpo_lightning.rollout.exchange import Exchange
from vpo_lightning.task import PromptRow


def collect_with_signal(
    take: Callable[[int], Sequence[PromptRow]],
    collect: Callable[[Sequence[PromptRow], int], RolloutBatch],
    count: int,
    rounds: int,
    most: Callable[[int], int],
    credit: Callable[[Sequence[RolloutGroup]], list[RolloutGroup]],
) -> RolloutBatch:
    """A batch of `count` groups, with a signal as far as `rounds` rounds of sampling found them.

    The first round samples `count` prompts on each process, every later one as many as the process
    with the fewest groups still misses, so that all processes take part in the same rounds. What is
    left over on the others cannot wait for the next step, whose policy is another one: it is
    counted (`rollout/surplus_groups`; always 0 with one process). After the last round groups
    without signal fill the batch (`rollout/filled_groups`). Reward metrics are means over all that
    was sampled, so that the filter does not flatter them.

    Args:
        take: This process's share of the next prompts, given how many each process takes.
        collect: The credited rollouts of prompts in a round, counted from 0.
        count: Groups wanted on each process.
        rounds: Largest number of rounds; 1 is no dynamic sampling.
        most: The largest of a number over all processes.
        credit: The groups with the advantages that they have as one batch; all processes call it.
    """
    batches: list[RolloutBatch] = []
    good: list[RolloutGroup] = []
    rest: list[RolloutGroup] = []
    missing = count
    while missing > 0 and len(batches) < rounds:
        batch = collect(take(missing), len(batches))
        batches.append(batch)
        for group in batch.groups:
            (good if bool(groups_with_contrast(group.advantages)) else rest).append(group)
        missing = most(count - len(good))
    if rounds == 1:
        return batches[0]
    filled = max(count - len(good), 0)
    metrics = _means(batches) | {
        "rollout/sampling_rounds": float(len(batches)),
        "rollout/discarded_groups": float(len(rest) - filled),
        "rollout/filled_groups": float(filled),
        "rollout/surplus_groups": float(max(len(good) - count, 0)),
    }
    seconds = {
        stage: sum(batch.seconds.get(stage, 0.0) for batch in batches)
        for stage in batches[0].seconds
    }
    groups = credit(good[:count] + rest[:filled])
    metrics["rollout/max_abs_advantage"] = max(float(g.advantages.abs().max()) for g in groups)
    cost = {name: sum(batch.cost[name] for batch in batches) for name in batches[0].cost}
    return replace(batches[0], groups=groups, metrics=metrics, seconds=seconds, cost=cost)


def credited_together(
    method: Method, groups: Sequence[RolloutGroup], exchange: Exchange | None
) -> list[RolloutGroup]:
    """The groups with the advantages that they have as one batch, over all processes.

    Args:
        method: Gives the advantage slot and the reward vector; set rewards stay as they are.
        groups: Of this process, equally many on each.
        exchange: Lets the advantage slot see the groups of all processes.
    """
    vector = method.reward_vector
    width = max(group.weights.shape[1] for group in groups)
    weights = [pad(group.weights, (0, width - group.weights.shape[1])) for group in groups]
    tensors = reward_tensors(
        [[vector.apply(g.row.objectives, s.matrix) for s in g.scored] for g in groups],
        torch.stack(weights),
        torch.tensor([[len(c.ids) for c in group.completions] for group in groups]),
        [group.row.id for group in groups],
    )
    scores = torch.stack([group.set_rewards for group in groups])
    credited = advantages(method, scores, tensors, exchange)
    return [replace(group, advantages=credited[i]) for i, group in enumerate(groups)]


def _means(batches: Sequence[RolloutBatch]) -> dict[str, float]:
    """Means over the groups of all rounds, of the figures that every round has."""
    total = sum(len(batch.groups) for batch in batches)
    keys = [key for key in batches[0].metrics if all(key in batch.metrics for batch in batches)]
    return {
        key: sum(batch.metrics[key] * len(batch.groups) for batch in batches) / total
        for key in keys
    }
