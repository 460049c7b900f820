"""What is logged about the rollouts of a step: rewards, diversity, lengths, and every mishap."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from vpo_lightning.core.gdpo import floored_objectives
from vpo_lightning.core.metrics import pairwise_diversity
from vpo_lightning.core.signal import groups_with_signal, signal_report
from vpo_lightning.evaluation.hypervolume import MAX_OBJECTIVES, hypervolume
from vpo_lightning.rollout.batch import RolloutGroup
from vpo_lightning.rollout.store import win_shares

HYPERVOLUME_MARGIN = 0.1
"""The corner of hypervolumes lies this far below 0, so that an answer with a 0 has a volume too."""


def rollout_metrics(
    groups: Sequence[RolloutGroup],
    rewards: Float[Tensor, "B G M K"],
    objective_mask: Bool[Tensor, "B K"],
) -> dict[str, float]:
    """Means over the rollouts of one process, by metric key.

    `rollout/<objective>` looks at every slot as written; `rollout/trained_reward` at the matrix
    that training uses, where duplicates are zero: the first rises while the second may fall.
    `rollout/hypervolume` is the share of reward space that a group dominates (up to 6 objectives).
    `rollout/flat_objective_fraction` counts objectives that are equal in their whole group (single
    answers only), `rollout/out_of_range_fraction` rewards outside [0, 1], `rollout/
    guarded_fraction` rollouts whose advantage a guard of the estimator set to 0.
    """
    signal = signal_report(
        torch.stack([group.set_rewards for group in groups]),
        torch.stack([group.advantages for group in groups]),
    )
    completions = [c for group in groups for c in group.completions]
    scored = [s for group in groups for s in group.scored]
    answers = [a for s in scored for a in s.answers]
    metrics = {
        "rollout/set_reward": _mean([group.set_rewards.mean().item() for group in groups]),
        "rollout/trained_reward": rewards.mean().item(),
        "rollout/diversity": _mean([_diversity(group) for group in groups]),
        "rollout/completion_tokens": _mean([len(c.ids) for c in completions]),
        "rollout/prompt_tokens": _mean([len(group.prompt_ids) for group in groups]),
        "rollout/truncated_fraction": _mean([c.finish_reason == "length" for c in completions]),
        "rollout/missing_fraction": _mean([a.text is None for a in answers]),
        "rollout/unparsed_fraction": _mean(
            [not a.is_parsed for a in answers if a.text is not None]
        ),
        "rollout/duplicate_fraction": _mean([a.is_duplicate for a in answers]),
        "rollout/failed_fraction": _mean([a.error is not None for a in answers]),
        "rollout/parsed_answers": _mean([s.num_parsed for s in scored]),
        "rollout/no_signal_fraction": _mean(
            [not groups_with_signal(group.advantages) for group in groups]
        ),
        "rollout/guarded_fraction": signal["guarded_fraction"],
        "rollout/max_abs_advantage": signal["max_abs_advantage"],
        "rollout/out_of_range_fraction": ((rewards < 0) | (rewards > 1)).double().mean().item(),
        "rollout/entropy": -_mean(
            [sum(c.logprobs) / len(c.logprobs) for c in completions if c.ids]
        ),
    }
    if rewards.shape[2] == 1:
        flat = floored_objectives(rewards, objective_mask)
        metrics["rollout/flat_objective_fraction"] = float(flat.sum() / objective_mask.sum())
    metrics |= _win_shares(groups)
    if rewards.shape[-1] <= MAX_OBJECTIVES:
        metrics["rollout/hypervolume"] = _mean([_hypervolume(group) for group in groups])
    names = [[o.name for o in group.row.objectives] for group in groups]
    if all(group_names == names[0] for group_names in names):
        for k, name in enumerate(names[0]):
            metrics[f"rollout/{name}"] = _mean([a.rewards[k] for a in answers])
    return metrics


def rollout_cost(groups: Sequence[RolloutGroup]) -> dict[str, int]:
    """What sampling and scoring took: tokens and calls of the task's `score`.

    A prompt's tokens count once for its group, however many completions it has.
    """
    scored = [scored for group in groups for scored in group.scored]
    return {
        "prompt_tokens": sum(len(group.prompt_ids) for group in groups),
        "generated_tokens": sum(len(c.ids) for group in groups for c in group.completions),
        "scorer_calls": sum(completion.num_parsed for completion in scored),
    }


def _win_shares(groups: Sequence[RolloutGroup]) -> dict[str, float]:
    """The mean share of the weight draws that each slot of a chain wins."""
    shares = [win_shares(group, g) for group in groups for g in range(len(group.scored))]
    if not shares or len(shares[0]) < 2 or any(None in of_slots for of_slots in shares):
        return {}
    means = torch.tensor(shares, dtype=torch.float64).mean(0).tolist()
    return {f"rollout/win_share/{slot}": share for slot, share in enumerate(means)}


def _diversity(group: RolloutGroup) -> float:
    """Mean pairwise L1 distance of all reward vectors of a group, as written."""
    rows = [answer.rewards for scored in group.scored for answer in scored.answers]
    return float(pairwise_diversity(torch.tensor(rows, dtype=torch.float64)))


def _hypervolume(group: RolloutGroup) -> float:
    """The share of reward space that the answers of a group dominate, as written."""
    rows = {tuple(answer.rewards) for scored in group.scored for answer in scored.answers}
    points = torch.tensor(list(rows), dtype=torch.float64) + HYPERVOLUME_MARGIN
    return hypervolume(points) / (1 + HYPERVOLUME_MARGIN) ** points.shape[1]


def _mean(values: Sequence[float | int]) -> float:
    return float(sum(values) / len(values)) if values else 0.0
