"""One run from start to finish: warm-up, training, export, evaluation, summary."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from omegaconf import DictConfig

from vpo_lightning import build
from vpo_lightning.evaluation.cost import gain_per_million_tokens, total_cost
from vpo_lightning.evaluation.files import write_json
from vpo_lightning.evaluation.results import mean_table
from vpo_lightning.evaluation.tables import evaluation_table
from vpo_lightning.lightning.callbacks.alarms import TrainingAlarms
from vpo_lightning.lightning.callbacks.cost import StepCost
from vpo_lightning.lightning.callbacks.engine import RolloutEngineCallback
from vpo_lightning.lightning.callbacks.progress import StepProgress
from vpo_lightning.lightning.callbacks.samples import RolloutWriter
from vpo_lightning.lightning.callbacks.stopping import GracefulStop, StepCheckpoint
from vpo_lightning.lightning.loggers import read_metrics, remove_metrics_after
from vpo_lightning.lightning.media import log_media
from vpo_lightning.lightning.module import VPOModule
from vpo_lightning.lightning.strategies import build_strategy
from vpo_lightning.methods import build_method
from vpo_lightning.policy.export import export_policy
from vpo_lightning.policy.loading import load_model
from vpo_lightning.policy.weights import full_weights, load_full_weights, read_checkpoint
from vpo_lightning.pool_evaluation import (
    build_sampler,
    pool_plan,
    sampled,
    start_versions,
    test_rows,
    write_results,
)
from vpo_lightning.rollout.engine import RolloutEngine
from vpo_lightning.rollout.exchange import exchange_between
from vpo_lightning.rollout.pool_runs import sample_pools
from vpo_lightning.rollout.pools import PoolSampler
from vpo_lightning.rollout.rehearsal import rehearse
from vpo_lightning.rollout.store import remove_rollouts_from
from vpo_lightning.run_loggers import build_loggers
from vpo_lightning.task import Task


def train(cfg: DictConfig, folder: Path) -> dict[str, Any]:
    """Trains, evaluates and returns the summary that is also written to ``summary.json``.

    Continues from ``checkpoints/last.ckpt`` if the folder has one.
    """
    started = time.perf_counter()
    L.seed_everything(cfg.seed, verbose=False)
    task = build.build_task(cfg)
    _rehearse(cfg, task)
    start = build.start_policy(cfg)
    warmed = time.perf_counter()
    encode = build.build_encoder(cfg, start)
    collector = build.build_collector(cfg, task, encode)
    data = build.build_data(cfg, task, collector)
    module = build.build_module(cfg, start)
    engine = RolloutEngineCallback(
        lambda: build.build_engine(cfg, start, str(cast(L.Trainer, trainer).strategy.root_device)),
        build.build_handover(cfg),
    )
    stop = GracefulStop()
    objectives = [objective.name for objective in task.rows("train")[0].objectives]
    alarms = TrainingAlarms(folder, objectives, build.build_alarm_thresholds(cfg))
    trainer = _trainer(cfg, folder, stop, [engine, alarms])
    checkpoint = folder / "checkpoints" / "last.ckpt"
    resumes = checkpoint.exists()
    if trainer.is_global_zero:
        _forget_unfinished_steps(folder, checkpoint if resumes else None)
    trainer.fit(
        module, datamodule=data, ckpt_path=str(checkpoint) if resumes else None, weights_only=False
    )
    trained = time.perf_counter()
    summary: dict[str, Any] = {
        "status": "stopped" if stop.is_requested else "finished",
        "steps": module.step,
        "run": {
            "name": cfg.name,
            "seed": cfg.seed,
            "preset": cfg.preset.name,
            "engine": cfg.engine._target_,
        },
        "start_policy": start,
        "seconds": {"warm-up": warmed - started, "training": trained - warmed},
    }
    summary["objectives"] = objectives
    summary["alarms"] = [asdict(alarm) for alarm in alarms.alarms]
    if trainer.is_global_zero:  # only this process knows that its records are written
        records = read_metrics(folder) if module.step else []
        summary["training"] = _last_figures(records)
        summary["cost"] = total_cost(records)
    export_policy(
        cast(torch.nn.Module, module.policy),
        start,
        folder / "policy",
        dtype=getattr(torch, cfg.model.dtype),
        is_writer=trainer.is_global_zero,
        trust_remote_code=build.trusts_code(cfg),
    )
    if not stop.is_requested and cfg.evaluation.num_prompts:
        sampler = build_sampler(
            cfg, task, cast(RolloutEngine, engine.engine), encode, collector.scorer
        )
        summary["evaluation"] = _evaluate(cfg, folder, sampler, module, start, trainer)
        summary["seconds"]["evaluation"] = time.perf_counter() - trained
        if trainer.is_global_zero:
            summary["cost"]["gain_per_million_tokens"] = _gain(cfg, summary)
    engine.close()
    summary["scoring"] = dict(collector.scorer.counters())
    collector.scorer.close()
    if trainer.is_global_zero:
        write_json(summary, folder / "summary.json")
        log_media(trainer.loggers, folder)
        print(evaluation_table(summary.get("evaluation", {})))
        print(f"results: {folder}", flush=True)
    return summary


def _rehearse(cfg: DictConfig, task: Task) -> None:
    """Tries the method on random rewards for the first prompts: an error need not wait longer."""
    vector, rows = build.build_reward_vector(cfg), task.rows("train")
    first = [vector.select(rows[i].objectives) for i in range(min(8, len(rows)))]
    rehearse(build_method(cfg.ablation, vector), first, build.group_size(cfg))


def _trainer(
    cfg: DictConfig, folder: Path, stop: GracefulStop, others: Sequence[L.Callback]
) -> L.Trainer:
    validates = cfg.trainer.validate_every
    callbacks: list[L.Callback] = [
        *others,
        stop,
        RolloutWriter(folder / "rollouts"),
        StepCost(),
        StepProgress(cfg.trainer.max_steps),
        StepCheckpoint(folder / "checkpoints", cfg.trainer.checkpoint_every, stop),
    ]
    if validates:
        best = ModelCheckpoint(
            folder / "checkpoints",
            filename="best",
            monitor=cfg.trainer.best_metric,
            mode="max",
            save_top_k=1,
            every_n_epochs=validates,
            save_on_train_epoch_end=True,
            enable_version_counter=False,
        )
        callbacks.append(best)
    return L.Trainer(
        max_epochs=cfg.trainer.max_steps,
        accelerator=cfg.strategy.accelerator,
        devices=cfg.strategy.devices,
        num_nodes=cfg.strategy.num_nodes,
        strategy=build_strategy(
            cfg.strategy.strategy, cfg.strategy.devices * cfg.strategy.num_nodes
        ),
        accumulate_grad_batches=build.accumulation(cfg),
        gradient_clip_val=cfg.trainer.clip_grad_norm,
        check_val_every_n_epoch=validates or None,
        limit_val_batches=1.0 if validates else 0,
        num_sanity_val_steps=0,
        log_every_n_steps=1,
        logger=build_loggers(cfg, folder),
        callbacks=callbacks,
        use_distributed_sampler=False,
        enable_model_summary=False,
        default_root_dir=folder,
    )


def _forget_unfinished_steps(folder: Path, checkpoint: Path | None) -> None:
    """Removes what was logged after the checkpoint: the resumed run makes those steps again."""
    step = 0
    if checkpoint is not None:
        step = read_checkpoint(checkpoint)["vpo_step"]
    remove_metrics_after(folder, step)
    remove_rollouts_from(folder / "rollouts", step)


def _last_figures(records: Sequence[Mapping[str, Any]], steps: int = 10) -> dict[str, float]:
    """The mean of each metric over the last training steps."""
    figures: dict[str, list[float]] = {}
    for record in [r for r in records if "train/loss" in r][-steps:]:
        for key, value in record.items():
            if key != "step":
                figures.setdefault(key, []).append(value)
    return {key: sum(values) / len(values) for key, values in figures.items()}


def _evaluate(
    cfg: DictConfig,
    folder: Path,
    sampler: PoolSampler,
    module: VPOModule,
    start: str,
    trainer: L.Trainer,
) -> dict[str, Any]:
    """The figures of start and trained policy at each temperature, by row of the final table."""
    style = build.build_prompt(cfg)
    best = folder / "checkpoints" / "best.ckpt"
    uses_best = cfg.evaluation.checkpoint == "best" and best.exists()
    trained = best if uses_best else folder / "policy"
    rows, plan = test_rows(cfg, sampler.task), pool_plan(cfg)
    versions = [(start, name, asked) for name, asked in start_versions(style)]
    loaded = None
    for place, name, asked in [*versions, (trained, cfg.name, style)]:
        if place != loaded:
            weights = _start_weights(cfg, start) if place == start else _weights(module, place)
            sampler.engine.load_weights(weights, -1)
            loaded = place
        policy = sampled(cfg, name, asked, place)
        exchange = exchange_between(trainer.global_rank, trainer.world_size)
        sample_pools(sampler, policy, rows, plan, folder / "pools", exchange, replaces=True)
    if not trainer.is_global_zero:
        return {}
    results = write_results(folder, build.build_pool_metrics(cfg), cfg.name)
    return mean_table(results.evaluations)


def _gain(cfg: DictConfig, summary: Mapping[str, Any]) -> dict[str, float]:
    """What training gained at the headline temperature for each 10^6 tokens it generated."""
    rows = summary["evaluation"].get(f"T={float(cfg.evaluation.temperatures[0])}")
    if not rows:
        return {}
    tokens = summary["cost"]["generated_tokens"]
    return gain_per_million_tokens(rows[cfg.name], rows["start, single"], tokens)


def _start_weights(cfg: DictConfig, start: str) -> Iterator[tuple[str, torch.Tensor]]:
    """The weights of the start policy."""
    model = load_model(
        start, cfg.model.dtype, cfg.model.attention, trust_remote_code=build.trusts_code(cfg)
    )
    yield from model.state_dict().items()


def _weights(module: VPOModule, place: str | Path) -> Iterator[tuple[str, torch.Tensor]]:
    """The weights of the trained policy; those of a checkpoint are put into it before."""
    policy = cast(torch.nn.Module, module.policy)
    if str(place).endswith(".ckpt"):
        state = torch.load(place, map_location="cpu", weights_only=False)["state_dict"]
        load_full_weights(policy, {k.removeprefix("policy."): v for k, v in state.items()})
    return full_weights(policy)
