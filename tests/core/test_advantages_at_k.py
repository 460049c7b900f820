"""Best-of-k estimators against sums over all subsets."""

from itertools import combinations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vpo_lightning.core.advantages_at_k import (
    max_at_k,
    max_at_k_marginals,
    pass_at_k_argmax,
    pkpo,
)
from vpo_lightning.core.metrics import best_at_k

R = torch.tensor([1, 0, 0.5, 0.25], dtype=torch.float64)


def close(found: torch.Tensor, expected: object, tolerance: float = 1e-6) -> None:
    torch.testing.assert_close(
        found, torch.as_tensor(expected, dtype=torch.float64), rtol=tolerance, atol=tolerance
    )


@pytest.mark.parametrize(
    ("k", "expected"),
    [
        (1, [0.25, 0, 0.125, 0.0625]),
        (2, [0.5, 0.291667, 0.333333, 0.291667]),
        (3, [0.75, 0.625, 0.625, 0.625]),
        (4, [1, 1, 1, 1]),
    ],
)
def test_marginals_have_the_values_of_the_table(k: int, expected: list[float]) -> None:
    close(max_at_k_marginals(R, k), expected)
    close(max_at_k_marginals(R, k).sum(), k * float(best_at_k(R, k)), 1e-12)


def test_tied_scores_have_exactly_equal_marginals() -> None:
    close(max_at_k_marginals(torch.tensor([1.0, 1, 0]), 2), [2 / 3] * 3, 1e-12)
    scores = torch.tensor([0.1, 0.7, 0.1, 0.3, 0.7, 0.7, 0.1, 0.3], dtype=torch.float64)
    for k in range(1, 9):
        marginals = max_at_k_marginals(scores, k)
        for value in scores.unique():
            assert marginals[scores == value].unique().numel() == 1


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.sampled_from([0.0, 0.25, 0.3, 0.5, 1.0]), min_size=2, max_size=7),
    st.integers(1, 7),
)
def test_marginals_are_sums_over_subsets(scores: list[float], k: int) -> None:
    k = min(k, len(scores))
    subsets = list(combinations(range(len(scores)), k))
    expected = [
        sum(max(scores[j] for j in subset) for subset in subsets if i in subset) / len(subsets)
        for i in range(len(scores))
    ]
    close(max_at_k_marginals(torch.tensor(scores, dtype=torch.float64), k), expected, 1e-12)


def test_the_published_normalised_form_has_the_values_of_the_table() -> None:
    close(max_at_k(R, k=2), [1.470279, -0.630120, -0.210040, -0.630120])
    close(max_at_k(R), max_at_k(R, k=2))
    centred = max_at_k_marginals(R, 2) - max_at_k_marginals(R, 2).mean()
    close(max_at_k(R, k=2, normalize=False), centred, 1e-12)


def test_the_default_k_is_half_the_group_and_at_least_2() -> None:
    for size, k in ((3, 2), (5, 2), (8, 4), (9, 4)):
        scores = torch.rand(size, dtype=torch.float64)
        close(max_at_k(scores), max_at_k(scores, k=k), 1e-12)


@pytest.mark.parametrize(("size", "k"), [(2, None), (2, 2), (4, 4), (4, 5), (4, 0)])
def test_a_k_of_the_whole_group_is_refused(size: int, k: int | None) -> None:
    with pytest.raises(ValueError, match=r"expected 1 <= k < rollouts per prompt.*advantage\.k"):
        max_at_k(torch.rand(size), k=k)


def test_only_the_best_rollout_is_credited_with_pass_at_k() -> None:
    close(pass_at_k_argmax(R), [1.171077, 0, 0, 0])
    close(pass_at_k_argmax(torch.tensor([1.0, 1.0, 0.0])), [0, 0, 0])


@pytest.mark.parametrize(
    ("k", "expected"), [(2, [0.75, 0, 0.25, 0.083333]), (3, [0.583333, 0, 0.083333, 0])]
)
def test_leave_one_out_marginals_have_the_values_of_the_table(
    k: int, expected: list[float]
) -> None:
    close(pkpo(R, k=k), expected)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(-1, 1, width=32), min_size=2, max_size=7), st.integers(2, 7))
def test_leave_one_out_marginals_are_means_over_subsets(scores: list[float], k: int) -> None:
    k = min(k, len(scores))
    expected: list[float] = []
    for i, score in enumerate(scores):
        others = scores[:i] + scores[i + 1 :]
        gains = [max(0.0, score - max(subset)) for subset in combinations(others, k - 1)]
        expected.append(sum(gains) / len(gains))
    found = pkpo(torch.tensor(scores, dtype=torch.float64), k=k)
    close(found, expected, 1e-12)
    assert bool((found >= 0).all())


@pytest.mark.parametrize(
    ("k", "message"), [(1, "k is 1; set `advantage.k` to 2 or more"), (5, "2 <= k <= rollouts")]
)
def test_a_k_without_others_is_refused(k: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        pkpo(R, k=k)


@pytest.mark.parametrize("k", [0, 5])
def test_marginals_of_no_subset_are_refused(k: int) -> None:
    with pytest.raises(ValueError, match="1 <= k <= rollouts per prompt"):
        max_at_k_marginals(R, k)


def test_large_groups_keep_their_precision() -> None:
    scores = torch.rand(512, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for k in (1, 2, 16, 256, 511):
        total = float(max_at_k_marginals(scores, k).sum())
        assert abs(total / (k * float(best_at_k(scores, k))) - 1) < 1e-10
