"""Rollout batches with random tokens and advantages."""

from __future__ import annotations

import torch

from vpo_lightning.rollout.batch import RolloutBatch, RolloutGroup
from vpo_lightning.rollout.engine import Completion
from vpo_lightning.scoring import ScoredCompletion
from vpo_lightning.task import Objective, PromptRow

OBJECTIVES = (Objective("x", "much x"), Objective("y", "much y"))


def random_batch(groups: int = 2, group_size: int = 4, seed: int = 0) -> RolloutBatch:
    """Groups of completions of unequal lengths; the last group has no signal."""
    generator = torch.Generator().manual_seed(seed)

    def ids(least: int, most: int) -> list[int]:
        length = int(torch.randint(least, most, (1,), generator=generator))
        return torch.randint(2, 40, (length,), generator=generator).tolist()

    made = []
    for g in range(groups):
        advantages = torch.randn(group_size, generator=generator, dtype=torch.float64)
        completions = [ids(1, 9) for _ in range(group_size)]
        made.append(
            RolloutGroup(
                row=PromptRow(f"p{g}", "", {}, OBJECTIVES),
                prompt_ids=ids(2, 7),
                weights=torch.full((1, 2), 0.5, dtype=torch.float64),
                completions=[Completion(c, [-1.0] * len(c), "", "eos") for c in completions],
                scored=[ScoredCompletion([], [[0.0, 0.0]])] * group_size,
                set_rewards=advantages,
                advantages=advantages if g + 1 < groups else torch.zeros_like(advantages),
            )
        )
    return RolloutBatch(0, 0, made)
