"""Every rule across the fields of a config, checked before torch is imported."""

from __future__ import annotations

from omegaconf import DictConfig, OmegaConf

from vpo_lightning import build
from vpo_lightning.engine_choice import check_engine
from vpo_lightning.errors import ConfigError
from vpo_lightning.method_rules import check_method, is_number
from vpo_lightning.task import Objective, Task

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
    "ablation.group_factor": 1,
}
_FRACTIONS = ("loss.kl_coefficient",)
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

# Prompts whose objectives are compared with the config; a task may generate its rows one by one.
_LOOKED_AT = 1000


def check(cfg: DictConfig) -> None:
    """Refuses a config that cannot work, within two seconds and without importing torch.

    Raises:
        ConfigError: Names the key to change.
    """
    for key, least in _LEAST.items():
        value = OmegaConf.select(cfg, key)
        if value is not None and (not is_number(value) or value < least):
            raise ConfigError(f"{key}={value}: it must be at least {least}")
        if isinstance(value, float) and key not in _FRACTIONS:
            raise ConfigError(f"{key}={value}: it must be a whole number")
    for key in _POSITIVE:
        value = OmegaConf.select(cfg, key)
        values = value if OmegaConf.is_list(value) else [value]
        if value is not None and not all(is_number(v) and v > 0 for v in values):
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
    check_engine(cfg)
    processes = cfg.strategy.devices * cfg.strategy.num_nodes * cfg.ppo.minibatches
    prompts = build.prompts_per_step(cfg)
    if prompts % processes:
        raise ConfigError(
            f"rollout.prompts_per_step={cfg.rollout.prompts_per_step}: {prompts} "
            f"prompts cannot be shared equally by {processes} (strategy.devices x num_nodes x "
            f"ppo.minibatches)"
        )
    _check_overlong(cfg)
    task = build.build_task(cfg)
    task.check()
    build.build_scorer(cfg, task)
    build.build_prompt(cfg)
    counts = _numbers_of_objectives(cfg, task)
    check_method(cfg, counts)
    _check_evaluation(cfg, task, counts)
    source = build.build_model_source(cfg)
    source.check()
    if not hasattr(source, "load"):
        task.vocabulary()
        if not cfg.warmup:
            raise ConfigError(
                "warmup=none: a model built from nothing knows nothing; choose a warmup (e.g. "
                "warmup=maze), or a pretrained model"
            )


def _check_overlong(cfg: DictConfig) -> None:
    overlong, limit = cfg.rollout.get("soft_overlong_tokens", 0), cfg.rollout.sampling.max_tokens
    if overlong > limit:
        raise ConfigError(
            f"rollout.soft_overlong_tokens={overlong}: it must not exceed "
            f"rollout.sampling.max_tokens={limit}"
        )


def _numbers_of_objectives(cfg: DictConfig, task: Task) -> set[int]:
    """The different numbers of objectives that the method sees in the first training prompts.

    Raises:
        ConfigError: The reward vector names an objective that a prompt does not have.
    """
    vector, rows = build.build_reward_vector(cfg), task.rows("train")
    seen: dict[tuple[Objective, ...], int] = {}
    for i in range(min(len(rows), _LOOKED_AT)):
        objectives = rows[i].objectives
        if objectives not in seen:
            seen[objectives] = len(vector.select(objectives))
    return set(seen.values())


def _check_evaluation(cfg: DictConfig, task: Task, num_objectives: set[int]) -> None:
    """Refuses figures and weights that the evaluation at the end could not compute or ask for."""
    metrics = cfg.evaluation.metrics
    names = [objective.name for objective in task.rows("train")[0].objectives]
    unknown = sorted(set(metrics.get("cover") or {}) - set(names))
    if unknown and cfg.evaluation.num_prompts:
        raise ConfigError(
            f"evaluation.metrics.cover={unknown}: no such objective; the task has {names} (use "
            "evaluation=default)"
        )
    for key, values in (
        ("ks", metrics.get("ks", [])),
        ("grid_size", [metrics.get("grid_size", 1)]),
    ):
        if not all(isinstance(value, int) and value >= 1 for value in values):
            raise ConfigError(f"evaluation.metrics.{key}={values}: whole numbers from 1 expected")
    _check_stated_weights(cfg, num_objectives)


def _check_stated_weights(cfg: DictConfig, num_objectives: set[int]) -> None:
    given = cfg.evaluation.get("weights", "fixed")
    vectors = OmegaConf.to_container(given) if OmegaConf.is_list(given) else given
    if vectors in ("fixed", "grid"):
        return
    counts = " or ".join(str(count) for count in sorted(num_objectives))
    expected = (
        f"it must be fixed, grid, or a list of at most evaluation.num_answers="
        f"{cfg.evaluation.num_answers} vectors of {counts} weights, one for each objective, not "
        "negative and not all 0"
    )
    if not isinstance(vectors, list) or not 1 <= len(vectors) <= cfg.evaluation.num_answers:
        raise ConfigError(f"evaluation.weights={vectors}: {expected}")
    for vector in vectors:
        is_vector = isinstance(vector, list) and {len(vector)} == num_objectives
        if not is_vector or not all(is_number(v) and v >= 0 for v in vector) or sum(vector) <= 0:
            raise ConfigError(f"evaluation.weights={vectors}: {vector} is wrong; {expected}")
