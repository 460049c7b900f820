"""What the shipped estimators and losses refuse, checked from the config before torch is imported.

Each rule repeats the limit of a function in `core` (a test holds the two together), so that it is
not met only after the warm-up, at the first rollouts or the first update.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

from omegaconf import DictConfig, OmegaConf

from vpo_lightning import build
from vpo_lightning.errors import ConfigError

_OURS = "vpo_lightning."
_CHOICES: dict[str, tuple[Any, ...]] = {
    "ablation.set_reward.over_answers": ("max", "sum", "mean"),
    "ablation.advantage.singleton": ("zero", "raw"),
    "ablation.advantage.ddof": (0, 1),
    "ablation.advantage.convention": ("matched", "none", "trl", "verl"),
    "loss.kl_estimator": ("k1", "k2", "k3"),
    "loss.kl_in": ("loss", "reward"),
    "loss.aggregation": (
        "token_mean",
        "seq_mean_token_mean",
        "seq_mean_token_sum",
        "seq_mean_token_sum_norm",
    ),
    "loss.importance_level": (None, "token", "sequence"),
    "loss.importance_over_cap": ("truncate", "drop"),
}
# Smallest value, and whether it may be taken.
_BOUNDS: dict[str, tuple[float, bool]] = {
    "ablation.advantage.eps": (0, True),
    "ablation.advantage.floor": (0, True),
    "ablation.weights.total_steps": (0, True),  # trainer.max_steps=0 only evaluates
    "loss.surrogate.clip_low": (0, True),
    "loss.surrogate.clip_high": (0, True),
    "loss.surrogate.dual_clip": (1, False),
    "loss.surrogate.min_ratio": (0, True),
    "loss.surrogate.max_ratio": (0, True),
    "loss.importance_cap": (0, False),
    "loss.importance_warning": (0, True),
}
_MAX_AT_K = "vpo_lightning.core.advantages_at_k.max_at_k"
# Smallest k, and rollouts of a prompt that k must leave over.
_K_LIMITS = {_MAX_AT_K: (1, 1), "vpo_lightning.core.advantages_at_k.pkpo": (2, 0)}
_LEAST_GROUP = {"vpo_lightning.core.advantages.leave_one_out_normalized": 3}
_GDPO = "vpo_lightning.core.gdpo.gdpo"
_EXACT = "vpo_lightning.core.exact.exact_set_reward"
_EXACT_OBJECTIVES = 5
_UNIFORM = ("vpo_lightning.core.weights.dirichlet", "vpo_lightning.core.weights.sobol")


def check_method(cfg: DictConfig, num_objectives: Collection[int]) -> None:
    """Refuses settings of the ablation and of the loss that could only fail later.

    Args:
        cfg: The whole config.
        num_objectives: The different numbers of objectives of the prompts, as the method sees them.

    Raises:
        ConfigError: Names the key to change.
    """
    for key, choices in _CHOICES.items():
        value = OmegaConf.select(cfg, key)
        if _is_ours(cfg, key) and _is_given(cfg, key) and value not in choices:
            options = ", ".join("null" if choice is None else str(choice) for choice in choices)
            raise ConfigError(f"{key}={value}: it must be one of {options}")
    for key, (least, may_equal) in _BOUNDS.items():
        value = OmegaConf.select(cfg, key)
        if value is None or not _is_ours(cfg, key):
            continue
        if not is_number(value) or not (value > least or (may_equal and value == least)):
            raise ConfigError(
                f"{key}={value}: it must be {'at least' if may_equal else 'above'} {least}"
            )
    _check_group(cfg)
    _check_lists(cfg, num_objectives)
    _check_exact(cfg, num_objectives)
    _check_loss(cfg)


def is_number(value: object) -> bool:
    """Whether a value is a finite number."""
    return isinstance(value, int | float) and math.isfinite(value)


def _is_ours(cfg: DictConfig, key: str) -> bool:
    """Whether the component that has the key is shipped: another may use the name differently."""
    target = OmegaConf.select(cfg, f"{key.rpartition('.')[0]}._target_")
    return isinstance(target, str) and target.startswith(_OURS)


def _is_given(cfg: DictConfig, key: str) -> bool:
    parent, _, name = key.rpartition(".")
    return name in (OmegaConf.select(cfg, parent) or {})


def _check_group(cfg: DictConfig) -> None:
    """Refuses estimators that get no signal from groups of this size, or from chains."""
    advantage, size = cfg.ablation.advantage, build.group_size(cfg)
    target = advantage.get("_target_")
    where = f"rollout.group_size={cfg.rollout.group_size}"
    if target in _K_LIMITS:
        least, left_over = _K_LIMITS[target]
        k = advantage.get("k")
        used = max(2, size // 2) if k is None and target == _MAX_AT_K else k
        if not isinstance(used, int) or not least <= used <= size - left_over:
            raise ConfigError(
                f"ablation.advantage.k={'null' if k is None else k}: it must be from {least} to "
                f"{size - left_over} for {size} rollouts of a prompt ({where}); change one of the "
                "two"
            )
    needed = _LEAST_GROUP.get(target, 1)
    if size < needed:
        raise ConfigError(
            f"{where}: {target.rpartition('.')[2]} compares a rollout with the spread of the "
            f"others and needs at least {needed} rollouts of a prompt"
        )
    if target == _GDPO:
        _check_gdpo(cfg)


def _check_gdpo(cfg: DictConfig) -> None:
    """Refuses what GDPO would not see: it credits the objectives of single answers."""
    if cfg.ablation.prompt.get("m", 1) > 1:
        raise ConfigError(
            f"ablation.prompt.m={cfg.ablation.prompt.m}: gdpo takes one answer per rollout; use "
            "the prompt SingleAnswer or GoalConditioned"
        )
    if tokens := cfg.rollout.get("soft_overlong_tokens", 0):
        raise ConfigError(
            f"rollout.soft_overlong_tokens={tokens}: gdpo credits each objective and never sees "
            "the set reward that this lowers; set it to 0, or ppo.drop_truncated=true"
        )


def _check_lists(cfg: DictConfig, num_objectives: Collection[int]) -> None:
    """Refuses lists that do not hold one number for each objective."""
    for key, is_weight in (
        ("ablation.weights.alpha", False),
        ("ablation.weights.deployment_weights", True),
        ("ablation.weights.weights", True),
        ("ablation.set_reward.floors", False),
    ):
        value = OmegaConf.select(cfg, key)
        if value is None or not _is_ours(cfg, key):
            continue
        if not OmegaConf.is_list(value):
            if is_weight or not is_number(value):
                raise ConfigError(
                    f"{key}={value}: it must be a list with a number for each "
                    "objective" + ("" if is_weight else ", or one number for all")
                )
            continue
        if {len(value)} != set(num_objectives):
            counts = " or ".join(str(count) for count in sorted(num_objectives))
            raise ConfigError(
                f"{key}={value}: it must hold one number for each objective; the prompts have "
                f"{counts} (see reward_vector)"
            )
        if not all(is_number(v) for v in value) or (
            is_weight and (min(value) < 0 or sum(value) <= 0)
        ):
            kind = "numbers that are not negative and not all 0" if is_weight else "numbers"
            raise ConfigError(f"{key}={value}: it must hold {kind}")


def _check_exact(cfg: DictConfig, num_objectives: Collection[int]) -> None:
    if cfg.ablation.set_reward.get("_target_") != _EXACT:
        return
    if max(num_objectives) > _EXACT_OBJECTIVES:
        raise ConfigError(
            f"ablation.set_reward: the exact expectation takes at most {_EXACT_OBJECTIVES} "
            f"objectives, a prompt has {max(num_objectives)}; use ablation=vpo_sobol, or keep "
            "fewer by reward_vector.objectives"
        )
    target = OmegaConf.select(cfg, "ablation.weights._target_")
    if target not in _UNIFORM:
        raise ConfigError(
            f"ablation.weights._target_={target}: the exact expectation is over uniform weights, "
            "whatever is drawn; use ablation=vpo with these weights"
        )
    alpha = OmegaConf.select(cfg, "ablation.weights.alpha", default=1)
    if any(value != 1 for value in (alpha if OmegaConf.is_list(alpha) else [alpha])):
        raise ConfigError(
            f"ablation.weights.alpha={alpha}: the exact expectation is that of alpha=1; use "
            "ablation=vpo or vpo_sobol for another"
        )


def _check_loss(cfg: DictConfig) -> None:
    """Refuses bounds that contradict each other, and losses that the sampler contradicts."""
    surrogate: Any = cfg.loss.get("surrogate") or {}
    if surrogate.get("clip_low", 0) >= 1:
        raise ConfigError(f"loss.surrogate.clip_low={surrogate.clip_low}: it must be below 1")
    least, most = surrogate.get("min_ratio", 0), surrogate.get("max_ratio", math.inf)
    if least > most:
        raise ConfigError(
            f"loss.surrogate.min_ratio={least}: it must not exceed loss.surrogate.max_ratio={most}"
        )
    if cfg.loss.get("aggregation") == "seq_mean_token_sum_norm":
        limit = cfg.loss.get("max_tokens")
        if not is_number(limit) or limit < 1:
            raise ConfigError(
                f"loss.max_tokens={limit}: loss.aggregation=seq_mean_token_sum_norm divides by "
                "the length limit; use loss=dr_grpo, or add "
                "'+loss.max_tokens=${rollout.sampling.max_tokens}'"
            )
    sampling = cfg.rollout.sampling
    is_restricted = sampling.top_p < 1 or sampling.top_k > 0 or sampling.min_p > 0
    if cfg.loss.get("importance_level") is not None and is_restricted:
        raise ConfigError(
            f"loss.importance_level={cfg.loss.importance_level}: with top_p, top_k or min_p the "
            "engine's log-probabilities are those of a smaller support than the policy's; set "
            "loss.importance_level=null, or rollout.sampling.top_p=1 top_k=0 min_p=0"
        )
