"""DAPO's dynamic sampling: further prompts until enough groups have a signal (arXiv:2503.14476).

The filter looks at a group's advantages, the method's own signal: under VPO a group of equal summed
rewards may well have one, and under GDPO a group whose objectives cancel has none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from vpo_lightning.core.signal import groups_with_signal
from vpo_lightning.rollout.batch import RolloutBatch, RolloutGroup
from vpo_lightning.task import PromptRow


def collect_with_signal(
    take: Callable[[int], Sequence[PromptRow]],
    collect: Callable[[Sequence[PromptRow], int], RolloutBatch],
    count: int,
    rounds: int,
    most: Callable[[int], int],
) -> RolloutBatch:
    """A batch of `count` groups, with a signal as far as `rounds` rounds of sampling found them.

    The first round samples `count` prompts on each process, every later one as many as the process
    with the fewest groups still misses, so that all processes take part in the same rounds. What is
    left over on the others cannot wait for the next step, whose policy is another one: it is
    counted (`rollout/surplus_groups`; always 0 with one process). After the last round groups
    without signal fill the batch (`rollout/filled_groups`). Reward metrics are means over all that
    was sampled, so that the filter does not flatter them; with batch-wide advantages (GDPO) each
    round is a batch of its own.

    Args:
        take: This process's share of the next prompts, given how many each process takes.
        collect: The credited rollouts of prompts in a round, counted from 0.
        count: Groups wanted on each process.
        rounds: Largest number of rounds; 1 is no dynamic sampling.
        most: The largest of a number over all processes.
    """
    batches: list[RolloutBatch] = []
    good: list[RolloutGroup] = []
    rest: list[RolloutGroup] = []
    missing = count
    while missing > 0 and len(batches) < rounds:
        batch = collect(take(missing), len(batches))
        batches.append(batch)
        for group in batch.groups:
            (good if bool(groups_with_signal(group.advantages)) else rest).append(group)
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
    groups = good[:count] + rest[:filled]
    return replace(batches[0], groups=groups, metrics=metrics, seconds=seconds)


def _means(batches: Sequence[RolloutBatch]) -> dict[str, float]:
    """Means over the groups of all rounds, of the figures that every round has."""
    total = sum(len(batch.groups) for batch in batches)
    keys = [key for key in batches[0].metrics if all(key in batch.metrics for batch in batches)]
    return {
        key: sum(batch.metrics[key] * len(batch.groups) for batch in batches) / total
        for key in keys
    }
