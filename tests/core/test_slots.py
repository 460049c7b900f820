"""Every estimator and set reward can be called the way the collector calls its slots."""

from collections.abc import Callable

import pytest
import torch

from vpo_lightning.core import advantages, advantages_at_k, exact, gdpo, scalarization
from vpo_lightning.core.slots import Advantage, SetReward

REWARDS = torch.rand(2, 4, 1, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
WEIGHTS = torch.full((2, 5, 3), 1 / 3, dtype=torch.float64)
ADVANTAGES: list[Callable[..., torch.Tensor]] = [
    advantages.group_normalized,
    advantages.centred,
    advantages.rloo,
    advantages.leave_one_out_normalized,
    advantages.maxrl,
    advantages_at_k.max_at_k,
    advantages_at_k.pass_at_k_argmax,
    advantages_at_k.pkpo,
    gdpo.gdpo,
]
SET_REWARDS: list[SetReward] = [
    scalarization.set_reward,
    scalarization.chebyshev_set_reward,
    scalarization.pool_credit,
    scalarization.diversity_bonus,
    exact.exact_set_reward,
]


@pytest.mark.parametrize("advantage", ADVANTAGES)
def test_advantages_accept_the_whole_context(advantage: Advantage) -> None:
    scores = torch.rand(2, 4, dtype=torch.float64)
    found = advantage(
        scores,
        rewards=REWARDS,
        weights=WEIGHTS,
        lengths=torch.tensor([[3, 4, 5, 6]] * 2),
        objective_mask=torch.ones(2, 3, dtype=torch.bool),
    )
    assert found.shape == (2, 4)
    assert found.dtype == torch.float64


@pytest.mark.parametrize("advantage", ADVANTAGES)
def test_a_misspelt_setting_is_not_swallowed(advantage: Callable[..., torch.Tensor]) -> None:
    with pytest.raises(TypeError):
        advantage(torch.rand(2, 4), rewards=REWARDS, weights=WEIGHTS, epsilon=1e-6)


@pytest.mark.parametrize("score", SET_REWARDS)
def test_set_rewards_accept_masks(score: SetReward) -> None:
    answers = torch.ones(2, 4, 1, dtype=torch.bool)
    objectives = torch.ones(2, 3, dtype=torch.bool)
    found = score(REWARDS, WEIGHTS, answer_mask=answers, objective_mask=objectives)
    assert found.shape == (2, 4)
    assert found.dtype == torch.float64
