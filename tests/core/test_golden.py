"""Values of the public reference implementation (ryanboldi/vpo at 767db79), authored cases.

Departures: a group of one gets 0 unless `singleton="raw"` asks for the published value; the rewards
of a group are one tensor, so two numbers of objectives in one group cannot be expressed.
"""

import json
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from vpo_lightning.core.advantages import centred, group_normalized, maxrl
from vpo_lightning.core.advantages_at_k import max_at_k
from vpo_lightning.core.gdpo import Convention, normalized_sums, whitened
from vpo_lightning.core.metrics import (
    expected_max_at_k,
    mean_weighted,
    pairwise_diversity,
    pareto_count,
    pass_at_k,
)
from vpo_lightning.core.scalarization import set_reward

FOLDER = Path(__file__).parents[1] / "golden"
ADVANTAGES: dict[str, Any] = json.loads((FOLDER / "advantages.json").read_text())
METRICS: dict[str, Any] = json.loads((FOLDER / "eval_metrics.json").read_text())
# The reference computes advantages in float32.
RELATIVE, ABSOLUTE = 2e-5, 2e-6


def name(case: dict[str, Any]) -> str:
    return str(case["name"])


def members(case: dict[str, Any]) -> dict[str, list[int]]:
    """The rows of each group, in order of first appearance."""
    rows: dict[str, list[int]] = {}
    for row, uid in enumerate(case["uids"]):
        rows.setdefault(uid, []).append(row)
    return rows


def padded(matrices: list[list[list[float]]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Rewards (1, G, M, K) and answer mask of a group, zero rows behind each rollout's answers."""
    answers = max(len(matrix) for matrix in matrices)
    objectives = max((len(row) for matrix in matrices for row in matrix), default=1)
    rewards = torch.zeros(1, len(matrices), answers, objectives, dtype=torch.float64)
    mask = torch.zeros(1, len(matrices), answers, dtype=torch.bool)
    for g, matrix in enumerate(matrices):
        for m, row in enumerate(matrix):
            rewards[0, g, m] = torch.tensor(row, dtype=torch.float64)
            mask[0, g, m] = True
    return rewards, mask


@pytest.mark.parametrize("case", ADVANTAGES["vpo"], ids=name)
def test_vpo_scores_and_advantages_are_those_of_the_reference(case: dict[str, Any]) -> None:
    advantages: dict[int, float] = {}
    for uid, rows in members(case).items():
        rewards, mask = padded([case["sub_scores"][row] for row in rows])
        draws = case["weights"][uid]
        if draws is None:  # nothing to scalarize: any weights do
            draws = [[1.0 / rewards.shape[-1]] * rewards.shape[-1]]
        scores = set_reward(rewards, torch.tensor([draws], dtype=torch.float64), mask)
        expected = torch.tensor([case["expected"]["raw_scores"][uid]], dtype=torch.float64)
        torch.testing.assert_close(scores, expected, rtol=0, atol=1e-9)
        advantages |= dict(zip(rows, group_normalized(scores)[0].tolist(), strict=True))
    found = [advantages[row] for row in range(len(advantages))]
    np.testing.assert_allclose(found, case["expected"]["advantages"], RELATIVE, ABSOLUTE)


@pytest.mark.parametrize("case", ADVANTAGES["vpo_errors"], ids=name)
def test_two_numbers_of_objectives_in_one_group_are_refused(case: dict[str, Any]) -> None:
    with pytest.raises((ValueError, RuntimeError)):
        padded(case["sub_scores"])


ESTIMATORS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "grpo": partial(group_normalized, ddof=1, singleton="raw"),
    "grpo_no_std": partial(centred, singleton="raw"),
    "maxrl": partial(maxrl, singleton="raw"),
    "multi_rlvr": partial(group_normalized, ddof=1, singleton="raw"),
    **{
        f"max_at_k[k={k or 'default'}]{suffix}": partial(max_at_k, k=k, normalize=not suffix)
        for k in (None, 1, 2, 3)
        for suffix in ("", "_no_std")
    },
}


@pytest.mark.parametrize("case", ADVANTAGES["scalar"], ids=name)
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_scalar_estimators_are_those_of_the_reference(case: dict[str, Any], estimator: str) -> None:
    expected = case["expected"][estimator]
    scores = torch.tensor(case["scores"], dtype=torch.float64)
    found = torch.zeros_like(scores)

    def estimate() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for rows in members(case).values():
                found[rows] = ESTIMATORS[estimator](scores[rows])

    if isinstance(expected, dict):
        with pytest.raises(ValueError, match="expected 1 <= k < rollouts per prompt"):
            estimate()
    else:
        estimate()
        np.testing.assert_allclose(found.numpy(), expected, RELATIVE, ABSOLUTE)


@pytest.mark.parametrize("case", ADVANTAGES["scalar"], ids=name)
@pytest.mark.parametrize(
    ("key", "convention"), [("gdpo", "verl"), ("gdpo_no_std", "none")], ids=str
)
def test_gdpo_is_that_of_the_reference(
    case: dict[str, Any], key: str, convention: Convention
) -> None:
    # Groups of different sizes stand in one batch here: normalise each, whiten all together.
    channels = torch.tensor(list(case["channels"].values()), dtype=torch.float64).T
    weights = torch.tensor([case["gdpo_weights"] or [1.0] * channels.shape[1]]).double()
    sums = torch.zeros(len(channels), dtype=torch.float64)
    for rows in members(case).values():
        sums[rows] = normalized_sums(channels[rows][None], weights, convention)[0]
    found = whitened(sums, torch.tensor(case["response_lengths"]), convention)
    np.testing.assert_allclose(found.numpy(), case["expected"][key], RELATIVE, ABSOLUTE)
    if convention == "verl":
        expected = case["expected"]["gdpo_before_whitening"]
        np.testing.assert_allclose(sums.numpy(), expected, RELATIVE, ABSOLUTE)


@pytest.mark.parametrize("pool", METRICS["pools"], ids=name)
def test_pool_metrics_are_those_of_the_reference(pool: dict[str, Any]) -> None:
    rewards = torch.tensor(pool["score_matrix"], dtype=torch.float64)
    weights = torch.tensor(pool["weights"], dtype=torch.float64)
    size = len(rewards)
    found = {
        "expected_max_weighted": expected_max_at_k(rewards, weights, size),
        "mean_weighted": mean_weighted(rewards, weights),
        "diversity": pairwise_diversity(rewards),
        "pareto_count": pareto_count(rewards),
        "pareto_frac": pareto_count(rewards) / size,
    }
    for key, value in found.items():
        assert float(value) == pytest.approx(pool[key], rel=1e-9, abs=1e-9), key


def test_pass_at_k_is_that_of_the_reference() -> None:
    for case in METRICS["pass_at_k"]:
        found = pass_at_k(case["n"], case["c"], case["k"])
        assert found == pytest.approx(case["expected"], rel=1e-9, abs=1e-12), case


def test_the_reference_draws_its_weights_from_numpy() -> None:
    # Information for those who replay its runs; our draws come from counter-based streams.
    for case in METRICS["dirichlet_weights"]:
        rng = np.random.default_rng(case["seed"])
        drawn = rng.dirichlet(np.ones(case["n_obj"]), case["n"])
        np.testing.assert_allclose(drawn, case["expected"], rtol=1e-9)
