"""GDPO conventions against their published values."""

import inspect
import math

import pytest
import torch

from vpo_lightning.core.gdpo import Convention, floored_objectives, gdpo, normalized_sums

# Two groups of four rollouts, two objectives, one answer each.
FIRST = [[0, 1], [1, 0], [1, 1], [0, 0]]
SECOND = [[0, 2], [0, 2], [1, 0], [1, 0]]
BOTH = torch.tensor([FIRST, SECOND], dtype=torch.float64)[:, :, None, :]
ONES = torch.ones(2, 1, 2, dtype=torch.float64)
LENGTHS = torch.tensor([[2, 4, 3, 1], [5, 1, 2, 2]])
CONVENTIONS: list[Convention] = ["matched", "verl", "none", "trl"]


def close(found: torch.Tensor, expected: object, tolerance: float = 1e-6) -> None:
    torch.testing.assert_close(
        found, torch.as_tensor(expected, dtype=torch.float64), rtol=tolerance, atol=tolerance
    )


def test_trl_has_its_published_values() -> None:
    sums = normalized_sums(BOTH[:, :, 0], ONES[:, 0], "trl")
    close(sums[0], [0, 0, 1.731751, -1.731751])
    advantages = gdpo(rewards=BOTH, weights=ONES, convention="trl")
    close(advantages[0], [0, 0, 1.870627, -1.870627])
    close(advantages[1].abs(), [0.000081] * 4, 1e-6)


def test_verl_has_its_published_values() -> None:
    advantages = gdpo(rewards=BOTH, weights=ONES, lengths=LENGTHS, convention="verl")
    close(advantages[0], [-0.223607, -0.223607, 2.012461, -2.459675])
    close(advantages[1], [-0.223606, -0.223606, -0.223608, -0.223608])


def test_opposed_objectives_leave_an_amplified_residue_in_the_published_forms_only() -> None:
    alone, ones = BOTH[1:], ONES[1:]
    trl = gdpo(rewards=alone, weights=ones, convention="trl")
    assert abs(float(trl.abs().max()) - 0.40) < 0.01
    close(normalized_sums(alone[:, :, 0], ones[:, 0], "trl").abs(), [[7.5e-5] * 4], 1e-7)
    verl = gdpo(rewards=alone, weights=ones, lengths=LENGTHS[1:], convention="verl")
    assert 0.005 < float(verl.abs().max()) < 0.015
    matched = gdpo(rewards=alone, weights=ones)
    assert torch.equal(matched, torch.zeros(1, 4, dtype=torch.float64))


def test_matched_normalises_by_population_std_and_whitens_over_rollouts() -> None:
    close(gdpo(rewards=BOTH, weights=ONES)[0], [0, 0, 2, -2], 1e-12)
    close(gdpo(rewards=BOTH, weights=ONES)[1], [0, 0, 0, 0], 1e-12)


def test_the_convention_without_std_centres_only() -> None:
    advantages = gdpo(rewards=BOTH, weights=ONES, lengths=LENGTHS, convention="none")
    sums = (BOTH[:, :, 0] - BOTH[:, :, 0].mean(1, keepdim=True)).sum(-1).reshape(-1)
    tokens = torch.repeat_interleave(sums, LENGTHS.reshape(-1))
    expected = (sums - tokens.mean()) / (tokens.var() + 1e-8).sqrt()
    close(advantages.reshape(-1), expected, 1e-12)


def test_verl_whitening_is_over_repeated_tokens() -> None:
    generator = torch.Generator().manual_seed(3)
    rewards = torch.rand(3, 4, 1, 2, dtype=torch.float64, generator=generator)
    weights = torch.rand(3, 2, 2, dtype=torch.float64, generator=generator)
    lengths = torch.randint(1, 9, (3, 4), generator=generator)
    values = rewards[:, :, 0]
    z = (values - values.mean(1, keepdim=True)) / (values.std(1, keepdim=True) + 1e-6)
    sums = (z * weights.mean(1)[:, None]).sum(-1).reshape(-1)
    tokens = torch.repeat_interleave(sums, lengths.reshape(-1))
    expected = (sums - tokens.mean()) / (tokens.var() + 1e-8).sqrt()
    found = gdpo(rewards=rewards, weights=weights, lengths=lengths, convention="verl")
    close(found.reshape(-1), expected, 1e-12)


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_padding_objectives_change_nothing(convention: Convention) -> None:
    padded = torch.cat([BOTH, torch.full((2, 4, 1, 3), math.nan)], -1)
    weights = torch.cat([ONES, torch.ones(2, 1, 3)], -1)
    mask = torch.tensor([[True, True, False, False, False]] * 2)
    settings = {"lengths": LENGTHS, "convention": convention}
    found = gdpo(rewards=padded, weights=weights, objective_mask=mask, **settings)
    close(found, gdpo(rewards=BOTH, weights=ONES, **settings), 1e-12)


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_equal_rewards_give_zero_advantages(convention: Convention) -> None:
    rewards = torch.full((2, 4, 1, 2), 0.35, dtype=torch.float64)
    found = gdpo(rewards=rewards, weights=ONES, lengths=LENGTHS, convention=convention)
    close(found, torch.zeros(2, 4), 1e-9)


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_a_common_factor_of_the_weights_is_whitened_away(convention: Convention) -> None:
    settings = {"rewards": BOTH, "lengths": LENGTHS, "convention": convention}
    # Up to the epsilons of the published whitenings.
    close(gdpo(weights=ONES * 5, **settings), gdpo(weights=ONES, **settings), 5e-4)


def test_the_slot_may_pass_scores() -> None:
    found = gdpo(
        torch.zeros(2, 4),
        rewards=BOTH,
        weights=ONES,
        lengths=LENGTHS,
        objective_mask=torch.ones(2, 2, dtype=torch.bool),
    )
    close(found, gdpo(rewards=BOTH, weights=ONES))


def test_groups_of_one_count_only_in_the_published_conventions() -> None:
    rewards = torch.tensor([[[[0.5, 0.2]]], [[[0.1, 0.4]]]], dtype=torch.float64)
    assert not bool(gdpo(rewards=rewards, weights=ONES).any())
    lengths = torch.tensor([[3], [2]])
    assert bool(gdpo(rewards=rewards, weights=ONES, lengths=lengths, convention="verl").all())
    assert bool(gdpo(rewards=rewards, weights=ONES, convention="trl").all())


def test_objectives_without_signal_are_reported() -> None:
    rewards = BOTH.clone()
    rewards[0, :, 0, 1] = 0.7
    assert floored_objectives(rewards).tolist() == [[False, True], [False, False]]
    mask = torch.tensor([[True, False], [True, True]])
    assert floored_objectives(rewards, mask).tolist() == [[False, False], [False, False]]


@pytest.mark.parametrize("convention", ["verl", "none"])
def test_token_whitening_needs_lengths(convention: Convention) -> None:
    with pytest.raises(ValueError, match=r"need `lengths`"):
        gdpo(rewards=BOTH, weights=ONES, convention=convention)


def test_wrong_input_is_refused() -> None:
    with pytest.raises(ValueError, match=r"one answer per rollout, got 3"):
        gdpo(rewards=torch.rand(2, 4, 3, 2), weights=ONES)
    bad = BOTH.clone()
    bad[1, 2, 0, 0] = math.nan
    with pytest.raises(ValueError, match=r"reward of prompt group 1, rollout 2, objective 0"):
        gdpo(rewards=bad, weights=ONES)
    with pytest.raises(ValueError, match=r"convention is 'ours'.*matched"):
        inspect.unwrap(gdpo)(rewards=BOTH, weights=ONES, convention="ours")  # pyright: ignore
