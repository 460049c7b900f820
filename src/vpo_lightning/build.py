"""From a resolved config to objects; methods and loggers have modules of their own."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from vpo_lightning.engine_choice import choose_engine
from vpo_lightning.methods import build_method
from vpo_lightning.policy.loading import CHAT_TEMPLATE_KWARGS
from vpo_lightning.prompting import PromptStyle
from vpo_lightning.scorer import Scorer, ScoringSettings
from vpo_lightning.scoring import RewardVector
from vpo_lightning.scoring_pool import ScoringPool
from vpo_lightning.task import PromptRow, Task

if TYPE_CHECKING:
    from vpo_lightning.evaluation.alarms import AlarmThresholds
    from vpo_lightning.evaluation.diagnosis import VerdictThresholds
    from vpo_lightning.evaluation.pool_metrics import PoolMetrics
    from vpo_lightning.lightning.datamodule import RolloutDataModule
    from vpo_lightning.lightning.module import VPOModule
    from vpo_lightning.rollout.collector import RolloutCollector
    from vpo_lightning.rollout.engine import RolloutEngine
    from vpo_lightning.rollout.handover import HandoverSettings


def build_task(cfg: DictConfig) -> Task:
    """The task."""
    return instantiate(cfg.task)


def build_scorer(cfg: DictConfig, task: Task) -> Scorer:
    """What scores answers: in this process, or in others that are told the task's config."""
    settings: ScoringSettings = instantiate(cfg.scoring) if "scoring" in cfg else ScoringSettings()
    return Scorer(task, settings, build_judges(cfg, task))


def build_judges(cfg: DictConfig, task: Task) -> ScoringPool | None:
    """The processes that score, told the task's config; None to score in this process."""
    settings: ScoringSettings = instantiate(cfg.scoring) if "scoring" in cfg else ScoringSettings()
    workers = settings.num_workers(task)
    if not workers:
        return None
    plain: Any = OmegaConf.to_container(cfg.task, resolve=True)
    return ScoringPool(plain, workers, settings.deadline, explain=settings.explain)


def build_prompt(cfg: DictConfig) -> PromptStyle:
    """The method's prompt style."""
    return instantiate(cfg.ablation.prompt)


def build_reward_vector(cfg: DictConfig) -> RewardVector:
    """The reward vector that the method sees."""
    plain = OmegaConf.to_container(cfg.reward_vector, resolve=True)
    return instantiate(plain)


def prompts_per_step(cfg: DictConfig) -> int:
    """B over all processes: a single-answer method takes m times as many under preset=matched.

    A method that takes more rollouts of each prompt instead (`ablation.group_factor`) takes none.
    """
    is_single = "m" not in cfg.ablation.prompt and "group_factor" not in cfg.ablation
    factor = cfg.m if cfg.preset.match_rollout_tokens and is_single else 1
    return cfg.rollout.prompts_per_step * factor


def group_size(cfg: DictConfig) -> int:
    """G: the rollouts of one prompt, times `ablation.group_factor` where a method has one."""
    return cfg.rollout.group_size * cfg.ablation.get("group_factor", 1)


def accumulation(cfg: DictConfig) -> int:
    """Micro-batches of one optimizer step on each process."""
    processes = cfg.strategy.devices * cfg.strategy.num_nodes
    return instantiate(cfg.ppo).accumulation(prompts_per_step(cfg) * group_size(cfg) // processes)


def cache_folder(cfg: DictConfig) -> Path:
    """Where warm-ups are cached."""
    if cfg.cache_dir is None:
        return Path.home() / ".cache" / "vpo-lightning"
    return Path(str(cfg.cache_dir)).expanduser()


def start_policy(cfg: DictConfig) -> str:
    """The model folder (or Hub id) training starts from; trains the warm-up if it is not cached."""
    from vpo_lightning.policy.warmup import cached_warmup

    task, source = build_task(cfg), build_model_source(cfg)

    def build() -> Any:
        if hasattr(source, "load"):
            return source.load()
        return source.build(task.vocabulary(), seed=settings.seed)

    if not cfg.warmup:
        return source.path
    settings = replace(instantiate(cfg.warmup), encoding=chat_settings(cfg))
    key = {
        "task": OmegaConf.to_container(cfg.task, resolve=True),
        "model": source.key(),
        "warmup": settings.key(),
    }
    folder = cached_warmup(cache_folder(cfg) / "warmup", key, build, task, settings)
    return str(folder)


def build_encoder(cfg: DictConfig, folder: str) -> Callable[[list[dict[str, str]]], list[int]]:
    """Chat messages to token ids."""
    from vpo_lightning.policy.loading import encode_messages, load_tokenizer

    tokenizer = load_tokenizer(folder, trust_remote_code=trusts_code(cfg))
    settings = chat_settings(cfg)
    return lambda messages: encode_messages(tokenizer, messages, **settings)


def chat_settings(cfg: DictConfig) -> dict[str, Any]:
    """What decides beside the tokenizer how messages become a prompt, in all uses of a policy."""
    is_pretrained = OmegaConf.select(cfg, "model.path") is not None
    otherwise = dict(CHAT_TEMPLATE_KWARGS) if is_pretrained else None
    found = {
        "chat_template_kwargs": OmegaConf.select(
            cfg, "model.chat_template_kwargs", default=otherwise
        ),
        "system_prompt": cfg.get("system_prompt"),
    }
    plain = OmegaConf.to_container(OmegaConf.create(found), resolve=True)
    return {str(name): value for name, value in dict(plain).items() if value}  # type: ignore[arg-type]


def build_model_source(cfg: DictConfig) -> Any:
    """What the policy is made from: a pretrained model, or sizes of one built from nothing."""
    return instantiate(cfg.model)


def trusts_code(cfg: DictConfig) -> bool:
    """Whether to run Python code that the model's author put beside the weights."""
    return bool(OmegaConf.select(cfg, "model.trust_remote_code"))


def build_engine(cfg: DictConfig, folder: str, device: str) -> RolloutEngine:
    """The rollout engine with the start policy's weights."""
    chosen = choose_engine(cfg, device)
    if chosen:
        print(chosen, flush=True)
    return instantiate(cfg.engine)(
        folder, dtype=cfg.model.dtype, device=device, trust_remote_code=trusts_code(cfg)
    )


def build_handover(cfg: DictConfig) -> HandoverSettings:
    """The limits of handing weights to the engine."""
    from vpo_lightning.rollout.handover import HandoverSettings

    return instantiate(cfg.rollout.handover) if "handover" in cfg.rollout else HandoverSettings()


def build_collector(
    cfg: DictConfig, task: Task, encode: Callable[[list[dict[str, str]]], list[int]]
) -> RolloutCollector:
    """The collector; its engine is set once training has set up its processes."""
    from vpo_lightning.rollout.collector import RolloutCollector

    return RolloutCollector(
        task=task,
        method=build_method(cfg.ablation, build_reward_vector(cfg)),
        encode=encode,
        sampling=instantiate(cfg.rollout.sampling),
        group_size=group_size(cfg),
        seed=cfg.seed,
        soft_overlong_tokens=cfg.rollout.get("soft_overlong_tokens", 0),
        scorer=build_scorer(cfg, task),
    )


def build_data(cfg: DictConfig, task: Task, collector: RolloutCollector) -> RolloutDataModule:
    """The data module over the task's train split, with validation prompts of its test split."""
    from vpo_lightning.lightning.datamodule import RolloutDataModule
    from vpo_lightning.rollout.prompts import PromptStream

    def num_tokens(row: PromptRow) -> int:
        return len(collector.encode_row(row))

    prompts = PromptStream(
        task.rows("train"),
        cfg.seed,
        num_tokens,
        cfg.rollout.max_prompt_tokens,
        cfg.rollout.overlong_prompts,
    )
    test = task.rows("test")
    count = min(cfg.trainer.validation_prompts, len(test)) if cfg.trainer.validate_every else 0
    validation = [test[i] for i in range(len(test) - count, len(test))]
    return RolloutDataModule(
        collector,
        prompts,
        validation,
        prompts_per_step(cfg),
        instantiate(cfg.ppo),
        sampling_rounds=cfg.rollout.get("sampling_rounds", 1),
        staleness=cfg.rollout.get("staleness", 0),
    )


def build_module(cfg: DictConfig, folder: str) -> VPOModule:
    """The Lightning module around the start policy."""
    import torch

    from vpo_lightning.lightning.module import OptimizerSettings, VPOModule
    from vpo_lightning.policy.logprobs import Logprobs
    from vpo_lightning.policy.start import load_start_policy

    plan, source = instantiate(cfg.ppo), build_model_source(cfg)
    is_sharded = cfg.strategy.strategy == "fsdp"
    logprobs = Logprobs(
        temperature=cfg.rollout.sampling.temperature,
        share_prompts=plan.share_prompts and not (source.gradient_checkpointing or is_sharded),
        dtype=getattr(torch, source.dtype),
    )
    return VPOModule(
        functools.partial(load_start_policy, folder, source, cfg.seed),
        instantiate(cfg.loss),
        OptimizerSettings(instantiate(cfg.optimizer.build), cfg.optimizer.warmup_steps),
        logprobs=logprobs,
        is_single_update=plan.is_single_update,
        seed=cfg.seed,
        staleness=cfg.rollout.get("staleness", 0),
    )


def evaluation_weights(cfg: DictConfig) -> Any:
    """What goal-conditioned prompts are asked with in evaluation: fixed, grid or weight vectors."""
    given = cfg.evaluation.get("weights", "fixed")
    return given if isinstance(given, str) else [[float(v) for v in vector] for vector in given]


def build_alarm_thresholds(cfg: DictConfig) -> AlarmThresholds:
    """When training warns; runs of earlier versions say nothing about it."""
    from vpo_lightning.evaluation.alarms import AlarmThresholds

    return instantiate(cfg.alarms) if "alarms" in cfg else AlarmThresholds()


def build_thresholds(cfg: DictConfig) -> VerdictThresholds:
    """Where the verdicts of a diagnosis begin."""
    return instantiate(cfg.thresholds)


def build_pool_metrics(cfg: DictConfig) -> PoolMetrics:
    """Which figures are computed from evaluation pools."""
    plain = OmegaConf.to_container(cfg.evaluation.metrics, resolve=True)
    return instantiate(plain)


def build_search(node: DictConfig) -> Any:
    """A search with its settings, or another component of vpo-search, from its config node."""
    return instantiate(OmegaConf.to_container(node, resolve=True))
