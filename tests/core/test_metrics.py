"""Pool metrics against hand values and enumeration of subsets."""

import math
from itertools import combinations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vpo_lightning.core import groups
from vpo_lightning.core.metrics import (
    best_at_k,
    expected_max_at_k,
    expected_max_at_k_chains,
    mean_weighted,
    pairwise_diversity,
    pareto_count,
    pareto_mask,
    pass_at_k,
)
from vpo_lightning.core.scalarization import set_reward
from vpo_lightning.core.weights import dirichlet, sobol


def close(found: torch.Tensor, expected: object, tolerance: float = 1e-12) -> None:
    torch.testing.assert_close(
        found, torch.as_tensor(expected, dtype=torch.float64), rtol=tolerance, atol=tolerance
    )


def random(seed: int, *shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(*shape, dtype=torch.float64, generator=generator)


def test_best_at_k_has_its_exact_values() -> None:
    scores = torch.tensor([1, 0, 0.5, 0.25])
    close(best_at_k(scores, [1, 2, 3, 4]), [0.4375, 0.70833333, 0.875, 1], 1e-8)
    close(best_at_k(scores, 2), 0.70833333, 1e-8)


def test_one_correct_of_four_is_certain_in_four() -> None:
    # With replacement it would be 1 - (3 / 4) ** 4 = .684.
    close(best_at_k(torch.tensor([0.0, 1.0, 0.0, 0.0]), 4), 1.0)
    assert pass_at_k(4, 1, 4) == 1.0


@settings(max_examples=40)
@given(st.lists(st.floats(-2, 2), min_size=1, max_size=7), st.integers(1, 7))
def test_best_at_k_is_the_mean_over_all_subsets(scores: list[float], k: int) -> None:
    k = min(k, len(scores))
    subsets = list(combinations(scores, k))
    expected = sum(max(subset) for subset in subsets) / len(subsets)
    close(best_at_k(torch.tensor(scores, dtype=torch.float64), k), expected)


def test_best_at_k_of_many_pools_and_samples() -> None:
    scores = random(0, 3, 2, 400)
    found = best_at_k(scores, [1, 30, 400])
    assert found.shape == (3, 2, 3)
    close(found[..., 0], scores.mean(-1))
    close(found[..., 2], scores.amax(-1))
    assert bool((found[..., 1:] >= found[..., :-1]).all())
    # Uniform scores: the best of 30 is 30 / 31 on average, with standard deviation about .03.
    assert abs(float(found[..., 1].mean()) - 30 / 31) < 0.01


def test_pass_at_k_has_its_exact_values() -> None:
    found = [pass_at_k(10, 3, k) for k in (1, 2, 5, 8)]
    assert found == pytest.approx([0.3, 0.53333333, 0.91666667, 1], abs=1e-8)
    for k in range(1, 11):
        binary = torch.tensor([1.0] * 3 + [0.0] * 7)
        assert pass_at_k(10, 3, k) == pytest.approx(float(best_at_k(binary, k)))
    assert [pass_at_k(0, 0, 5), pass_at_k(3, 2, 0), pass_at_k(3, 0, 9)] == [0, 0, 0]
    assert pass_at_k(2000, 1, 1000) == pytest.approx(0.5)


@pytest.mark.parametrize("arguments", [(3, 4, 1), (-1, 0, 1), (3, -1, 1), (3, 1, -1)])
def test_impossible_counts_are_refused(arguments: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="expected 0 <= c <= n"):
        pass_at_k(*arguments)


@pytest.mark.parametrize("k", [0, 5])
def test_more_samples_than_there_are_are_refused(k: int) -> None:
    with pytest.raises(ValueError, match=rf"best@{k} of 4 samples.*evaluation\.ks"):
        best_at_k(torch.rand(4), [1, k])
    with pytest.raises(ValueError, match=rf"best@{k} of 4 samples"):
        expected_max_at_k(torch.rand(4, 2), torch.tensor([[0.5, 0.5]]), k)


def test_expected_maximum_is_best_at_k_under_each_weight() -> None:
    rewards, weights = random(1, 2, 7, 3), dirichlet(3, torch.tensor(0), num_draws=11)
    ks = [1, 3, 7]
    found = expected_max_at_k(rewards, weights, ks)
    for pool in range(2):
        under_each = [best_at_k(rewards[pool] @ weight, ks) for weight in weights]
        close(found[pool], torch.stack(under_each).mean(0))
    close(expected_max_at_k(rewards, weights, 3), found[:, 1])
    close(found[:, 2], set_reward(rewards[:, None], weights)[:, 0])
    close(found[:, 0], mean_weighted(rewards, weights))


def test_whole_chains_are_drawn_where_k_counts_model_calls() -> None:
    rewards, weights = random(2, 4, 3, 2), sobol(2, torch.tensor(1), num_draws=8)
    mask = torch.tensor([[True, True, True], [True, False, True], [False] * 3, [True, True, False]])
    for k in (1, 2, 4):
        totals: list[float] = []
        for weight in weights:
            best = [
                max((float(r @ weight) for r in chain[exists]), default=0.0)
                for chain, exists in zip(rewards, mask, strict=True)
            ]
            totals += [max(subset) for subset in combinations(best, k)]
        expected = sum(totals) / len(totals)
        close(expected_max_at_k_chains(rewards, weights, k, mask), expected)


def test_large_pools_are_worked_through_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    rewards, weights = random(3, 3, 9, 4), dirichlet(4, torch.tensor(0), num_draws=17)
    whole = expected_max_at_k(rewards, weights, [2, 5])
    monkeypatch.setattr(groups, "_BLOCK_ELEMENTS", 30)
    close(expected_max_at_k(rewards, weights, [2, 5]), whole)


def test_rewards_that_are_not_finite_are_refused() -> None:
    rewards = random(4, 2, 3, 2)
    rewards[1, 2, 0] = math.nan
    with pytest.raises(ValueError, match=r"prompt group 1, rollout 2"):
        expected_max_at_k(rewards, torch.tensor([[0.5, 0.5]]), 1)


def test_diversity_is_the_mean_distance_of_pairs() -> None:
    rewards = random(5, 2, 6, 3)
    for pool in range(2):
        pairs = [float((a - b).abs().sum()) for a, b in combinations(rewards[pool], 2)]
        close(pairwise_diversity(rewards)[pool], sum(pairs) / len(pairs))
    close(pairwise_diversity(torch.tensor([[1.0, 0.0], [0.0, 1.0]])), 2.0)
    for size in (0, 1):
        close(pairwise_diversity(torch.rand(size, 3)), 0.0)


def test_the_pareto_front_is_that_of_a_loop() -> None:
    rewards = (random(6, 3, 12, 3) * 4).round() / 4
    for pool, front in zip(rewards, pareto_mask(rewards), strict=True):
        for row, on_front in zip(pool, front, strict=True):
            dominated = any(bool((o >= row).all() and (o > row).any()) for o in pool)
            assert bool(on_front) != dominated
    close(pareto_count(rewards), pareto_mask(rewards).sum(-1).double())


def test_duplicates_and_rounding_do_not_leave_the_front() -> None:
    rewards = torch.tensor([[1, 0.5], [1, 0.5], [1 - 1e-14, 0.5], [1, 0.4]], dtype=torch.float64)
    assert pareto_mask(rewards).tolist() == [True, True, True, False]
    assert float(pareto_count(torch.zeros(3, 2))) == 3


def test_an_empty_pool_is_worth_nothing() -> None:
    close(mean_weighted(torch.zeros(0, 2), torch.tensor([[0.5, 0.5]])), 0.0)
    assert pareto_mask(torch.zeros(0, 2)).shape == (0,)
