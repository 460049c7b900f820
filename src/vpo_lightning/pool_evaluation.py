"""Pools of a policy and their figures: training makes them at its end, vpo-eval at any time."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from vpo_lightning import build
from vpo_lightning.evaluation.files import write_json
from vpo_lightning.evaluation.pool_metrics import PoolMetrics
from vpo_lightning.evaluation.results import (
    Evaluation,
    evaluation_record,
    pairs_with,
    read_evaluations,
)
from vpo_lightning.prompting import PromptStyle, SingleAnswer
from vpo_lightning.rollout.engine import RolloutEngine
from vpo_lightning.rollout.pool_runs import PoolPlan, Sampled
from vpo_lightning.rollout.pools import PoolSampler
from vpo_lightning.scorer import Scorer
from vpo_lightning.task import PromptRow, Task, first_rows

_PIECE = 1 << 16  # bytes from both ends of a weight file that name its content


def build_sampler(
    cfg: DictConfig, task: Task, engine: RolloutEngine, encode: Any, scorer: Scorer
) -> PoolSampler:
    """What samples pools as the config says."""
    return PoolSampler(
        task,
        engine,
        encode,
        cfg.evaluation.num_answers,
        seeds(cfg)[0],
        build.evaluation_weights(cfg),
        build.build_reward_vector(cfg),
        num_tokens=cfg.evaluation.get("num_tokens"),
        scorer=scorer,
    )


def pool_plan(cfg: DictConfig) -> PoolPlan:
    """Temperatures, seeds and sizes of the pools."""
    return PoolPlan(
        [float(temperature) for temperature in cfg.evaluation.temperatures],
        float(cfg.evaluation.top_p),
        cfg.evaluation.get("max_tokens") or cfg.rollout.sampling.max_tokens,
        seeds(cfg),
        int(cfg.evaluation.get("calls_at_a_time", 2048)),
    )


def seeds(cfg: DictConfig) -> list[int]:
    """The seeds of the pools; runs of earlier versions have one."""
    several = cfg.evaluation.get("seeds")
    return [int(seed) for seed in several] if several else [int(cfg.evaluation.seed)]


def test_rows(cfg: DictConfig, task: Task) -> list[PromptRow]:
    """The held-out prompts of the config."""
    return first_rows(task.rows("test"), cfg.evaluation.num_prompts)


def sampled(cfg: DictConfig, policy: str, style: PromptStyle, place: str | Path) -> Sampled:
    """A policy by the weights in `place`, asked in a style."""
    plain = json.dumps(OmegaConf.to_container(cfg.task, resolve=True), sort_keys=True)
    task = hashlib.blake2b(plain.encode(), digest_size=8).hexdigest()
    facts = {"model": fingerprint(place), "task": task}
    if cfg.get("system_prompt") is not None:
        facts["system_prompt"] = str(cfg.system_prompt)
    return Sampled(policy, style, facts)


def fingerprint(place: str | Path) -> str:
    """A name for the weights in a model folder or checkpoint; a Hub id names itself.

    From the sizes and the first and last 64 KiB of the weight files.
    """
    path = Path(place).expanduser()
    files = [path] if path.is_file() else sorted(path.glob("*.safetensors"))
    if not files:
        return str(place)
    digest = hashlib.blake2b(digest_size=8)
    for file in files:
        size = file.stat().st_size
        with file.open("rb") as stream:
            digest.update(str(size).encode() + stream.read(_PIECE))
            stream.seek(max(0, size - _PIECE))
            digest.update(stream.read(_PIECE))
    return digest.hexdigest()


@dataclass(frozen=True)
class Results:
    """The evaluations of a folder, and which of them were compared."""

    evaluations: list[Evaluation]
    compared: list[tuple[Evaluation, Evaluation]]


def write_results(
    folder: Path, metrics: PoolMetrics, policy: str, others: Sequence[Evaluation] = ()
) -> Results:
    """Computes ``eval.json`` from all pools in the folder.

    Args:
        folder: Holds ``pools/``.
        metrics: The figures.
        policy: Compared with every other policy of the folder, and with `others`.
        others: Evaluations of other folders.
    """
    evaluations = sorted(
        read_evaluations(folder, metrics),
        key=lambda e: (e.temperature, e.policy == policy, "chains" in e.policy, e.policy),
    )
    compared = pairs_with(policy, [*evaluations, *others])
    write_json(evaluation_record(evaluations, compared), folder / "eval.json")
    return Results(evaluations, compared)


def start_versions(style: PromptStyle) -> list[tuple[str, PromptStyle]]:
    """The rows of the start policy: single answers, and the style of a method with chains."""
    rows: list[tuple[str, PromptStyle]] = [("start, single", SingleAnswer())]
    return rows + ([("start, chains", style)] if style.num_answers > 1 else [])
