"""Every rule across the fields of a config, checked before torch is imported."""

from __future__ import annotations

from omegaconf import DictConfig, OmegaConf

from vpo_lightning import build
from vpo_lightning.engine_choice import check_engine
from vpo_lightning.errors import ConfigError
from vpo_lightning.evaluation_rules import check_evaluation
from vpo_lightning.method_rules import check_method, is_number
from vpo_lightning.task import Objective, Task

_LEAST: dict[str, float] = {
    "seed": 0,
    "threads": 1,
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
    "evaluation.num_tokens": 1,
    "evaluation.calls_at_a_time": 1,
    "strategy.devices": 1,
    "strategy.num_nodes": 1,
    "ablation.weights.num_draws": 1,
    "loss.kl_coefficient": 0,
    "rollout.soft_overlong_tokens": 0,
    "rollout.sampling_rounds": 1,
    "ablation.group_factor": 1,
    "report_rollouts": 0,
    "optimizer.warmup_steps": 0,
    "warmup.steps": 1,
    "warmup.prompts_per_step": 1,
    "warmup.singles": 0,
    "warmup.chains": 0,
    "warmup.ramp_steps": 0,
    "warmup.seed": 0,
}
_FRACTIONS = ("loss.kl_coefficient",)
_POSITIVE = (
    "ablation.weights.alpha",
    "trainer.clip_grad_norm",
    "optimizer.build.lr",
    "warmup.learning_rate",
    "evaluation.temperatures",
    "rollout.sampling.temperature",
)
_CHOICES = {
    "rollout.staleness": (0, 1),
    "strategy.strategy": ("auto", "ddp", "fsdp"),
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
    check_ranges(cfg)
    check_engine(cfg)
    build.build_handover(cfg)
    processes = cfg.strategy.devices * cfg.strategy.num_nodes * cfg.ppo.minibatches
    prompts = build.prompts_per_step(cfg)
    if prompts % processes:
        raise ConfigError(
            f"rollout.prompts_per_step={cfg.rollout.prompts_per_step}: {prompts} "
            f"prompts cannot be shared equally by {processes} (strategy.devices x num_nodes x "
            f"ppo.minibatches)"
        )
    _check_overlong(cfg)
    _check_staleness(cfg)
    task = build.build_task(cfg)
    task.check()
    build.build_scorer(cfg, task)
    build.build_prompt(cfg)
    counts = _numbers_of_objectives(cfg, task)
    check_method(cfg, counts)
    _check_validation(cfg, task)
    check_evaluation(cfg, task, counts)
    source = build.build_model_source(cfg)
    source.check()
    if not hasattr(source, "load"):
        task.vocabulary()
        if not cfg.warmup:
            raise ConfigError(
                "warmup=none: a model built from nothing knows nothing; choose a warmup (e.g. "
                "warmup=maze), or a pretrained model"
            )


def check_ranges(cfg: DictConfig) -> None:
    """Refuses single values that cannot work; keys that the config does not have are left alone.

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
            raise ConfigError(f"{key}={value}: it must be one of {', '.join(map(str, choices))}")


def _check_overlong(cfg: DictConfig) -> None:
    overlong, limit = cfg.rollout.get("soft_overlong_tokens", 0), cfg.rollout.sampling.max_tokens
    if overlong > limit:
        raise ConfigError(
            f"rollout.soft_overlong_tokens={overlong}: it must not exceed "
            f"rollout.sampling.max_tokens={limit}"
        )


def _check_staleness(cfg: DictConfig) -> None:
    """Refuses what sampling during the update contradicts."""
    if not cfg.rollout.get("staleness", 0):
        return
    lora = OmegaConf.select(cfg, "model.lora.dropout")
    for is_wrong, what in (
        (
            cfg.loss.get("importance_level") is None,
            "loss.importance_level=null would take rollouts of older weights for the policy's own; "
            "set loss=importance",
        ),
        (
            cfg.rollout.get("sampling_rounds", 1) > 1,
            "rollout.sampling_rounds sees advantages before it samples again; set it to 1",
        ),
        (
            cfg.engine.get("_target_", "").endswith("ReplayEngine"),
            "engine=replay finds rollouts by the version of the policy; choose another engine",
        ),
        (
            cfg.engine.get("tensor_parallel_size", 1) > 1,
            "an engine of several processes would exchange data during the update; set "
            "engine.tensor_parallel_size=1, or engine=vllm_server",
        ),
        (
            bool(lora) and OmegaConf.select(cfg, "model.lora.rank") > 0,
            "dropout would share its random numbers with sampling; set model.lora.dropout=0",
        ),
    ):
        if is_wrong:
            raise ConfigError(f"rollout.staleness={cfg.rollout.staleness}: {what}")


def _check_validation(cfg: DictConfig, task: Task) -> None:
    """Refuses processes without a validation prompt: all of them log the figures together."""
    if not cfg.trainer.validate_every:
        return
    processes = cfg.strategy.devices * cfg.strategy.num_nodes
    prompts = min(cfg.trainer.validation_prompts, len(task.rows("test")))
    if 0 < prompts < processes:
        raise ConfigError(
            f"trainer.validation_prompts={cfg.trainer.validation_prompts}: {prompts} for "
            f"{processes} processes (strategy.devices x strategy.num_nodes); give each of them at "
            "least one, or set trainer.validate_every=0"
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
