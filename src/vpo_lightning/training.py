"""One run from start to finish: warm-up, training, export, evaluation, summary."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from omegaconf import DictConfig

from vpo_lightning import build
from vpo_lightning.evaluation.pool import PromptPool, write_pools
from vpo_lightning.evaluation.pool_metrics import mean_figures
from vpo_lightning.evaluation.tables import evaluation_table
from vpo_lightning.lightning.callbacks.engine import RolloutEngineCallback
from vpo_lightning.lightning.callbacks.progress import StepProgress
from vpo_lightning.lightning.callbacks.samples import RolloutWriter
from vpo_lightning.lightning.callbacks.stopping import GracefulStop, StepCheckpoint
from vpo_lightning.lightning.loggers import read_metrics, remove_metrics_after
from vpo_lightning.lightning.module import VPOModule
from vpo_lightning.lightning.strategies import build_strategy
from vpo_lightning.policy.export import export_policy
from vpo_lightning.policy.loading import load_model
from vpo_lightning.policy.weights import full_weights, load_full_weights
from vpo_lightning.prompting import PromptStyle, SingleAnswer
from vpo_lightning.rollout.engine import RolloutEngine, SamplingSettings
from vpo_lightning.rollout.pools import PoolSampler
from vpo_lightning.rollout.store import remove_rollouts_from


def train(cfg: DictConfig, folder: Path) -> dict[str, Any]:
    """Trains, evaluates and returns the summary that is also written to ``summary.json``.

    Continues from ``checkpoints/last.ckpt`` if the folder has one.
    """
    started = time.perf_counter()
    L.seed_everything(cfg.seed, verbose=False)
    start = build.start_policy(cfg)
    warmed = time.perf_counter()
    task = build.build_task(cfg)
    encode = build.build_encoder(cfg, start)
    collector = build.build_collector(cfg, task, encode)
    data = build.build_data(cfg, task, collector)
    module = build.build_module(cfg, start)
    engine = RolloutEngineCallback(
        lambda: build.build_engine(cfg, start, str(cast(L.Trainer, trainer).strategy.root_device))
    )
    stop = GracefulStop()
    trainer = _trainer(cfg, folder, stop, engine)
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
        "run": {"name": cfg.name, "seed": cfg.seed, "preset": cfg.preset.name},
        "start_policy": start,
        "seconds": {"warm-up": warmed - started, "training": trained - warmed},
    }
    summary["training"] = _last_figures(folder)
    export_policy(
        cast(torch.nn.Module, module.policy),
        start,
        folder / "policy",
        dtype=getattr(torch, cfg.model.dtype),
        is_writer=trainer.is_global_zero,
    )
    if not stop.is_requested and cfg.evaluation.num_prompts:
        sampler = PoolSampler(
            task,
            cast(RolloutEngine, engine.engine),
            encode,
            cfg.evaluation.num_answers,
            cfg.evaluation.seed,
            build.evaluation_weights(cfg),
            build.build_reward_vector(cfg),
            scorer=collector.scorer,
        )
        summary["evaluation"] = _evaluate(cfg, folder, sampler, module, start, trainer)
        summary["seconds"]["evaluation"] = time.perf_counter() - trained
    engine.close()
    summary["scoring"] = dict(collector.scorer.counters())
    collector.scorer.close()
    if trainer.is_global_zero:
        write_json(summary, folder / "summary.json")
        print(evaluation_table(summary.get("evaluation", {})))
        print(f"results: {folder}", flush=True)
    return summary


def _trainer(cfg: DictConfig, folder: Path, stop: GracefulStop, engine: L.Callback) -> L.Trainer:
    validates = cfg.trainer.validate_every
    callbacks: list[L.Callback] = [
        engine,
        stop,
        RolloutWriter(folder / "rollouts"),
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
        logger=build.build_loggers(cfg, folder),
        callbacks=callbacks,
        use_distributed_sampler=False,
        enable_model_summary=False,
        default_root_dir=folder,
    )


def _forget_unfinished_steps(folder: Path, checkpoint: Path | None) -> None:
    """Removes what was logged after the checkpoint: the resumed run makes those steps again."""
    step = 0
    if checkpoint is not None:
        step = torch.load(checkpoint, map_location="cpu", weights_only=False)["vpo_step"]
    remove_metrics_after(folder, step)
    remove_rollouts_from(folder / "rollouts", step)


def _last_figures(folder: Path, steps: int = 10) -> dict[str, float]:
    """The mean of each metric over the last training steps."""
    path = folder / "metrics.jsonl"
    records = [r for r in read_metrics(folder) if "train/loss" in r] if path.exists() else []
    figures: dict[str, list[float]] = {}
    for record in records[-steps:]:
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
    name = cfg.name
    versions: list[tuple[str, PromptStyle, str]] = [("start", SingleAnswer(), "start, single")]
    if style.num_answers > 1:
        versions.append(("start", style, "start, chains"))
    versions.append(("trained", style, name))
    test = sampler.task.rows("test")
    rows = [test[i] for i in range(min(cfg.evaluation.num_prompts, len(test)))]
    mine = rows[trainer.global_rank :: trainer.world_size]
    metrics = build.build_pool_metrics(cfg)
    results: dict[str, Any] = {}
    loaded = None
    for which, prompt, label in versions:
        if which != loaded:
            sampler.engine.load_weights(_weights(cfg, folder, module, start, which), -1)
            loaded = which
        for temperature in cfg.evaluation.temperatures:
            sampling = SamplingSettings(
                max_tokens=cfg.rollout.sampling.max_tokens,
                temperature=temperature,
                top_p=cfg.evaluation.top_p,
            )
            pools = _gathered(sampler.sample(mine, prompt, sampling), trainer)
            if trainer.is_global_zero:
                stem = label.replace(", ", "_")
                write_pools(pools, folder / "pools" / f"{stem}_T{temperature}.parquet")
            figures = mean_figures([metrics.per_prompt(pool) for pool in pools])
            results.setdefault(f"T={temperature}", {})[label] = figures
    if trainer.is_global_zero:
        write_json(results, folder / "eval.json")
    return results


def _weights(
    cfg: DictConfig, folder: Path, module: VPOModule, start: str, which: str
) -> Iterator[tuple[str, torch.Tensor]]:
    """The weights of the start policy, or of the trained one (last or best)."""
    policy = cast(torch.nn.Module, module.policy)
    if which == "start":
        model = load_model(start, cfg.model.dtype, cfg.model.attention)
        return iter(model.state_dict().items())
    best = folder / "checkpoints" / "best.ckpt"
    if cfg.evaluation.checkpoint == "best" and best.exists():
        state = torch.load(best, map_location="cpu", weights_only=False)["state_dict"]
        load_full_weights(policy, {k.removeprefix("policy."): v for k, v in state.items()})
    return full_weights(policy)


def _gathered(pools: list[PromptPool], trainer: L.Trainer) -> list[PromptPool]:
    """The pools of all processes, in the order of the prompts."""
    if trainer.world_size == 1:
        return pools
    shares: list[Any] = [None] * trainer.world_size
    torch.distributed.all_gather_object(shares, pools)
    longest = max(len(share) for share in shares)
    return [share[i] for i in range(longest) for share in shares if i < len(share)]


def write_json(value: Any, path: Path) -> None:
    """Writes JSON to a temporary name and renames it."""
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
    os.replace(temporary, path)
