"""Runs side by side on the same prompts: means, and paired differences with intervals.

A difference is taken prompt by prompt between runs of the same seed, which removes what is due to
the prompts; its interval is the mean plus or minus 1.96 standard errors over prompts.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vpo_lightning.evaluation.pool import read_pools
from vpo_lightning.evaluation.pool_metrics import PoolMetrics

Figures = Mapping[str, float]


@dataclass(frozen=True)
class EvaluatedRun:
    """The figures of one policy on each prompt.

    Attributes:
        name: Row of the table.
        seed: Seed of the run.
        figures: By prompt id.
    """

    name: str
    seed: int
    figures: Mapping[str, Figures]


@dataclass(frozen=True)
class PairedDifference:
    """The mean difference of a figure over shared prompts.

    Attributes:
        mean: Mean over prompts of the first minus the second.
        half_width: Half of the 95% interval.
        num_prompts: Shared prompts.
    """

    mean: float
    half_width: float
    num_prompts: int


def load_run(folder: Path, metrics: PoolMetrics, label: str, temperature: float) -> EvaluatedRun:
    """The figures of one row of a run's final table, computed from its pools.

    Args:
        folder: The run folder.
        metrics: The figures; the same for all runs that are compared.
        label: Name of the row, also the pool file's.
        temperature: Sampling temperature of the pool.

    Raises:
        FileNotFoundError: The run has no such pool.
    """
    config = _config(folder)
    stem = label.replace(", ", "_")
    pools = read_pools(folder / "pools" / f"{stem}_T{temperature}.parquet")
    figures = {pool.prompt_id: metrics.per_prompt(pool) for pool in pools}
    return EvaluatedRun(label, config["seed"], figures)


def paired_difference(first: EvaluatedRun, second: EvaluatedRun, figure: str) -> PairedDifference:
    """The difference of a figure between two runs on the prompts both have.

    Raises:
        ValueError: Fewer than two shared prompts.
    """
    shared = [prompt for prompt in first.figures if prompt in second.figures]
    if len(shared) < 2:
        raise ValueError(
            f"{first.name} and {second.name} share {len(shared)} prompts; a paired difference "
            "needs at least two"
        )
    differences = [first.figures[p][figure] - second.figures[p][figure] for p in shared]
    error = statistics.stdev(differences) / len(differences) ** 0.5
    return PairedDifference(statistics.fmean(differences), 1.96 * error, len(shared))


def mean_figure(run: EvaluatedRun, figure: str) -> float:
    """The mean of a figure over a run's prompts."""
    return statistics.fmean(figures[figure] for figures in run.figures.values())


def markdown_tables(runs: Sequence[EvaluatedRun], baseline: str, shown: Mapping[str, str]) -> str:
    """Two tables: the means of every run, and its paired difference to the baseline's same seed.

    Args:
        runs: All runs; those of the start policy have no pair.
        baseline: Name of the runs that the others are paired with.
        shown: Column title by figure.
    """
    head = ["run", "seed", *shown.values()]
    means = [[r.name, r.seed, *(f"{mean_figure(r, key):.3f}" for key in shown)] for r in runs]
    pairs: dict[int, EvaluatedRun] = {run.seed: run for run in runs if run.name == baseline}
    differences = [
        [r.name, r.seed, *(_signed(paired_difference(r, pairs[r.seed], key)) for key in shown)]
        for r in runs
        if r.name != baseline and r.seed in pairs
    ]
    text = _markdown(head, means)
    if differences:
        text += f"\nMinus {baseline} of the same seed, paired over prompts (95% interval):\n\n"
        text += _markdown(head, differences)
    return text


def _signed(difference: PairedDifference) -> str:
    return f"{difference.mean:+.3f} ± {difference.half_width:.3f}"


def _markdown(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    lines += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def _config(folder: Path) -> dict[str, Any]:
    """The little of a run's config that a comparison needs, from its summary."""
    return json.loads((folder / "summary.json").read_text(encoding="utf-8"))["run"]
