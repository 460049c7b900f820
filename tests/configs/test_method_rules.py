"""Whatever a shipped estimator or loss refuses is refused from the config, and nothing else is."""

from __future__ import annotations

import copy
import functools
import itertools
import warnings
from typing import Any

import pytest
import torch
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import DictConfig

from tests.configs.test_yaml import composed
from vpo_lightning import build, methods, rules
from vpo_lightning.errors import ConfigError
from vpo_lightning.lightning.objective import PolicyObjective
from vpo_lightning.method_rules import check_method
from vpo_lightning.rollout.rehearsal import rehearse
from vpo_lightning.task import Objective

# Overrides that an estimator meets at the first rollouts, and the key that the refusal names.
METHODS = [
    ("ablation=max_at_k ablation.advantage.k=8", "ablation.advantage.k=8"),
    ("ablation=max_at_k ablation.advantage.k=0", "ablation.advantage.k=0"),
    ("ablation=max_at_k rollout.group_size=2", "ablation.advantage.k=null"),
    ("ablation=pkpo ablation.advantage.k=1", "ablation.advantage.k=1"),
    ("ablation=pkpo ablation.advantage.k=9", "ablation.advantage.k=9"),
    ("ablation.weights.alpha=[1,2]", "ablation.weights.alpha"),
    ("ablation=vpo_sobol ablation.weights.alpha=[1,2,3]", "ablation.weights.alpha"),
    ("ablation.weights.alpha=.inf", "ablation.weights.alpha"),
    ("ablation.weights.alpha=[1,1,1,-1]", "ablation.weights.alpha"),
    ("ablation=vpo_annealed ablation.weights.deployment_weights=[1]", "deployment_weights"),
    ("ablation=vpo_annealed ablation.weights.deployment_weights=[0,0,0,0]", "deployment_weights"),
    ("ablation=vpo_annealed ablation.weights.deployment_weights=[1,0,0,-1]", "deployment_weights"),
    ("ablation=diversity_bonus ablation.set_reward.floors=[0.1,0.2]", "ablation.set_reward.floors"),
    ("ablation.set_reward.over_answers=min", "ablation.set_reward.over_answers"),
    ("ablation=grpo ablation.advantage.ddof=2", "ablation.advantage.ddof"),
    ("ablation.advantage.eps=-1", "ablation.advantage.eps"),
    ("ablation.advantage.floor=-1", "ablation.advantage.floor"),
    ("ablation=gdpo ablation.advantage.convention=other", "ablation.advantage.convention"),
    (
        "ablation=gdpo ablation.prompt._target_=vpo_lightning.prompting.MultiAnswer "
        "+ablation.prompt.m=2",
        "ablation.prompt.m=2",
    ),
    ("ablation=vpo_exact task=livecodebench", "ablation.set_reward"),
]
LOSSES = [
    ("loss.surrogate.clip_low=1.0", "loss.surrogate.clip_low"),
    ("loss.surrogate.clip_low=-0.1", "loss.surrogate.clip_low"),
    ("loss.surrogate.clip_high=-0.1", "loss.surrogate.clip_high"),
    ("loss.surrogate.dual_clip=1.0", "loss.surrogate.dual_clip"),
    ("loss=gspo loss.surrogate.clip_low=2.0", "loss.surrogate.clip_low"),
    ("loss=cispo loss.surrogate.max_ratio=-1.0", "loss.surrogate.max_ratio"),
    ("loss=cispo loss.surrogate.min_ratio=6.0", "loss.surrogate.min_ratio"),
    ("loss.kl_estimator=k4", "loss.kl_estimator"),
    ("loss.kl_in=advantage", "loss.kl_in"),
    ("loss.kl_coefficient=-1", "loss.kl_coefficient"),
    ("loss.aggregation=mean", "loss.aggregation"),
    ("loss.aggregation=seq_mean_token_sum_norm", "loss.max_tokens"),
    ("loss.importance_level=group", "loss.importance_level"),
    ("loss.importance_cap=0", "loss.importance_cap"),
    ("loss.importance_over_cap=keep", "loss.importance_over_cap"),
]
# What would not fail later, but could not mean what was asked for.
MEANINGLESS = [
    ("ablation=vpo_exact ablation.weights.alpha=2", "ablation.weights.alpha"),
    ("ablation=vpo_exact ablation.weights=null", "ablation.weights._target_"),
    ("ablation=gdpo rollout.soft_overlong_tokens=8", "rollout.soft_overlong_tokens=8"),
    ("ablation=grpo_leave_one_out rollout.group_size=2", "rollout.group_size=2"),
    ("ablation=grpo ablation.advantage.singleton=one", "ablation.advantage.singleton"),
    ("rollout.group_size=2.5", "rollout.group_size=2.5"),
    ("loss.kl_coefficient=.nan", "loss.kl_coefficient"),
    ("task=eureqa", "evaluation.metrics.cover"),
    ("evaluation.metrics.ks=[0]", "evaluation.metrics.ks"),
]
FILES = methods.ablation_files()


@functools.cache
def _composed(*overrides: str) -> DictConfig:
    return composed("train", *overrides)


def train_config(*overrides: str) -> DictConfig:
    """A copy: two tests look at the same overrides."""
    return copy.deepcopy(_composed(*overrides))


def refusal(overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        rules.check(train_config(*overrides.split()))
    return str(caught.value)


def objectives(cfg: DictConfig) -> list[list[Objective]]:
    vector, rows = build.build_reward_vector(cfg), build.build_task(cfg).rows("train")
    return [vector.select(rows[i].objectives) for i in range(min(6, len(rows)))]


@pytest.mark.parametrize(("overrides", "key"), METHODS + LOSSES + MEANINGLESS)
def test_a_setting_that_cannot_work_is_refused_from_the_config(overrides: str, key: str) -> None:
    assert key in refusal(overrides)


@pytest.mark.parametrize("overrides", [overrides for overrides, _ in METHODS])
def test_no_rule_is_stricter_than_the_method(overrides: str) -> None:
    cfg = train_config(*overrides.split())
    method = methods.build_method(cfg.ablation, build.build_reward_vector(cfg))
    with pytest.raises(ConfigError, match="does not work"):
        rehearse(method, objectives(cfg), build.group_size(cfg))


@pytest.mark.parametrize("overrides", [overrides for overrides, _ in LOSSES])
def test_no_rule_is_stricter_than_the_loss(overrides: str) -> None:
    cfg = train_config(*overrides.split())
    tokens, mask = torch.zeros(3, 2), torch.ones(3, 2, dtype=torch.bool)

    def update() -> None:
        objective: PolicyObjective = instantiate(cfg.loss)
        objective.surrogate(tokens, tokens, torch.ones(3, 1), mask)

    with pytest.raises((InstantiationException, ValueError), match=r"loss\.|clip_"):
        update()


@pytest.mark.parametrize("name", sorted(FILES))
def test_what_the_rules_let_pass_does_not_fail_at_the_first_rollouts(name: str) -> None:
    # max_at_k and pkpo with every k; the others once for each group size.
    cfg = train_config(f"ablation={name}")
    vector = build.build_reward_vector(cfg)
    accepted = 0
    for size, count, k in itertools.product(range(1, 7), (1, 2, 5, 7), (None, 0, 1, 2, 3, 6)):
        if "k" in cfg.ablation.advantage:
            cfg.ablation.advantage.k = k
        elif k is not None:
            continue
        cfg.rollout.group_size = size
        kept = [[Objective(f"o{i}", "") for i in range(count)]] * 2
        try:
            check_method(cfg, {count})
        except ConfigError:
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # groups of one
            method = methods.build_method(cfg.ablation, vector)
            found = rehearse(method, kept, build.group_size(cfg))
        assert bool(found.any()) == (build.group_size(cfg) > 1)
        accepted += 1
    assert accepted >= 12


def test_a_group_of_one_is_warned_about() -> None:
    cfg = train_config("rollout.group_size=1")
    method = methods.build_method(cfg.ablation, build.build_reward_vector(cfg))
    with pytest.warns(UserWarning, match=r"rollout\.group_size=1"):
        rehearse(method, objectives(cfg), 1)


def broken(cfg: DictConfig, **slots: Any) -> str:
    method = methods.build_method(cfg.ablation, build.build_reward_vector(cfg))
    with pytest.raises(ConfigError) as caught:
        rehearse(type(method)(**{**vars(method), **slots}), objectives(cfg), 4)
    return str(caught.value)


def test_a_users_slot_that_cannot_work_is_met_before_the_warm_up() -> None:
    cfg = train_config()
    assert "unexpected keyword argument 'kk'" in broken(train_config("+ablation.advantage.kk=3"))
    # The shape checks of the tests are met first; a user's run has none.
    wrong_shape = ("returned", "Type-check error")
    for slot, function in (
        ("advantage", lambda scores, **_: scores.flatten()),
        ("set_reward", lambda rewards, *_, **__: rewards.mean((1, 2, 3))),
    ):
        assert any(words in broken(cfg, **{slot: function}) for words in wrong_shape)
    assert "24 are not finite" in broken(cfg, advantage=lambda scores, **_: scores / 0)
