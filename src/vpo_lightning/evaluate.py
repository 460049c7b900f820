"""vpo-eval: samples pools of answers from a policy and measures what they are worth."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf, open_dict

from vpo_lightning import build, rules
from vpo_lightning.entry import run
from vpo_lightning.errors import ConfigError
from vpo_lightning.evaluated import (
    is_checkpoint,
    load_policy,
    merged_with_run,
    policy_place,
    run_of_checkpoint,
)
from vpo_lightning.evaluation_rules import check_evaluation

if TYPE_CHECKING:
    from vpo_lightning.evaluation.results import Evaluation
    from vpo_lightning.pool_evaluation import Results


def main() -> None:
    """Entry point."""
    sys.exit(run(job, "eval"))


def job(cfg: DictConfig) -> None:
    """Samples what is missing, computes the figures, writes and prints them."""
    if cfg.run is None and cfg.policy is not None and is_checkpoint(str(cfg.policy)):
        cfg.run = str(run_of_checkpoint(str(cfg.policy)))
    if cfg.run is not None:
        cfg = merged_with_run(cfg, HydraConfig.get().overrides.task)
    place = policy_place(cfg) if cfg.sample else str(cfg.policy or "")
    with open_dict(cfg):
        cfg.name = str(cfg.name or _name(place))
    folder = _output(cfg)
    _check(cfg)
    import torch

    if cfg.threads is not None:
        torch.set_num_threads(cfg.threads)
    if cfg.sample:
        _sample(cfg, place, folder)
    from vpo_lightning.pool_evaluation import write_results

    results = write_results(folder, build.build_pool_metrics(cfg), cfg.name, _others(cfg))
    for line in other_prompts(results.compared):
        print(line, file=sys.stderr)
    print(_report(results))
    print(f"results: {folder / 'eval.json'}", flush=True)


def _check(cfg: DictConfig) -> None:
    """Refuses what cannot work, without importing torch."""
    rules.check_ranges(cfg)
    if not isinstance(cfg.sample, bool):
        raise ConfigError(f"sample={cfg.sample}: expected true or false")
    if not OmegaConf.is_list(cfg.compare):
        raise ConfigError(
            f"compare={cfg.compare}: expected a list of folders, e.g. [runs/a,runs/b]"
        )
    if not cfg.sample:
        return
    if cfg.evaluation.num_prompts < 1:
        raise ConfigError("evaluation.num_prompts=0: nothing to evaluate; set it to at least 1")
    task = build.build_task(cfg)
    task.check()
    vector = build.build_reward_vector(cfg)
    check_evaluation(cfg, task, {len(vector.select(task.rows("test")[0].objectives))})


def _sample(cfg: DictConfig, place: str, folder: Path) -> None:
    from transformers.utils import logging

    from vpo_lightning.pool_evaluation import build_sampler, pool_plan, sampled, test_rows
    from vpo_lightning.rollout.pool_runs import sample_pools

    logging.disable_progress_bar()
    task = build.build_task(cfg)
    scorer = build.build_scorer(cfg, task)
    engine, encode, weights = load_policy(cfg, place)
    style, rows, plan = build.build_prompt(cfg), test_rows(cfg, task), pool_plan(cfg)
    started = time.perf_counter()
    try:
        sampler = build_sampler(cfg, task, engine, encode, scorer)
        policy = sampled(cfg, cfg.name, style, weights)
        sample_pools(sampler, policy, rows, plan, folder / "pools", report=_print_progress)
    finally:
        scorer.close()
        engine.close()
    print(f"pools of {len(rows)} prompts in {time.perf_counter() - started:.1f} s", flush=True)


def _print_progress(name: str, done: int, total: int) -> None:
    print(f"{name}: {done} of {total} prompts", flush=True)


def _name(place: str) -> str:
    path = Path(place)
    stem = path.stem if is_checkpoint(place) else path.name
    return stem or "start"


def _output(cfg: DictConfig) -> Path:
    if cfg.output is not None:
        return Path(str(cfg.output)).expanduser()
    if cfg.run is not None:
        return Path(str(cfg.run)).expanduser()
    return Path("outputs") / "eval" / cfg.name


def _others(cfg: DictConfig) -> list[Evaluation]:
    """The evaluations of the folders to compare with, named so that no two rows are alike."""
    from dataclasses import replace

    from vpo_lightning.evaluation.results import read_evaluations

    metrics = build.build_pool_metrics(cfg)
    return [
        replace(evaluation, policy=f"{evaluation.policy} ({Path(str(folder)).name})")
        for folder in cfg.compare
        for evaluation in read_evaluations(Path(str(folder)).expanduser(), metrics)
    ]


def other_prompts(compared: Sequence[tuple[Evaluation, Evaluation]]) -> list[str]:
    """A line for each pair whose pools name different tasks: ids may be equal by chance there."""
    from vpo_lightning.evaluation.pool import read_sampling

    lines: list[str] = []
    for pair in compared:
        tasks = {read_sampling(evaluation.files[0]).get("task") for evaluation in pair} - {None}
        if len(tasks) > 1:
            lines.append(
                f"{pair[1].policy}: its answers were sampled with other settings of task; are "
                "these the same prompts? They are paired by their ids"
            )
    return lines


def _report(results: Results) -> str:
    from vpo_lightning.evaluation.results import mean_table
    from vpo_lightning.evaluation.tables import comparison_table, evaluation_table

    text = evaluation_table(mean_table(results.evaluations))
    return text + ("\n" + comparison_table(results.compared) if results.compared else "")


if __name__ == "__main__":
    main()
