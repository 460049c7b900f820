"""Run folders made in seconds by the writers that training uses."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from random import Random
from typing import Any

from omegaconf import OmegaConf

from tests.rollout.scripted import ScriptedEngine, vpo
from vpo_lightning.core.advantages import group_normalized
from vpo_lightning.core.scalarization import set_reward
from vpo_lightning.evaluation.files import write_json
from vpo_lightning.evaluation.pool import PromptPool, write_pools
from vpo_lightning.evaluation.pool_metrics import PoolMetrics
from vpo_lightning.evaluation.pool_store import pool_name
from vpo_lightning.evaluation.results import (
    evaluation_record,
    mean_table,
    read_evaluations,
)
from vpo_lightning.lightning.loggers import FileLogger, read_metrics
from vpo_lightning.prompting import MultiAnswer, PromptStyle, SingleAnswer
from vpo_lightning.rollout.collector import RolloutCollector
from vpo_lightning.rollout.credit import Method
from vpo_lightning.rollout.engine import SamplingSettings
from vpo_lightning.rollout.store import write_rollouts
from vpo_lightning.scoring import RewardVector
from vpo_lightning.task import PromptRow, Task
from vpo_lightning.tasks.maze.demonstrations import RouteMix
from vpo_lightning.tasks.maze.task import MazeTask

MAZE = {
    "_target_": "vpo_lightning.tasks.maze.task.MazeTask",
    "size": 5,
    "style": "compact",
    "answers": "cells",
    "train_rows": 64,
    "test_rows": 8,
}
NUM_ANSWERS = 6  # of a pool


def config(name: str, seed: int, task: dict[str, Any], m: int = 3) -> dict[str, Any]:
    """The part of a resolved config that a report reads."""
    prompt = {"_target_": "vpo_lightning.prompting.MultiAnswer", "m": m}
    single = {"_target_": "vpo_lightning.prompting.SingleAnswer"}
    return {
        "name": name,
        "seed": seed,
        "m": 3,
        "task": task,
        "model": {"_target_": "vpo_lightning.policy.scratch.ScratchModel"},
        "preset": {"name": "matched"},
        "ablation": {"prompt": prompt if m > 1 else single},
        "evaluation": {"num_prompts": 8, "metrics": {"deployed_answers": 3}},
    }


def write_maze_run(
    folder: Path, name: str = "vpo", seed: int = 0, steps: int = 6, *, evaluates: bool = True
) -> Path:
    """A run on mazes whose answers are demonstrations: chains of 3 for vpo, else single ones."""
    task = MazeTask(**{key: value for key, value in MAZE.items() if key != "_target_"})
    style = MultiAnswer(3) if name.startswith("vpo") else SingleAnswer()
    rng = Random(f"{name}{seed}")
    sides = RouteMix(direct=0.0, detour_probabilities=(0.0,), avoid_lava=1.0)
    mix = sides if name.startswith("vpo") else RouteMix(gold=0.0)
    write_run(folder, config(name, seed, MAZE, style.num_answers), task, style, mix, rng, steps)
    if evaluates:
        for policy, own in (("start, single", SingleAnswer()), (name, style)):
            pools = [_pool(task, row, own, mix, rng) for row in task.rows("test")]
            write_pools(
                pools,
                folder / "pools" / pool_name(policy, 0.7),
                {"policy": policy, "temperature": 0.7},
            )
        write_evaluation(folder)
    write_summary(folder)
    return folder


def write_run(
    folder: Path,
    cfg: dict[str, Any],
    task: Task,
    style: PromptStyle,
    answer: Any,
    rng: Random,
    steps: int,
    prompts: int = 4,
    group_size: int = 4,
) -> None:
    """config.yaml, rollouts and metrics.jsonl; `answer(row, rng)` gives the text of one answer."""
    folder.mkdir(parents=True)
    OmegaConf.save(OmegaConf.create(cfg), folder / "config.yaml")
    logger = FileLogger(folder)
    rows = task.rows("train")
    for step in range(steps):
        chosen = [rows[(step * prompts + i) % len(rows)] for i in range(prompts)]
        texts = {row.id: _completions(task, row, style, answer, rng, group_size) for row in chosen}
        collector = RolloutCollector(
            task=task,
            method=vpo(style) if style.num_answers > 1 else _grpo(style),
            encode=lambda messages: [7] * (len(messages[-1]["content"]) % 5 + 1),
            sampling=SamplingSettings(max_tokens=8),
            group_size=group_size,
            seed=3,
        )
        collector.engine = ScriptedEngine(texts)
        batch = collector.collect(chosen, step)
        write_rollouts(batch, folder / "rollouts")
        timings = {"time/step": 1.0, "time/generate": 0.4, "time/forward": 0.3}
        learning = {"train/loss": 0.1, "train/kl": 0.01 * step, "train/grad_norm": 0.5}
        logger.log_metrics({**batch.metrics, **timings, **learning}, step + 1)


def write_evaluation(folder: Path) -> None:
    """eval.json from the pools."""
    evaluations = read_evaluations(folder, PoolMetrics(ks=(1, 3, 6)))
    write_json(evaluation_record(evaluations, []), folder / "eval.json")


def write_summary(folder: Path, status: str = "finished") -> None:
    """summary.json as training writes it, of what is in the folder."""
    cfg: Any = OmegaConf.load(folder / "config.yaml")
    records = read_metrics(folder)
    summary: dict[str, Any] = {
        "status": status,
        "steps": len(records),
        "run": {"name": cfg.name, "seed": cfg.seed, "preset": "matched"},
        "start_policy": "start",
        "seconds": {"training": 5.0},
        "alarms": [],
        "cost": {"generated_tokens": 1234, "device_hours": 0.01, "process_mib": 500.0},
    }
    if (folder / "eval.json").exists():
        summary["evaluation"] = mean_table(read_evaluations(folder, PoolMetrics(ks=(1, 3, 6))))
    write_json(summary, folder / "summary.json")


def write_text_run(folder: Path, texts: Sequence[str], **changes: Any) -> Path:
    """A run of `tests.task_layer.toy.VectorTask` whose completions are these texts."""
    from tests.task_layer.toy import VectorTask

    target = {"_target_": "tests.task_layer.toy.VectorTask"}
    cfg = {**config("vpo", 0, target, 2), **changes}
    made = cycle(texts)

    def answer(row: PromptRow, rng: Random) -> str:
        del row, rng
        return next(made)

    write_run(folder, cfg, VectorTask(), MultiAnswer(2), answer, Random(0), 3, 1, len(texts))
    write_summary(folder)
    return folder


def write_search(folder: Path, name: str, solved: Sequence[str], policy_name: str = "vpo") -> None:
    """What a search leaves in a folder that is named for it, as docs/search.md has it."""
    points = [
        {"budget": budget, "best": {"mean": budget / 40, "low": budget / 50, "high": budget / 30}}
        for budget in (3, 9, 30)
    ]
    result = {
        "format": 1,
        "name": name,
        "policy_name": policy_name,
        "status": "finished",
        "figures": ["best"],
        "spent": {
            **{"calls": 10, "answers": 30, "prompt_tokens": 500, "completion_tokens": 400},
            "judge_tokens": 100,
        },
        "failures": {"timeout": 1, "crash": 0},
        "prompts": [{"id": f"test-{i}", "solved": f"test-{i}" in solved} for i in range(4)],
        "curves": dict.fromkeys(("answers", "calls", "tokens", "seconds"), points),
    }
    path = folder / "search" / name / "result.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(result))
    path.with_name("config.yaml").write_text(f"name: {name}\n")
    path.with_name("events.jsonl").write_text("{}\n")


def _grpo(style: PromptStyle) -> Method:
    return Method(
        prompt=style,
        weights=None,
        set_reward=set_reward,
        advantage=group_normalized,
        reward_vector=RewardVector(),
    )


def _completions(
    task: Task, row: PromptRow, style: PromptStyle, answer: Any, rng: Random, count: int
) -> list[str]:
    return [
        style.render(task, [answer(row, rng) for _ in range(style.num_answers)])
        for _ in range(count)
    ]


def _pool(task: Task, row: PromptRow, style: PromptStyle, answer: Any, rng: Random) -> PromptPool:
    m = style.num_answers
    texts = [[answer(row, rng) for _ in range(m)] for _ in range(NUM_ANSWERS // m)]
    return PromptPool(
        prompt_id=row.id,
        objectives=[objective.name for objective in row.objectives],
        importance=[objective.weight for objective in row.objectives],
        rewards=[[task.score(text, row) for text in chain] for chain in texts],
        texts=[list(chain) for chain in texts],
        tokens=[10 * m] * len(texts),
        is_truncated=[False] * len(texts),
        prompt_tokens=12,
    )
