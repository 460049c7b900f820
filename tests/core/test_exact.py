"""Exact expected maxima over the weight simplex."""

import inspect
import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vpo_lightning.core.exact import (
    exact_expected_max,
    exact_set_reward,
    exact_win_shares,
    expected_max_of_two,
)
from vpo_lightning.core.scalarization import monte_carlo_standard_error, set_reward, win_shares
from vpo_lightning.core.weights import dirichlet

CONFLICT = torch.tensor(
    [
        [[1, 0.8, 0.2, 1], [1, 0.1, 0.9, 0.7], [0, 0, 0, 0]],
        [[1, 0.5, 0.5, 1]] * 3,
        [[1, 0.9, 0, 0.5], [1, 0.9, 0, 0.5], [0, 0, 0, 0]],
        [[0, 0, 0, 0]] * 3,
    ],
    dtype=torch.float64,
)


def close(found: torch.Tensor, expected: object, tolerance: float = 1e-12) -> None:
    torch.testing.assert_close(
        found, torch.as_tensor(expected, dtype=torch.float64), rtol=tolerance, atol=tolerance
    )


def random_sets(seed: int, *shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(*shape, dtype=torch.float64, generator=generator)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
def test_unit_vectors_give_harmonic_numbers(count: int) -> None:
    harmonic = sum(Fraction(1, i) for i in range(1, count + 1)) / count
    close(exact_expected_max(torch.eye(count)), float(harmonic))
    close(exact_win_shares(torch.eye(count)), [1 / count] * count)


def test_the_conflict_sets_have_their_exact_values() -> None:
    close(exact_expected_max(CONFLICT), [0.81125, 0.75, 0.6, 0])
    close(exact_win_shares(CONFLICT)[0], [0.65, 0.35, 0])
    close(exact_win_shares(CONFLICT)[1], [1 / 3] * 3)


def test_the_two_objective_group_has_its_exact_values() -> None:
    group = torch.tensor([[[1, 0], [0, 1]], [[0.5, 0.5]] * 2, [[1, 0]] * 2, [[0.6, 0.6], [0, 0]]])
    close(exact_expected_max(group), [0.75, 0.5, 0.5, 0.6], 1e-7)


def test_two_objectives_equal_the_upper_envelope_of_lines() -> None:
    rewards = random_sets(0, 12, 2)
    # max over lines r1 + t (r0 - r1), integrated piece by piece between all their crossings.
    slopes, starts = rewards[:, 0] - rewards[:, 1], rewards[:, 1]
    crossings = (starts[None] - starts[:, None]) / (slopes[:, None] - slopes[None])
    inside = [0.0, 1.0, *(float(t) for t in crossings.reshape(-1) if 0 < t < 1)]
    knots = torch.tensor(sorted(inside), dtype=torch.float64)
    heights = (starts + slopes * knots[:, None]).amax(1)
    close(exact_expected_max(rewards), torch.trapezoid(heights, knots))


def closed_form(first: list[Fraction], second: list[Fraction]) -> Fraction:
    """The formula in exact fractions."""
    count = len(first)
    gaps = [a - b for a, b in zip(first, second, strict=True)]
    total = sum(second, Fraction(0)) / count
    for i, gap in enumerate(gaps):
        if gap > 0:
            others = [gap - other for j, other in enumerate(gaps) if j != i]
            total += gap**count / math.prod(others) / count
    return total


@settings(max_examples=60, deadline=None)
@given(st.data(), st.integers(2, 5))
def test_two_answers_equal_the_closed_form_in_fractions(data: st.DataObject, count: int) -> None:
    gaps = data.draw(st.lists(st.integers(-100, 100), min_size=count, max_size=count, unique=True))
    base = data.draw(st.lists(st.integers(0, 100), min_size=count, max_size=count))
    second = [Fraction(number, 100) for number in base]
    first = [number + Fraction(gap, 100) for number, gap in zip(second, gaps, strict=True)]
    expected = float(closed_form(first, second))
    pair = torch.tensor([[float(x) for x in row] for row in (first, second)], dtype=torch.float64)
    close(exact_expected_max(pair), expected)
    close(expected_max_of_two(pair[0], pair[1]), expected)


def test_two_answers_of_many_objectives_have_the_closed_form() -> None:
    gaps = [Fraction(number, 10) for number in (-9, -4, 1, 2, 5, 7, 10)]
    second = [Fraction(1, 2)] * 7
    first = [number + gap for number, gap in zip(second, gaps, strict=True)]
    pair = torch.tensor([[float(x) for x in row] for row in (first, second)], dtype=torch.float64)
    close(expected_max_of_two(pair[0], pair[1]), float(closed_form(first, second)), 1e-10)


def test_equal_entries_do_not_break_the_two_answer_form() -> None:
    first, second = torch.tensor([1.0, 1.0, 0.0]), torch.tensor([0.5, 0.5, 0.5])
    # w1 + w2 - 1/2 with w1 + w2 ~ Beta(2, 1): 1/2 + integral over s > 1/2 of (s - 1/2) 2 s ds.
    close(expected_max_of_two(first, second), 0.5 + 2 * (7 / 24 - 3 / 16))
    close(expected_max_of_two(first, first), 2 / 3)
    close(expected_max_of_two(torch.tensor([0.3]), torch.tensor([0.4])), 0.4, 1e-7)


@pytest.mark.parametrize(("objectives", "answers"), [(2, 9), (3, 7), (4, 6), (5, 5)])
def test_exact_values_agree_with_many_draws(objectives: int, answers: int) -> None:
    rewards = random_sets(objectives, 3, answers, objectives)
    weights = dirichlet(objectives, torch.tensor(objectives), num_draws=40_000)
    error = monte_carlo_standard_error(rewards, weights)
    assert bool(
        ((set_reward(rewards, weights) - exact_expected_max(rewards)).abs() < 5 * error).all()
    )
    shares = win_shares(rewards, weights) - exact_win_shares(rewards)
    assert float(shares.abs().max()) < 5 * 0.5 / math.sqrt(40_000)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 4), st.integers(1, 6))
def test_shares_cover_the_simplex_even_on_a_coarse_grid(seed: int, k: int, m: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    # Half steps make many ties and zero-volume boundaries.
    rewards = torch.randint(0, 3, (4, m, k), generator=generator) / 2
    close(exact_win_shares(rewards).sum(-1), torch.ones(4))
    order = torch.randperm(m, generator=generator)
    close(exact_expected_max(rewards[:, order]), exact_expected_max(rewards))
    close(exact_win_shares(rewards[:, order]), exact_win_shares(rewards)[:, order])


def test_answers_that_differ_by_rounding_are_not_counted_twice() -> None:
    rewards = random_sets(1, 3, 4)
    noisy = torch.cat([rewards, rewards + 1e-16, rewards - 2e-16])
    close(exact_expected_max(noisy), exact_expected_max(rewards))
    close(exact_win_shares(noisy).sum(), 1.0)


def test_dominated_and_masked_answers_change_nothing() -> None:
    rewards = random_sets(2, 5, 4, 4)
    worse = torch.cat([rewards, rewards[:, :2] - 0.1], 1)
    close(exact_expected_max(worse), exact_expected_max(rewards))
    filled = torch.cat([rewards, torch.full((5, 1, 4), math.nan)], 1)
    mask = torch.tensor([True] * 4 + [False]).expand(5, 5)
    close(exact_expected_max(filled, mask), exact_expected_max(rewards))
    assert not bool(exact_win_shares(filled, mask)[:, 4].any())
    close(exact_expected_max(rewards, torch.zeros(5, 4, dtype=torch.bool)), [0] * 5)
    close(exact_expected_max(rewards[:, :0]), [0] * 5)


def test_sets_are_independent_of_their_batch() -> None:
    rewards = random_sets(3, 40, 8, 3)
    alone = torch.stack([exact_expected_max(one) for one in rewards])
    close(exact_expected_max(rewards), alone)
    close(exact_expected_max(rewards.reshape(5, 8, 8, 3)), alone.reshape(5, 8))


def test_the_exact_set_reward_fills_the_slot() -> None:
    rewards = random_sets(4, 3, 2, 3, 4)
    objective_mask = torch.tensor([[True] * 4, [True, True, False, False], [True] * 4])
    mask = torch.tensor([[[True, True, True], [False] * 3]] * 3)
    weights = dirichlet(4, torch.arange(3))
    scores = exact_set_reward(rewards, weights, mask, objective_mask=objective_mask)
    close(scores[0, 0], exact_expected_max(rewards[0, 0]))
    close(scores[1, 0], exact_expected_max(rewards[1, 0, :, :2]))
    close(scores[:, 1], [0] * 3)


def test_too_many_objectives_and_bad_rewards_are_refused() -> None:
    with pytest.raises(ValueError, match=r"at most 5 objectives, got 6"):
        exact_expected_max(torch.eye(6))
    with pytest.raises(ValueError, match=r"prompt group 1, answer 0, objective 1 is nan"):
        exact_expected_max(torch.tensor([[[1.0, 0.0]], [[0.0, math.nan]]]))
    with pytest.raises(ValueError, match=r"K = 3 objectives, weights have K = 2"):
        inspect.unwrap(exact_set_reward)(torch.rand(1, 2, 2, 3), torch.rand(1, 4, 2))
