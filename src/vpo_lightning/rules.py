"""Every rule across the fields of a config, checked before torch is imported."""

from __future__ import annotations

import math

from omegaconf import DictConfig, OmegaConf

from vpo_lightning import build
from vpo_lightning.errors import ConfigError

_LEAST: dict[str, float] = {
    "m": 1,
    "ablation.prompt.m": 1,
    "rollout.prompts_per_step": 1,
    "rollout.group_size": 1,
    "rollout.max_prompt_tokens": 1,
    "rollout.sampling.max_tokens": 1,
    "ppo.epochs": 1,
    "ppo.minibatches": 1,
    "ppo.micro_batch_size": 1,
    "trainer.max_steps": 0,
    "trainer.validate_every": 0,
    "trainer.validation_prompts": 0,
    "trainer.checkpoint_every": 1,
    "evaluation.num_prompts": 0,
    "evaluation.num_answers": 1,
    "strategy.devices": 1,
    "strategy.num_nodes": 1,
    "ablation.weights.num_draws": 1,
    "loss.kl_coefficient": 0,
    "rollout.soft_overlong_tokens": 0,
    "rollout.sampling_rounds": 1,
    "ablation.advantage.k": 1,
    "ablation.group_factor": 1,
}
_POSITIVE = (
    "ablation.weights.alpha",
    "trainer.clip_grad_norm",
    "optimizer.build.lr",
    "evaluation.temperatures",
    "rollout.sampling.temperature",
)
_CHOICES = {
    "rollout.overlong_prompts": ("drop", "error"),
    "evaluation.checkpoint": ("last", "best"),
}


def check(cfg: DictConfig) -> None:
    """Refuses a config that cannot work, within two seconds and without importing torch.

    Raises:
        ConfigError: Names the key to change.
    """
    for key, least in _LEAST.items():
        value = OmegaConf.select(cfg, key)
        if value is not None and (not isinstance(value, int | float) or value < least):
            raise ConfigError(f"{key}={value}: it must be at least {least}")
    for key in _POSITIVE:
        value = OmegaConf.select(cfg, key)
        values = value if OmegaConf.is_list(value) else [value]
        if value is not None and not all(isinstance(v, int | float) and v > 0 for v in values):
            raise ConfigError(f"{key}={value}: it must be positive")
    for key, choices in _CHOICES.items():
        value = OmegaConf.select(cfg, key)
        if value is not None and value not in choices:
            raise ConfigError(f"{key}={value}: it must be one of {', '.join(choices)}")
    if cfg.evaluation.num_answers % cfg.m and "m" in cfg.ablation.prompt:
        raise ConfigError(
            f"evaluation.num_answers={cfg.evaluation.num_answers} is not a whole number of chains "
            f"of m={cfg.m} answers; set it to a multiple of m"
        )
    processes = cfg.strategy.devices * cfg.strategy.num_nodes * cfg.ppo.minibatches
    prompts = build.prompts_per_step(cfg)
    if prompts % processes:
        raise ConfigError(
            f"rollout.prompts_per_step={cfg.rollout.prompts_per_step}: {prompts} "
            f"prompts cannot be shared equally by {processes} (strategy.devices x num_nodes x "
            f"ppo.minibatches)"
        )
    _check_method(cfg)
    task = build.build_task(cfg)
    task.check()
    build.build_scorer(cfg, task)
    build.build_prompt(cfg)
    first = task.rows("train")[0]
    kept = build.build_reward_vector(cfg).select(first.objectives)
    _check_stated_weights(cfg, len(kept))
    source = build.build_model_source(cfg)
    source.check()
    if not hasattr(source, "load"):
        task.vocabulary()
        if not cfg.warmup:
            raise ConfigError(
                "warmup=none: a model built from nothing knows nothing; choose a warmup (e.g. "
                "warmup=maze), or a pretrained model"
            )


def _check_method(cfg: DictConfig) -> None:
    """Refuses estimators that a group is too small for, and losses that the sampler contradicts."""
    k = OmegaConf.select(cfg, "ablation.advantage.k")
    if k is not None and k > build.group_size(cfg):
        raise ConfigError(
            f"ablation.advantage.k={k}: best of k needs at least k rollouts per prompt, here "
            f"{build.group_size(cfg)}; lower it or raise rollout.group_size"
        )
    sampling, overlong = cfg.rollout.sampling, cfg.rollout.get("soft_overlong_tokens", 0)
    if overlong > sampling.max_tokens:
        raise ConfigError(
            f"rollout.soft_overlong_tokens={overlong}: it must not exceed "
            f"rollout.sampling.max_tokens={sampling.max_tokens}"
        )
    is_restricted = sampling.top_p < 1 or sampling.top_k > 0 or sampling.min_p > 0
    if cfg.loss.get("importance_level") is not None and is_restricted:
        raise ConfigError(
            f"loss.importance_level={cfg.loss.importance_level}: with top_p, top_k or min_p the "
            "engine's log-probabilities are those of a smaller support than the policy's; set "
            "loss.importance_level=null, or rollout.sampling.top_p=1 top_k=0 min_p=0"
        )


def _check_stated_weights(cfg: DictConfig, num_objectives: int) -> None:
    """Refuses weights that an evaluation cannot ask for."""
    given = cfg.evaluation.get("weights", "fixed")
    vectors = OmegaConf.to_container(given) if OmegaConf.is_list(given) else given
    if vectors in ("fixed", "grid"):
        return
    expected = (
        f"it must be fixed, grid, or a list of at most evaluation.num_answers="
        f"{cfg.evaluation.num_answers} vectors of {num_objectives} weights, one for each "
        "objective, not negative and not all 0"
    )
    if not isinstance(vectors, list) or not 1 <= len(vectors) <= cfg.evaluation.num_answers:
        raise ConfigError(f"evaluation.weights={vectors}: {expected}")
    for vector in vectors:
        is_vector = isinstance(vector, list) and len(vector) == num_objectives
        if not is_vector or not all(_is_weight(value) for value in vector) or sum(vector) <= 0:
            raise ConfigError(f"evaluation.weights={vectors}: {vector} is wrong; {expected}")


def _is_weight(value: object) -> bool:
    return isinstance(value, int | float) and 0 <= value < math.inf
