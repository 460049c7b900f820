"""The diagnosis of synthetic rewards whose answer is known, and the verdict for each case."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from vpo_lightning.errors import ConfigError
from vpo_lightning.evaluation.diagnosis import (
    Readability,
    VerdictThresholds,
    diagnose,
    effective_number,
    is_conflicting,
    verdict,
)
from vpo_lightning.evaluation.pool import PromptPool
from vpo_lightning.tasks.ultrafeedback.task import UltrafeedbackTask

READABLE = Readability(1.0, 1.0, 0.0, 0.0)


def pools(rewards: Tensor) -> list[PromptPool]:
    """Pools of single answers from rewards (prompts, answers, K)."""
    names = [f"o{k}" for k in range(rewards.shape[2])]
    count = rewards.shape[1]
    return [
        PromptPool(
            f"p{i}",
            names,
            [1.0] * len(names),
            [[answer] for answer in of_prompt],
            [["text"]] * count,
            [1] * count,
            [False] * count,
        )
        for i, of_prompt in enumerate(rewards.tolist())
    ]


def kind(rewards: Tensor, readability: Readability = READABLE) -> str:
    return verdict(diagnose(pools(rewards), readability), VerdictThresholds())[0]


def uniform(*shape: int) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_opposed_objectives_have_the_headroom_that_theory_gives() -> None:
    opposed = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.4, 0.4]], dtype=torch.float64)
    found = diagnose(pools(opposed.repeat(20, 1, 1)), READABLE)
    # E_w[max] of the unit vectors is H_2 / 2 = .75, either of them alone is worth .5.
    assert found.headroom.mean == pytest.approx(0.25, abs=5e-3)
    assert found.conflicting == 1
    assert verdict(found, VerdictThresholds())[0] == "vpo"


def test_collinear_objectives_have_none() -> None:
    quality = uniform(30, 12, 1)
    found = diagnose(pools(quality * torch.tensor([1.0, 0.5, 0.25])), READABLE)
    assert found.headroom.mean == pytest.approx(0, abs=1e-12)
    assert found.conflicting == 0
    assert found.effective_objectives == pytest.approx(1)
    assert torch.tensor(found.correlations).allclose(torch.ones(3, 3))
    name, reason = verdict(found, VerdictThresholds())
    assert name == "like_grpo"
    assert "headroom 0.000" in reason


def test_independent_objectives_count_as_many() -> None:
    found = diagnose(pools(uniform(200, 20, 4)), READABLE)
    assert found.effective_objectives == pytest.approx(4, abs=0.02)
    assert 0.04 < found.headroom.mean < 0.06
    assert [round(o.mean, 1) for o in found.objectives] == [0.5] * 4
    assert found.objectives[0].std == pytest.approx(12**-0.5, abs=0.01)


def test_constant_objectives_are_named_and_do_not_count() -> None:
    rewards = uniform(50, 10, 3)
    rewards[..., 1] = 1.0
    found = diagnose(pools(rewards), READABLE)
    assert [objective.flat for objective in found.objectives] == [0, 1, 0]
    assert found.effective_objectives == pytest.approx(2, abs=0.05)
    assert found.correlations[1] == [0, 0, 0]
    assert effective_number(torch.zeros(2, 2)) == 0


def test_each_verdict() -> None:
    rewards = uniform(20, 8, 2)
    assert kind(rewards, replace(READABLE, parsed_in_chains=0.3)) == "teach_format"
    assert kind(rewards, replace(READABLE, truncated=0.8)) == "teach_format"
    assert kind(torch.zeros_like(rewards)) == "too_sparse"
    assert kind(torch.ones_like(rewards)) == "saturated"
    opposed = torch.eye(2, dtype=torch.float64).repeat(20, 1, 1)
    assert kind(opposed) == "vpo"
    assert kind(0.1 * opposed) == "like_grpo"
    opposed[3:] = 0.5 * opposed[3:, :1] + 0.1 * opposed[3:]  # three prompts of twenty conflict
    assert kind(opposed) == "unclear"


def test_prompts_may_have_different_objectives() -> None:
    found = diagnose([*pools(uniform(5, 8, 2)), *pools(uniform(5, 8, 3))], READABLE)
    assert found.objectives == []
    assert 1 < found.effective_objectives < 3


def test_conflict_needs_two_answers_that_nothing_dominates() -> None:
    assert is_conflicting(torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
    assert not is_conflicting(torch.tensor([[1.0, 0.5], [1.0, 0.5], [0.5, 0.5]]))


def test_ultrafeedback_is_like_grpo() -> None:
    task = UltrafeedbackTask()
    found: list[PromptPool] = []
    for row in task.rows("train"):
        count = len(row.ground_truth["ratings"])
        rewards = torch.tensor([[task.score(str(j + 1), row) for j in range(count)]])
        (pool,) = pools(rewards.double())
        found.append(replace(pool, prompt_id=row.id))
    diagnosis = diagnose(found, READABLE)
    assert diagnosis.headroom.mean < 0.01
    assert verdict(diagnosis, VerdictThresholds())[0] == "like_grpo"


def test_thresholds_are_shares() -> None:
    with pytest.raises(ConfigError, match=r"thresholds\.headroom=1\.5"):
        VerdictThresholds(headroom=1.5)
