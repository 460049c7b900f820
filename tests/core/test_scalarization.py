"""Set rewards against hand values, brute-force loops and invariances."""

import inspect
import math
from collections.abc import Callable
from functools import partial
from itertools import permutations
from operator import sub

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vpo_lightning.core import groups
from vpo_lightning.core.advantages import group_normalized
from vpo_lightning.core.scalarization import (
    OverAnswers,
    chebyshev_set_reward,
    diversity_bonus,
    monte_carlo_standard_error,
    pool_credit,
    set_reward,
    win_shares,
)
from vpo_lightning.core.weights import dirichlet

SetReward = Callable[..., torch.Tensor]
SET_REWARDS = [set_reward, chebyshev_set_reward, pool_credit, diversity_bonus]
every_set_reward = pytest.mark.parametrize("score", SET_REWARDS)

# The group of section 1 of the formulas with its fixed weights.
GROUP = torch.tensor(
    [
        [[1, 0], [0, 1]],
        [[0.5, 0.5], [0.5, 0.5]],
        [[1, 0], [1, 0]],
        [[0.6, 0.6], [0, 0]],
    ],
    dtype=torch.float64,
)
FIXED = torch.tensor([[0.25, 0.75], [0.6, 0.4]], dtype=torch.float64)
# Sets A to D of four objectives.
CONFLICT = torch.tensor(
    [
        [[1, 0.8, 0.2, 1], [1, 0.1, 0.9, 0.7], [0, 0, 0, 0]],
        [[1, 0.5, 0.5, 1]] * 3,
        [[1, 0.9, 0, 0.5], [1, 0.9, 0, 0.5], [0, 0, 0, 0]],
        [[0, 0, 0, 0]] * 3,
    ],
    dtype=torch.float64,
)
MEAN4 = torch.full((1, 4), 0.25, dtype=torch.float64)


def close(found: torch.Tensor, expected: object, tolerance: float = 1e-12) -> None:
    torch.testing.assert_close(
        found, torch.as_tensor(expected, dtype=torch.float64), rtol=tolerance, atol=tolerance
    )


def batch(
    seed: int, shape: tuple[int, int, int, int, int]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Random rewards (B, G, M, K) with negative values, weights (B, N, K) and an answer mask."""
    size, rollouts, answers, objectives, draws = shape
    generator = torch.Generator().manual_seed(seed)
    rewards = torch.rand(size, rollouts, answers, objectives, generator=generator).double() - 0.3
    mask = torch.rand(size, rollouts, answers, generator=generator) < 0.7
    weights = dirichlet(objectives, torch.arange(size) + seed, num_draws=draws)
    return rewards, weights, mask


def answers_of(rewards: torch.Tensor, mask: torch.Tensor) -> list[list[float]]:
    return [row.tolist() for row, exists in zip(rewards, mask, strict=True) if exists]


def dot(weights: list[float], reward: list[float]) -> float:
    return sum(w * r for w, r in zip(weights, reward, strict=True))


def test_the_example_group_scores_as_computed_by_hand() -> None:
    close(set_reward(GROUP, FIXED), [0.675, 0.5, 0.425, 0.6])


def test_many_draws_approach_the_exact_values() -> None:
    weights = dirichlet(2, torch.tensor(5), num_draws=40_000)
    found = set_reward(GROUP, weights)
    error = monte_carlo_standard_error(GROUP, weights)
    exact = torch.tensor([0.75, 0.5, 0.5, 0.6], dtype=torch.float64)
    assert bool(((found - exact).abs() <= 5 * error + 1e-12).all())


def test_sum_and_maximum_over_answers_rank_the_conflict_sets_differently() -> None:
    close(set_reward(CONFLICT, MEAN4, over_answers="sum"), [1.425, 2.25, 1.2, 0])
    close(set_reward(CONFLICT, MEAN4, over_answers="max"), [0.75, 0.75, 0.6, 0])
    close(set_reward(CONFLICT, MEAN4, over_answers="mean"), [0.475, 0.75, 0.4, 0])


@pytest.mark.parametrize("over_answers", ["max", "sum", "mean"])
@pytest.mark.parametrize("shape", [(3, 4, 3, 4, 9), (1, 1, 1, 1, 1), (2, 3, 5, 2, 1)])
def test_set_reward_equals_a_loop(
    over_answers: OverAnswers, shape: tuple[int, int, int, int, int]
) -> None:
    rewards, weights, mask = batch(1, shape)
    expected = torch.zeros(shape[:2], dtype=torch.float64)
    for b in range(shape[0]):
        for g in range(shape[1]):
            answers = answers_of(rewards[b, g], mask[b, g])
            for draw in weights[b].tolist():
                values = [dot(draw, answer) for answer in answers]
                if values:
                    total = {"max": max(values), "sum": sum(values)}
                    total["mean"] = total["sum"] / len(values)
                    expected[b, g] += total[over_answers] / shape[4]
    close(set_reward(rewards, weights, mask, over_answers), expected)


def test_chebyshev_equals_a_loop() -> None:
    rewards, weights, mask = batch(2, (3, 4, 3, 4, 9))
    expected = torch.zeros(3, 4, dtype=torch.float64)
    for b in range(3):
        for g in range(4):
            answers = answers_of(rewards[b, g], mask[b, g])
            for draw in weights[b].tolist():
                values = [
                    min(w * r for w, r in zip(draw, answer, strict=True)) for answer in answers
                ]
                expected[b, g] += max(values, default=0.0) / 9
    close(chebyshev_set_reward(rewards, weights, mask), expected)


def test_chebyshev_prefers_the_balanced_answer() -> None:
    rewards = torch.tensor([[[1.0, 0.0], [0.0, 1.0]], [[0.4, 0.4], [0.0, 0.0]]])
    weights = torch.tensor([[0.5, 0.5], [0.25, 0.75]])
    close(chebyshev_set_reward(rewards, weights), [0.0, (0.2 + 0.1) / 2], 1e-7)


def test_pool_credit_equals_a_loop() -> None:
    rewards, weights, mask = batch(3, (3, 4, 3, 4, 9))
    expected = torch.zeros(3, 4, dtype=torch.float64)
    for b in range(3):
        for draw in weights[b].tolist():
            best = [
                max((dot(draw, r) for r in answers_of(rewards[b, g], mask[b, g])), default=-1e9)
                for g in range(4)
            ]
            expected[b, best.index(max(best))] += max(best) / 9
    close(pool_credit(rewards, weights, mask), expected)


def test_pool_credit_adds_up_to_the_set_reward_of_the_pool() -> None:
    rewards, weights, mask = batch(4, (5, 4, 3, 3, 20))
    pool = set_reward(rewards.flatten(1, 2)[:, None], weights, mask.flatten(1, 2)[:, None])
    close(pool_credit(rewards, weights, mask).sum(-1), pool[:, 0])


def test_tied_rollouts_share_the_pool_credit() -> None:
    rewards = torch.tensor([[[1.0, 0.0], [1.0, 0.0]], [[1.0, 0.0], [0.0, 0.0]], [[0.0, 1.0]] * 2])
    weights = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    close(pool_credit(rewards, weights), [0.25, 0.25, 0.5])


@pytest.mark.parametrize("size", [2, 3, 5, 8])
@pytest.mark.parametrize("width", [1, 2, 4, 7])
def test_equal_answers_tie_although_their_products_are_rounded_differently(
    size: int, width: int
) -> None:
    rewards = torch.full((3, size, 3, width), 0.7, dtype=torch.float64)
    weights = dirichlet(width, torch.arange(3), num_draws=50)
    credit = pool_credit(rewards, weights)
    assert torch.equal(credit, credit[:, :1].expand_as(credit))
    assert not bool(group_normalized(credit).any())
    close(win_shares(rewards, weights), torch.full((3, size, 3), 1 / 3, dtype=torch.float64))


def test_diversity_bonus_is_the_example_of_the_formulas() -> None:
    answers = torch.tensor([[1, 0], [1, 0], [0, 1], [0.5, 0.5]], dtype=torch.float64)[:, None]
    weights = torch.tensor([[0.5, 0.5]], dtype=torch.float64)
    scores = diversity_bonus(answers, weights, bonus=0.5)
    close((scores - 0.5) / 0.5, [1, 1, 5 / 3, 1])
    close(group_normalized(scores), [-0.577346, -0.577346, 1.732039, -0.577346], 1e-6)


def test_an_answer_below_a_floor_earns_no_diversity_bonus() -> None:
    answers = torch.tensor([[1, 0], [1, 0], [0, 1], [0.5, 0.5]], dtype=torch.float64)[:, None]
    weights = torch.tensor([[0.5, 0.5]], dtype=torch.float64)
    close(diversity_bonus(answers, weights, floors=[0.0, 0.1]) - 0.5, [0, 0, 5 / 6, 0.5])
    close(diversity_bonus(answers, weights, floors=0.5) - 0.5, [0, 0, 0, 0.5])
    with pytest.raises(ValueError, match=r"3 floors were given for 2 objectives"):
        diversity_bonus(answers, weights, floors=[0.0, 0.0, 0.0])


def test_diversity_bonus_with_several_answers_equals_a_loop() -> None:
    rewards, weights, mask = batch(5, (2, 3, 2, 3, 4))
    expected = torch.zeros(2, 3, dtype=torch.float64)
    for b in range(2):
        mean = weights[b].mean(0).tolist()
        pool = [(g, r) for g in range(3) for r in answers_of(rewards[b, g], mask[b, g])]
        for g in range(3):
            own: list[float] = []
            for _, answer in (pair for pair in pool if pair[0] == g):
                distances = [sum(map(abs, map(sub, answer, other))) for _, other in pool]
                own.append(dot(mean, answer) + 0.5 * sum(distances) / max(len(pool) - 1, 1))
            expected[b, g] = sum(own) / len(own) if own else 0.0
    close(diversity_bonus(rewards, weights, mask), expected)


def test_win_shares_are_fractions_of_draws() -> None:
    weights = dirichlet(4, torch.tensor(3), num_draws=20_000)
    shares = win_shares(CONFLICT, weights)
    # Exact shares .65 and .35; five standard errors of a proportion.
    assert abs(float(shares[0, 0]) - 0.65) < 5 * math.sqrt(0.65 * 0.35 / 20_000)
    close(shares[0].sum(), 1.0)
    close(shares[1], [1 / 3] * 3)
    close(shares[2], [0.5, 0.5, 0])
    nobody = torch.tensor([[True, True, True]] * 3 + [[False] * 3])
    close(win_shares(CONFLICT, weights, nobody)[3], [0, 0, 0])


def test_the_standard_error_is_that_of_the_mean() -> None:
    rewards, weights, mask = batch(6, (3, 4, 3, 4, 50))
    best = torch.einsum("bgmk,bnk->bgmn", rewards, weights)
    best = best.masked_fill(~mask[..., None], -torch.inf).amax(2)
    best = best.masked_fill(~mask.any(-1)[..., None], 0.0)
    close(monte_carlo_standard_error(rewards, weights, mask), best.std(-1) / math.sqrt(50))
    with pytest.raises(ValueError, match="at least 2 draws"):
        monte_carlo_standard_error(rewards, weights[:, :1], mask)


def test_the_standard_error_predicts_the_spread_over_seeds() -> None:
    weights = dirichlet(4, torch.arange(2000), num_draws=100)
    groups_of = CONFLICT.expand(2000, -1, -1, -1)
    scores = set_reward(groups_of, weights)
    predicted = monte_carlo_standard_error(groups_of, weights).mean(0)
    observed = scores.std(0)
    # 2000 repetitions give a standard deviation within 5 / sqrt(4000) of itself.
    torch.testing.assert_close(observed[:3], predicted[:3], rtol=0.08, atol=0)
    assert bool(((observed[:3] > 0.009) & (observed[:3] < 0.018)).all())
    # Shared draws make the difference of A and B more precise than either score.
    assert abs(float((scores[:, 0] - scores[:, 1]).std()) - 0.0076) < 0.0006


@every_set_reward
@given(seed=st.integers(0, 10_000))
@settings(max_examples=15, deadline=None)
def test_the_order_of_answers_does_not_matter(score: SetReward, seed: int) -> None:
    rewards, weights, mask = batch(seed, (2, 3, 4, 3, 5))
    order = torch.randperm(4, generator=torch.Generator().manual_seed(seed))
    close(score(rewards[:, :, order], weights, mask[:, :, order]), score(rewards, weights, mask))


@every_set_reward
@given(seed=st.integers(0, 10_000))
@settings(max_examples=15, deadline=None)
def test_the_order_of_draws_and_of_objectives_does_not_matter(score: SetReward, seed: int) -> None:
    rewards, weights, mask = batch(seed, (2, 3, 4, 3, 5))
    generator = torch.Generator().manual_seed(seed)
    draws, objectives = (
        torch.randperm(5, generator=generator),
        torch.randperm(3, generator=generator),
    )
    expected = score(rewards, weights, mask)
    close(score(rewards, weights[:, draws], mask), expected)
    close(score(rewards[..., objectives], weights[..., objectives], mask), expected)


@every_set_reward
@given(seed=st.integers(0, 10_000))
@settings(max_examples=15, deadline=None)
def test_permuting_rollouts_permutes_the_scores(score: SetReward, seed: int) -> None:
    rewards, weights, mask = batch(seed, (2, 4, 3, 3, 5))
    order = torch.randperm(4, generator=torch.Generator().manual_seed(seed))
    close(
        score(rewards[:, order], weights, mask[:, order]), score(rewards, weights, mask)[:, order]
    )


@given(seed=st.integers(0, 10_000))
@settings(max_examples=15, deadline=None)
def test_dominated_answers_change_nothing_under_the_maximum(seed: int) -> None:
    rewards, weights, _ = batch(seed, (2, 3, 3, 4, 6))
    worse = rewards[:, :, :1] - torch.rand(
        2, 3, 1, 4, generator=torch.Generator().manual_seed(seed)
    )
    close(set_reward(torch.cat([rewards, worse], 2), weights), set_reward(rewards, weights))
    positive, zeros = rewards.abs(), torch.zeros(2, 3, 2, 4, dtype=torch.float64)
    for score in (set_reward, chebyshev_set_reward):
        close(score(torch.cat([positive, zeros], 2), weights), score(positive, weights))


@every_set_reward
def test_masked_answers_do_not_matter_whatever_they_hold(score: SetReward) -> None:
    rewards, weights, mask = batch(7, (2, 3, 3, 4, 6))
    expected = score(rewards, weights, mask)
    for filling in (math.nan, math.inf, -1e9, 5.0):
        filled = torch.where(mask[..., None], rewards, filling)
        assert torch.equal(score(filled, weights, mask), expected)


@pytest.mark.parametrize(
    "score", [*SET_REWARDS, *(partial(set_reward, over_answers=name) for name in ("sum", "mean"))]
)
def test_a_rollout_without_answers_scores_0(score: SetReward) -> None:
    rewards, weights, mask = batch(8, (2, 3, 3, 4, 6))
    mask[0, 1] = False
    mask[1] = False
    scores = score(rewards, weights, mask)
    assert float(scores[0, 1]) == 0
    assert not bool(scores[1].any())
    assert bool(torch.isfinite(scores).all())
    nothing = score(rewards[:, :, :0], weights, mask[:, :, :0])
    assert torch.equal(nothing, torch.zeros(2, 3, dtype=torch.float64))


@every_set_reward
def test_objectives_beyond_a_prompts_own_do_not_matter(score: SetReward) -> None:
    rewards, weights, mask = batch(9, (1, 3, 3, 2, 6))
    padded = torch.cat([rewards, torch.full((1, 3, 3, 2), math.nan)], -1)
    weights_padded = torch.cat([weights, torch.zeros(1, 6, 2)], -1)
    own = torch.tensor([[True, True, False, False]])
    close(score(padded, weights_padded, mask, objective_mask=own), score(rewards, weights, mask))


@every_set_reward
def test_group_axes_may_be_any_number(score: SetReward) -> None:
    rewards, weights, mask = batch(10, (6, 3, 3, 2, 4))
    expected = score(rewards, weights, mask)
    assert torch.equal(score(rewards[2], weights[2], mask[2]), expected[2])
    reshaped = score(
        rewards.reshape(2, 3, 3, 3, 2), weights.reshape(2, 3, 4, 2), mask.reshape(2, 3, 3, 3)
    )
    assert torch.equal(reshaped, expected.reshape(2, 3, 3))
    shared = score(rewards, weights[0], mask)
    assert torch.equal(shared[0], expected[0])


@every_set_reward
def test_blocks_give_the_scores_of_one_piece(
    score: SetReward, monkeypatch: pytest.MonkeyPatch
) -> None:
    rewards, weights, mask = batch(11, (7, 3, 3, 4, 11))
    whole = score(rewards, weights, mask)
    for size in (1, 20, 50, 200):
        monkeypatch.setattr(groups, "_BLOCK_ELEMENTS", size)
        close(score(rewards, weights, mask), whole)


def test_other_measures_do_not_depend_on_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    rewards, weights, mask = batch(12, (7, 3, 3, 4, 11))
    whole = [f(rewards, weights, mask) for f in (win_shares, monte_carlo_standard_error)]
    monkeypatch.setattr(groups, "_BLOCK_ELEMENTS", 20)
    close(win_shares(rewards, weights, mask), whole[0])
    close(monte_carlo_standard_error(rewards, weights, mask), whole[1])


@every_set_reward
def test_scores_are_float64_for_float32_rewards(score: SetReward) -> None:
    rewards, weights, mask = batch(13, (2, 3, 3, 4, 6))
    scores = score(rewards.float(), weights.float(), mask)
    assert scores.dtype == torch.float64
    close(scores, score(rewards.float().double(), weights.float().double(), mask))


@every_set_reward
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_values_that_are_not_finite_are_refused_by_name(score: SetReward, value: float) -> None:
    rewards, weights, _ = batch(14, (3, 2, 2, 2, 4))
    bad = rewards.clone()
    bad[1, 0, 1, 0] = value
    with pytest.raises(
        ValueError, match=r"reward of prompt group 1, rollout 0, answer 1, objective 0"
    ):
        score(bad, weights)
    with pytest.raises(ValueError, match=r"reward of prompt 'b' \(group 1\)"):
        score(bad, weights, prompt_ids=["a", "b", "c"])
    weights = weights.clone()
    weights[2, 3, 1] = value
    with pytest.raises(ValueError, match=r"weight of prompt group 2, draw 3, objective 1"):
        score(rewards, weights)


@every_set_reward
def test_other_numbers_of_objectives_are_refused(score: SetReward) -> None:
    with pytest.raises(ValueError, match=r"rewards have K = 3 objectives, weights have K = 2"):
        # Past the shape checks that are switched on in tests.
        inspect.unwrap(score)(torch.zeros(2, 2, 2, 3), torch.ones(2, 4, 2))
    with pytest.raises(ValueError, match=r"no draw \(N = 0\)"):
        score(torch.zeros(2, 2, 2, 3), torch.ones(2, 0, 3))


def test_an_unknown_set_statistic_is_refused() -> None:
    with pytest.raises(ValueError, match=r"over_answers is 'median'"):
        inspect.unwrap(set_reward)(GROUP, FIXED, over_answers="median")


def test_large_finite_rewards_are_not_taken_for_infinite() -> None:
    huge = torch.full((1, 2, 2, 2), 1.6e308, dtype=torch.float64)
    assert bool(torch.isfinite(set_reward(huge, FIXED / 2)).all())


def test_all_orders_of_a_small_set_score_the_same() -> None:
    values = {
        round(float(set_reward(CONFLICT[:1, list(order)], MEAN4)[0]), 12)
        for order in permutations(range(3))
    }
    assert len(values) == 1
