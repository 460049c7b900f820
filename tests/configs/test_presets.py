"""preset=official gives the published numbers to the digit, preset=matched one convention."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf

from tests.configs.test_yaml import composed
from vpo_lightning import build, methods
from vpo_lightning.core.gdpo import normalized_sums, whitened
from vpo_lightning.evaluation.report.contents import report_page
from vpo_lightning.evaluation.report.folders import find_runs
from vpo_lightning.report_pictures import TaskPictures
from vpo_lightning.rollout.credit import Method
from vpo_lightning.run_loggers import build_loggers

GOLDEN: dict[str, Any] = json.loads(
    (Path(__file__).parents[1] / "golden" / "advantages.json").read_text()
)
SURROUNDINGS = {"m": 3, "trainer": {"max_steps": 10}}
FILES = methods.ablation_files()
VALUES = torch.tensor([[1.0, 0.0, 0.5, 0.25]], dtype=torch.float64)
PUBLISHED = {
    "grpo": "grpo",
    "multi_rlvr": "multi_rlvr",
    "dr_grpo": "grpo_no_std",
    "maxrl": "maxrl",
    "max_at_k": "max_at_k[k=default]",
}


def method(name: str, preset: str) -> Method:
    return methods.read_method(FILES[name], preset, SURROUNDINGS)


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


@pytest.mark.parametrize("case", GOLDEN["scalar"], ids=lambda case: case["name"])
def test_official_gdpo_is_the_reference_to_the_digit(case: dict[str, Any]) -> None:
    official = method("gdpo", "official")
    convention: Any = official.advantage.keywords["convention"]  # type: ignore[attr-defined]
    assert convention == "verl"
    assert not official.normalize_weights
    channels = torch.tensor(list(case["channels"].values()), dtype=torch.float64).T
    weights = torch.tensor([case["gdpo_weights"] or [1.0] * channels.shape[1]]).double()
    lengths = torch.tensor(case["response_lengths"])
    groups = groups_of(case)
    if len({len(rows) for rows in groups}) == 1:
        values = torch.stack([channels[rows] for rows in groups])
        found = torch.zeros_like(channels[:, 0])
        found[torch.tensor(groups)] = official.advantage(
            values.sum(-1),
            rewards=values[:, :, None],
            weights=weights[None].expand(len(groups), -1, -1),
            lengths=torch.stack([lengths[rows] for rows in groups]),
            objective_mask=torch.ones(values.shape[::2], dtype=torch.bool),
        )
    else:  # a batch of groups of different sizes, which a run does not have
        found = torch.zeros_like(channels[:, 0])
        for rows in groups:
            found[rows] = normalized_sums(channels[rows][None], weights, convention)[0]
        found = whitened(found, lengths, convention)
    np.testing.assert_allclose(found.numpy(), case["expected"]["gdpo"], rtol=2e-5, atol=2e-6)


# R = [1, 0, .5, .25] from the table of estimators that the libraries publish.
TABLE = {
    ("dr_grpo", "official"): [0.5625, -0.4375, 0.0625, -0.1875],
    ("dr_grpo", "matched"): [0.5625, -0.4375, 0.0625, -0.1875],
    ("grpo", "official"): [1.317462, -1.024693, 0.146385, -0.439154],
    ("grpo", "matched"): [1.521274, -1.183213, 0.169030, -0.507091],
    ("multi_rlvr", "official"): [1.317462, -1.024693, 0.146385, -0.439154],
    ("vpo", "official"): [1.521274, -1.183213, 0.169030, -0.507091],
    ("vpo", "matched"): [1.521274, -1.183213, 0.169030, -0.507091],
    ("rloo", "official"): [0.75, -0.583333, 0.083333, -0.25],
    ("rloo", "matched"): [0.75, -0.583333, 0.083333, -0.25],
    ("grpo_leave_one_out", "official"): [2.999988, -1.527521, 0.160128, -0.499999],
    ("maxrl", "official"): [1.285711, -0.999998, 0.142857, -0.428570],
    ("max_at_k", "official"): [1.470279, -0.630120, -0.210040, -0.630120],
    ("pass_at_k", "official"): [1.171077, 0.0, 0.0, 0.0],
    ("pkpo", "official"): [0.75, 0.0, 0.25, 0.083333],
}


@pytest.mark.parametrize(("name", "preset"), TABLE)
def test_a_preset_is_the_published_table_to_the_digit(name: str, preset: str) -> None:
    found = method(name, preset).advantage(VALUES)[0]
    np.testing.assert_allclose(found.numpy(), TABLE[name, preset], rtol=0, atol=1e-6)


@pytest.mark.slow
def test_the_wandb_config_and_the_report_say_which_preset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    cfg = composed("train", "preset=official", "logger=wandb", "logger.wandb.offline=true")
    cfg.name = "vpo"
    try:
        logged = build_loggers(cfg, tmp_path)[-1].experiment.config.as_dict()
    finally:
        wandb.finish()
    assert logged["preset"]["name"] == "official"
    assert logged["preset"]["ddof"] == 1
    OmegaConf.save(cfg, tmp_path / "config.yaml", resolve=True)
    (tmp_path / "summary.json").write_text(json.dumps({"status": "finished", "steps": 1}))
    page = report_page(find_runs([tmp_path]), TaskPictures())
    assert "preset official" in page


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


@pytest.mark.parametrize("name", ["vpo", "multi_rlvr", "grpo", "grpo_extra_rollouts"])
def test_a_step_of_every_method_holds_as_many_answers_under_matched(name: str) -> None:
    cfg = composed("train", f"ablation={name}", "m=3", "rollout.group_size=8")
    answers = build.build_prompt(cfg).num_answers
    prompts, size = build.prompts_per_step(cfg), build.group_size(cfg)
    assert prompts * size * answers == cfg.rollout.prompts_per_step * 8 * 3
    # The control of the paper: 24 rollouts of a prompt against 8 chains of 3.
    assert size == (24 if name == "grpo_extra_rollouts" else 8)
