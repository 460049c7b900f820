"""vpo-diagnose: whether a task's objectives conflict enough for VPO, before anything is trained."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from vpo_lightning import build, rules
from vpo_lightning.deployed import check_model
from vpo_lightning.entry import run
from vpo_lightning.errors import ConfigError
from vpo_lightning.evaluated import load_policy
from vpo_lightning.prompting import MultiAnswer, PromptStyle, SingleAnswer
from vpo_lightning.task import PromptRow, Task, first_rows

if TYPE_CHECKING:
    from vpo_lightning.evaluation.diagnosis import Diagnosis
    from vpo_lightning.evaluation.pool import PromptPool


def main() -> None:
    """Entry point."""
    sys.exit(run(job, "diagnose"))


def job(cfg: DictConfig) -> None:
    """Samples, computes the figures, and prints them with the verdict."""
    task, rows = _checked(cfg)
    import torch

    from vpo_lightning.evaluation.diagnosis import Readability, diagnose, verdict
    from vpo_lightning.evaluation.files import write_json

    if cfg.threads is not None:
        torch.set_num_threads(cfg.threads)
    name = HydraConfig.get().runtime.choices["task"]
    folder = Path(str(cfg.output or f"outputs/diagnose/{name}")).expanduser()
    singles, chains = _sample(cfg, task, rows, folder)
    readable = Readability(
        _parsed(task, singles), _parsed(task, chains), _truncated(singles), _truncated(chains)
    )
    found = diagnose(_as_training_sees(cfg, rows, singles), readable)
    kind, reason = verdict(found, build.build_thresholds(cfg))
    record = {"task": name, "verdict": kind, "reason": reason, "figures": asdict(found)}
    write_json(record, folder / "diagnose.json")
    print(f"{figures_text(found)}\n\n{reason}\nresults: {folder / 'diagnose.json'}", flush=True)


def figures_text(found: Diagnosis) -> str:
    """The figures as lines for the terminal."""
    lines = [
        f"{found.prompts} prompts x {found.answers} answers: {found.parsed:.0%} can be read "
        f"({found.parsed_in_chains:.0%} in chains), {found.truncated:.0%} truncated "
        f"({found.truncated_chains:.0%} of chains)"
    ]
    for one, row in zip(found.objectives, found.correlations or [[]], strict=False):
        others = " ".join(f"{value:+.2f}" for value in row)
        lines.append(
            f"  {one.name:14s} mean {one.mean:.3f}, std {one.std:.3f}, flat on {one.flat:.0%} of "
            f"prompts{_remark(one.mean, one.flat)}; correlations {others}"
        )
    lines.append(
        f"{found.effective_objectives:.2f} effective objectives; answers differ on "
        f"{found.varied:.0%} of prompts, conflict on {found.conflicting:.0%}"
    )
    return "\n".join(lines)


def _remark(mean: float, flat: float) -> str:
    if flat > 0.95:
        return " (constant)"
    return " (saturated)" if mean > 0.95 else " (hardly ever earned)" if mean < 0.05 else ""


def _checked(cfg: DictConfig) -> tuple[Task, list[PromptRow]]:
    """The task and its prompts; refuses what cannot work, without importing torch."""
    rules.check_ranges(cfg)
    build.build_thresholds(cfg)
    for key in ("num_prompts", "num_answers", "m"):
        if not isinstance(cfg[key], int) or cfg[key] < 1:
            raise ConfigError(f"{key}={cfg[key]}: expected a whole number of at least 1")
    if cfg.num_answers % cfg.m or cfg.num_answers < 2:
        raise ConfigError(
            f"num_answers={cfg.num_answers}: expected a multiple of m={cfg.m}, at least 2"
        )
    task = build.build_task(cfg)
    task.check()
    build.build_model_source(cfg).check()
    if cfg.policy is not None:
        check_model(str(cfg.policy))
    return task, first_rows(task.rows(cfg.split), cfg.num_prompts)


def _sample(
    cfg: DictConfig, task: Task, rows: Sequence[PromptRow], folder: Path
) -> tuple[list[PromptPool], list[PromptPool]]:
    """Pools of single answers, and as many answers in chains; resumed where they are on disk."""
    from transformers.utils import logging

    from vpo_lightning.evaluation.pool import read_pools
    from vpo_lightning.pool_evaluation import sampled
    from vpo_lightning.rollout.pool_runs import PoolPlan, sample_pools
    from vpo_lightning.rollout.pools import PoolSampler

    logging.disable_progress_bar()
    scorer = build.build_scorer(cfg, task)
    engine, encode, weights = load_policy(cfg, str(cfg.policy or ""))
    sampler = PoolSampler(task, engine, encode, cfg.num_answers, cfg.seed, scorer=scorer)
    sampling = cfg.rollout.sampling
    plan = PoolPlan([sampling.temperature], sampling.top_p, sampling.max_tokens, [cfg.seed], 2048)
    styles: list[tuple[str, PromptStyle]] = [
        ("single answers", SingleAnswer()),
        ("chains", MultiAnswer(cfg.m)),
    ]
    wanted = {row.id for row in rows}
    pools: list[list[PromptPool]] = []
    try:
        for name, style in styles:
            policy = sampled(cfg, name, style, weights)
            (path,) = sample_pools(sampler, policy, rows, plan, folder / "pools")
            pools.append([pool for pool in read_pools(path) if pool.prompt_id in wanted])
    finally:
        scorer.close()
        engine.close()
    singles, chains = pools
    return singles, chains


def _as_training_sees(
    cfg: DictConfig, rows: Sequence[PromptRow], pools: Sequence[PromptPool]
) -> list[PromptPool]:
    """The pools over the objectives of the reward vector."""
    vector = build.build_reward_vector(cfg)
    by_id = {row.id: row for row in rows}
    seen: list[PromptPool] = []
    for pool in pools:
        declared = by_id[pool.prompt_id].objectives
        names = [objective.name for objective in vector.select(declared)]
        rewards = [vector.apply(declared, chain) for chain in pool.rewards]
        seen.append(replace(pool, objectives=names, rewards=rewards))
    return seen


def _parsed(task: Task, pools: Sequence[PromptPool]) -> float:
    texts = [text for pool in pools for chain in pool.texts for text in chain]
    return sum(text is not None and task.is_parsed(text) for text in texts) / len(texts)


def _truncated(pools: Sequence[PromptPool]) -> float:
    flags = [flag for pool in pools for flag in pool.is_truncated]
    return sum(flags) / len(flags)


if __name__ == "__main__":
    main()
