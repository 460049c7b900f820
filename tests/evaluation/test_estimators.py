"""Estimators over subsets of a pool equal the mean over all subsets, one by one."""

from __future__ import annotations

from collections import Counter
from itertools import combinations
from statistics import fmean

import pytest
import torch
from torch import Tensor

from vpo_lightning.core.weights import sobol
from vpo_lightning.evaluation import estimators
from vpo_lightning.evaluation.estimators import (
    Scalarizations,
    figures_by_answers,
    figures_by_calls,
    figures_by_tokens,
    without_each_call,
)
from vpo_lightning.evaluation.hypervolume import hypervolume, hypervolume_at_k
from vpo_lightning.evaluation.texts import distinct_fraction, edit_distance, edit_diversity
from vpo_lightning.evaluation.votes import majority_at_k

SHAPES = [(12, 1, 3), (4, 3, 4), (6, 2, 2), (1, 1, 2)]


def pool(calls: int, answers: int, objectives: int) -> tuple[Tensor, Tensor, Scalarizations]:
    rng = torch.Generator().manual_seed(calls)
    rewards = torch.randint(5, (calls, answers, objectives), generator=rng).double() / 4
    grid = sobol(objectives, torch.tensor(0), num_draws=16)
    named = {"": torch.full((objectives,), 1 / objectives, dtype=torch.float64)}
    named["first"] = torch.eye(objectives, dtype=torch.float64)[0]
    return rewards, (rewards >= 0.5).all(-1), Scalarizations(grid, named)


def worth(subset: Tensor, solved: Tensor, scalarizations: Scalarizations) -> dict[str, float]:
    """What a set of answers (n, K) is worth, by the plain definitions."""
    return {
        "best@": max(float(r @ scalarizations.named[""]) for r in subset),
        "best@/first": max(float(r[0]) for r in subset),
        "pass@": float(any(solved.tolist())),
        "expected_max@": fmean(max(float(r @ w) for r in subset) for w in scalarizations.grid),
    }


@pytest.mark.parametrize("shape", SHAPES)
def test_figures_by_answers_are_means_over_all_subsets(shape: tuple[int, int, int]) -> None:
    rewards, solved, scalarizations = pool(*shape)
    flat, flags = rewards.flatten(0, 1), solved.flatten()
    ks = [k for k in (1, 2, 5, 11, 12) if k <= len(flat)]
    found = figures_by_answers(rewards, solved, scalarizations, [*ks, 13])
    for k in ks:
        subsets = [list(s) for s in combinations(range(len(flat)), k)]
        values = [worth(flat[s], flags[s], scalarizations) for s in subsets]
        for name in values[0]:
            key = name.replace("@", f"@{k}")
            assert float(found[key]) == pytest.approx(fmean(v[name] for v in values), abs=1e-12)
    assert not any("@13" in key for key in found)


@pytest.mark.parametrize("shape", SHAPES)
def test_figures_by_calls_draw_whole_completions(shape: tuple[int, int, int]) -> None:
    rewards, solved, scalarizations = pool(*shape)
    ks = [k for k in (1, 2, 4, 6) if k <= len(rewards)]
    found = figures_by_calls(rewards, solved, scalarizations, ks)
    for k in ks:
        subsets = [list(s) for s in combinations(range(len(rewards)), k)]
        values = [
            worth(rewards[s].flatten(0, 1), solved[s].flatten(), scalarizations) for s in subsets
        ]
        for name in values[0]:
            key = name.replace("@", f"@{k}_calls")
            assert float(found[key]) == pytest.approx(fmean(v[name] for v in values), abs=1e-12)


def test_a_token_budget_takes_the_completions_that_fit() -> None:
    rewards = torch.tensor([[[0.2, 0.2]], [[1.0, 1.0]]], dtype=torch.float64)
    _, _, scalarizations = pool(1, 1, 2)
    solved = (rewards >= 1).all(-1)
    found = figures_by_tokens(rewards, solved, [10, 30], scalarizations, [5, 10, 39, 40, 41])
    assert found["best@5_tokens"] == 0
    assert found["best@40_tokens"] == pytest.approx(1)
    assert "best@41_tokens" not in found
    # The short one fits if it comes first, the long one if it does: about half of the orders each.
    assert found["best@39_tokens"] == pytest.approx(0.6, abs=0.25)
    assert found["pass@39_tokens"] == pytest.approx(0.5, abs=0.3)
    assert found["best@10_tokens"] == pytest.approx(0.2 * (1 - found["pass@39_tokens"]))


def test_leaving_out_a_completion_is_each_time_another_one() -> None:
    values = torch.arange(6).reshape(3, 2)
    assert without_each_call(values, 0).tolist() == [
        [[2, 3], [4, 5]],
        [[0, 1], [4, 5]],
        [[0, 1], [2, 3]],
    ]


@pytest.mark.parametrize(("n", "objectives"), [(12, 3), (7, 1), (9, 4)])
@pytest.mark.parametrize("cells", [None, 0], ids=["exact", "sampled"])
def test_hypervolume_at_k_is_the_mean_over_all_subsets(
    n: int, objectives: int, cells: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = torch.Generator().manual_seed(n)
    rewards = torch.randint(6, (n, objectives), generator=rng).double() / 5
    if cells is not None:
        monkeypatch.setattr("vpo_lightning.evaluation.hypervolume.MAX_CELLS", cells)
    ks = [1, 3, n]
    found = hypervolume_at_k(rewards, ks)
    for k in ks:
        exact = fmean(hypervolume(rewards[list(s)]) for s in combinations(range(n), k))
        assert found[k] == pytest.approx(exact, abs=1e-12 if cells is None or k == n else 0.1)


def test_hypervolume_by_hand() -> None:
    assert hypervolume(torch.tensor([[1.0, 0.5], [0.5, 1.0]])) == pytest.approx(0.75)
    assert hypervolume_at_k(torch.tensor([[1.0, 0.5], [0.5, 1.0]]), [1, 2]) == {
        1: pytest.approx(0.5),
        2: pytest.approx(0.75),
    }
    assert hypervolume_at_k(torch.rand(30, 9), [1]) == {}  # too many objectives to be exact


@pytest.mark.parametrize(
    "votes",
    ["aabbc", "abcdefg", "aaaabbbcc-", "--a-b", "aaabbbccc---", "-"],
)
def test_majority_at_k_is_the_mean_over_all_subsets(votes: str) -> None:
    given = [None if vote == "-" else vote for vote in votes]
    scores = [(ord(vote) % 7 + i % 3) / 10 for i, vote in enumerate(votes)]
    for k in range(1, len(votes) + 1):
        values: list[float] = []
        for subset in combinations(range(len(votes)), k):
            counts = Counter(given[i] for i in subset if given[i] is not None)
            top = [v for v, c in counts.items() if c == max(counts.values())]
            of_winner = [fmean(scores[i] for i in subset if given[i] == vote) for vote in top]
            values.append(fmean(of_winner) if of_winner else 0.0)
        assert majority_at_k(given, scores, k) == pytest.approx(fmean(values), abs=1e-12)


def test_edit_distance_is_that_of_the_table() -> None:
    rng = torch.Generator().manual_seed(0)

    def table(a: str, b: str) -> int:
        row = list(range(len(b) + 1))
        for i, x in enumerate(a, start=1):
            left, row[0] = row[0], i
            for j, y in enumerate(b, start=1):
                left, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, left + (x != y))
        return row[-1]

    for _ in range(200):
        lengths = torch.randint(0, 70, (2,), generator=rng).tolist()
        a, b = (
            "".join("abcé"[int(i)] for i in torch.randint(4, (n,), generator=rng)) for n in lengths
        )
        assert edit_distance(a, b) == table(a, b)


def test_diversity_of_texts_by_hand() -> None:
    assert edit_diversity(["ab", "ab", "cd"]) == pytest.approx(2 / 3)
    assert edit_diversity(["ab"]) == edit_diversity([]) == 0
    assert distinct_fraction(["a", "a", "b", None]) == 0.5


def test_the_orders_of_a_budget_do_not_depend_on_the_caller() -> None:
    rewards, solved, scalarizations = pool(6, 2, 2)
    arguments = (rewards, solved, [3, 4, 5, 6, 7, 8], scalarizations, [9])
    torch.manual_seed(1)
    first = figures_by_tokens(*arguments)
    torch.manual_seed(2)
    assert figures_by_tokens(*arguments) == first
    assert estimators.ORDERS >= 30
