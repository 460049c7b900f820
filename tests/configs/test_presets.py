"""preset=official gives the published numbers to the digit, preset=matched one convention."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from vpo_lightning import build
from vpo_lightning.core.gdpo import normalized_sums, whitened
from vpo_lightning.rollout.credit import Method

GOLDEN: dict[str, Any] = json.loads(
    (Path(__file__).parents[1] / "golden" / "advantages.json").read_text()
)
SURROUNDINGS = {"m": 3, "trainer": {"max_steps": 10}}
FILES = build.ablation_files()
VALUES = torch.tensor([[1.0, 0.0, 0.5, 0.25]], dtype=torch.float64)
PUBLISHED = {
    "grpo": "grpo",
    "multi_rlvr": "multi_rlvr",
    "dr_grpo": "grpo_no_std",
    "maxrl": "maxrl",
    "max_at_k": "max_at_k[k=default]",
}


def method(name: str, preset: str) -> Method:
    return build.read_method(FILES[name], preset, SURROUNDINGS)


def groups_of(case: dict[str, Any]) -> list[list[int]]:
    rows: dict[str, list[int]] = {}
    for i, uid in enumerate(case["uids"]):
        rows.setdefault(uid, []).append(i)
    return list(rows.values())


@pytest.mark.parametrize("case", GOLDEN["scalar"], ids=lambda case: case["name"])
@pytest.mark.parametrize("name", PUBLISHED)
def test_official_is_the_reference_to_the_digit(name: str, case: dict[str, Any]) -> None:
    expected = case["expected"][PUBLISHED[name]]
    scores = torch.tensor(case["scores"], dtype=torch.float64)
    advantage = method(name, "official").advantage
    if isinstance(expected, dict):
        with pytest.raises(ValueError, match="expected 1 <= k < rollouts per prompt"):
            advantage(scores)
        return
    found = torch.zeros_like(scores)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a group of one is warned about
        for rows in groups_of(case):
            found[rows] = advantage(scores[rows])
    # The reference computes advantages in float32.
    np.testing.assert_allclose(found.numpy(), expected, rtol=2e-5, atol=2e-6)


def test_official_gdpo_takes_the_convention_and_the_weights_as_given() -> None:
    official = method("gdpo", "official")
    assert official.advantage.keywords == {"convention": "verl"}  # type: ignore[attr-defined]
    assert not official.normalize_weights
    case = GOLDEN["scalar"][0]
    values = torch.tensor(list(case["channels"].values()), dtype=torch.float64).T[None]
    weights = torch.ones(1, values.shape[-1], dtype=torch.float64)
    lengths = torch.tensor(case["response_lengths"])[None]
    found = official.advantage(
        values.sum(-1),
        rewards=values[:, :, None],
        weights=weights[:, None],
        lengths=lengths,
        objective_mask=torch.ones_like(weights, dtype=torch.bool),
    )
    sums = normalized_sums(values, weights, "verl")
    torch.testing.assert_close(found, whitened(sums, lengths, "verl"))
    np.testing.assert_allclose(found[0].numpy(), case["expected"]["gdpo"], rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("name", ["grpo", "multi_rlvr", "random_weight_grpo", "goal_conditioned"])
def test_vpo_and_the_baselines_share_one_convention_under_matched(name: str) -> None:
    vpo, baseline = method("vpo", "matched"), method(name, "matched")
    assert torch.equal(vpo.advantage(VALUES), baseline.advantage(VALUES))
    assert not torch.allclose(vpo.advantage(VALUES), method(name, "official").advantage(VALUES))


def test_vpo_is_the_same_in_both_presets() -> None:
    found = [method("vpo", preset).advantage(VALUES) for preset in ("matched", "official")]
    assert torch.equal(*found)


def test_random_weights_are_kept_only_under_official() -> None:
    for name in ("random_weight_grpo", "goal_conditioned"):
        assert method(name, "matched").redraw_weights
        assert not method(name, "official").redraw_weights


@pytest.mark.parametrize("name", sorted(FILES))
@pytest.mark.parametrize("preset", ["matched", "official"])
def test_a_group_of_one_is_defined_for_every_method(name: str, preset: str) -> None:
    rewards = torch.tensor([[[[0.5, 1.0]]]], dtype=torch.float64)
    weights = torch.tensor([[[0.5, 0.5], [0.25, 0.75]]], dtype=torch.float64)
    made = method(name, preset)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scores = made.set_reward(rewards, weights)
        found = made.advantage(
            scores,
            rewards=rewards,
            weights=weights,
            lengths=torch.ones(1, 1, dtype=torch.int64),
            objective_mask=torch.ones(1, 2, dtype=torch.bool),
        )
    assert bool(torch.isfinite(found).all())
    if preset == "matched":
        assert found.tolist() == [[0.0]]


@pytest.mark.parametrize("name", sorted(FILES))
def test_a_group_without_parsed_answers_has_no_signal(name: str) -> None:
    made = method(name, "matched")
    rewards = torch.zeros(2, 4, 1, 3, dtype=torch.float64)
    weights = torch.full((2, 10, 3), 1 / 3, dtype=torch.float64)
    found = made.advantage(
        made.set_reward(rewards, weights),
        rewards=rewards,
        weights=weights,
        lengths=torch.ones(2, 4, dtype=torch.int64),
        objective_mask=torch.ones(2, 3, dtype=torch.bool),
    )
    assert found.abs().max() == 0
