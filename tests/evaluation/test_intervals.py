"""Intervals cover the truth as often as they say, with dependent answers inside a chain."""

from __future__ import annotations

import functools
import math

import pytest
import torch
from scipy import stats
from torch import Tensor

from vpo_lightning.evaluation.estimators import (
    Scalarizations,
    figures_by_answers,
    figures_by_calls,
    without_each_call,
)
from vpo_lightning.evaluation.intervals import estimate, jackknife_error, paired, student_quantile

POOLS, PROMPTS, CHAINS, ANSWERS, CORRELATION = 1000, 64, 10, 3, 0.5
SCALAR = Scalarizations(
    torch.ones(1, 1, dtype=torch.float64), {"": torch.ones(1, dtype=torch.float64)}
)
BY_ANSWERS, BY_CALLS = (1, 3, 10), (1, 3)


def scores(prompts: Tensor, chains: int, rng: torch.Generator) -> Tensor:
    """Rewards (prompts, chains, 3, 1): correlated by .5 within a chain, given the prompt."""
    shape = (len(prompts), chains)
    shared = torch.randn(*shape, 1, generator=rng, dtype=torch.float64)
    own = torch.randn(*shape, ANSWERS, generator=rng, dtype=torch.float64)
    latent = math.sqrt(CORRELATION) * shared + math.sqrt(1 - CORRELATION) * own
    return torch.special.ndtr(latent + prompts[:, None, None] - 0.5)[..., None]


def figures(rewards: Tensor) -> dict[str, Tensor]:
    solved = rewards[..., 0] > 0.8
    most = rewards.shape[-3]
    found = figures_by_answers(
        rewards, solved, SCALAR, [k for k in BY_ANSWERS if k <= most * ANSWERS]
    )
    return found | figures_by_calls(rewards, solved, SCALAR, [k for k in BY_CALLS if k <= most])


@functools.cache
def simulated() -> tuple[dict[str, Tensor], dict[str, float]]:
    """Estimates (pools, prompts) of the simulated pools, and the true values.

    The truth is the plain procedure many times: so many calls, or so many answers of ten calls.
    """
    rng = torch.Generator().manual_seed(20260522)
    prompts = 0.6 * torch.randn(POOLS * PROMPTS, generator=rng, dtype=torch.float64)
    found = {
        key: values.reshape(POOLS, PROMPTS)
        for key, values in figures(scores(prompts, CHAINS, rng)).items()
    }
    prompts = 0.6 * torch.randn(300_000, generator=rng, dtype=torch.float64)
    rewards = scores(prompts, CHAINS, rng)[..., 0]
    truth: dict[str, float] = {}
    order = torch.rand(len(prompts), CHAINS * ANSWERS, generator=rng).argsort(1)
    for k in BY_ANSWERS:
        best = rewards.flatten(1).gather(1, order[:, :k]).amax(1)
        truth |= {f"best@{k}": float(best.mean()), f"pass@{k}": float((best > 0.8).double().mean())}
    for k in BY_CALLS:
        best = rewards[:, :k].flatten(1).amax(1)
        truth[f"best@{k}_calls"] = float(best.mean())
        truth[f"pass@{k}_calls"] = float((best > 0.8).double().mean())
    return found, truth


@pytest.mark.parametrize(
    "key", [*(f"{f}@{k}" for f in ("best", "pass") for k in (1, 3, 10)), "best@3_calls"]
)
def test_intervals_cover_the_truth_in_95_percent_of_1000_pools(key: str) -> None:
    found, truth = simulated()
    covered = 0
    for values in found[key].tolist():
        interval = estimate(values)
        assert interval.low is not None
        assert interval.high is not None
        covered += interval.low <= truth[key] <= interval.high
    assert 0.93 <= covered / POOLS <= 0.97, covered


def test_the_estimates_are_unbiased() -> None:
    found, truth = simulated()
    for key, value in truth.items():
        error = float(found[key].std()) / math.sqrt(found[key].numel())
        assert float(found[key].mean()) == pytest.approx(value, abs=5 * error), key


def test_answers_taken_for_independent_would_give_too_short_intervals() -> None:
    # The mean of 30 answers with their own standard error, as if the prompt and chain were nothing.
    rng = torch.Generator().manual_seed(1)
    rewards = scores(torch.zeros(2000, dtype=torch.float64), CHAINS, rng)[..., 0].flatten(1)
    naive = 1.96 * rewards.std(1) / math.sqrt(rewards.shape[1])
    covered = ((rewards.mean(1) - rewards.mean()).abs() <= naive).double().mean()
    assert covered < 0.88


def test_sampling_errors_cover_the_truth_of_fixed_prompts() -> None:
    rng = torch.Generator().manual_seed(2)
    few = 0.6 * torch.randn(16, generator=rng, dtype=torch.float64)
    pools = 500
    rewards = scores(few.repeat(pools), CHAINS, rng)
    values = {key: v.reshape(pools, 16) for key, v in figures(rewards).items()}
    without = figures(without_each_call(rewards, 1))
    for key in ("best@1", "best@3", "best@10", "best@1_calls", "best@3_calls"):
        errors = jackknife_error(without[key]).reshape(pools, 16)
        truth = float(values[key].mean())
        half = 1.96 * errors.square().sum(1).sqrt() / 16
        covered = float(((values[key].mean(1) - truth).abs() <= half).double().mean())
        assert 0.92 <= covered <= 0.99, (key, covered)


def test_jackknife_of_a_mean_is_its_standard_error() -> None:
    values = torch.tensor([1.0, 2.0, 4.0, 8.0], dtype=torch.float64)
    without = without_each_call(values, 0).mean(-1)
    assert float(jackknife_error(without)) == pytest.approx(float(values.std()) / 2)


@pytest.mark.parametrize("freedom", [1, 2, 3, 5, 10, 63, 199])
def test_student_quantile_is_that_of_scipy(freedom: int) -> None:
    expected = stats.t.ppf(0.975, freedom)
    assert student_quantile(freedom) == pytest.approx(expected, rel=0.011 if freedom < 5 else 2e-3)


def test_one_prompt_has_the_interval_of_its_completions() -> None:
    alone = estimate([0.5], [0.1])
    assert (alone.low, alone.high) == (
        pytest.approx(0.304, abs=1e-3),
        pytest.approx(0.696, abs=1e-3),
    )
    nothing = estimate([0.5])
    assert nothing.low is nothing.high is nothing.sampling_error is None


def test_paired_difference_by_hand() -> None:
    gap = paired([1.0, 2.0, 3.0], [0.0, 1.0, 1.0])
    assert gap.difference == pytest.approx(4 / 3)
    # Of the 8 sign changes of (1, 1, 2) only all-plus and all-minus are as far from 0.
    assert gap.p == pytest.approx(2 / 8)
    same = paired([1.0, 2.0], [1.0, 2.0])
    assert (same.difference, same.p) == (0, 1)
    with pytest.raises(ValueError, match="at least two"):
        paired([1.0], [0.0])


def test_permutation_p_is_uniform_without_a_difference() -> None:
    rng = torch.Generator().manual_seed(3)
    ps = [
        paired(*torch.randn(2, 30, generator=rng, dtype=torch.float64).tolist()).p
        for _ in range(300)
    ]
    assert stats.kstest(ps, "uniform").pvalue > 0.01
    assert sum(p < 0.05 for p in ps) / 300 < 0.09
