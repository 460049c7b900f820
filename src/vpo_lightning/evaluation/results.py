"""From the pool files of a folder to the figures of its policies: ``eval.json`` and tables.

Everything here is computed from `pools/*.parquet`: no model, no sampling.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from vpo_lightning.errors import ConfigError
from vpo_lightning.evaluation.intervals import Difference, Estimate, estimate, paired
from vpo_lightning.evaluation.pool import PromptPool, read_pools, read_sampling
from vpo_lightning.evaluation.pool_metrics import PoolMetrics
from vpo_lightning.evaluation.pool_store import policy_and_temperature, pool_name

Figures = Mapping[str, float]


@dataclass(frozen=True)
class Evaluation:
    """One policy at one temperature, on each prompt.

    Attributes:
        policy: Row of the tables.
        temperature: Of sampling.
        seeds: Of sampling, one for each file; None where a file does not say.
        files: The pool files.
        figures: By prompt id and metric key, means over the seeds.
        errors: Standard errors due to sampling, likewise; not for every figure.
        sizes: ``answers_per_call``, ``calls``, ``answers``, ``tokens_per_call``,
            ``prompt_tokens``: means over prompts.
    """

    policy: str
    temperature: float
    seeds: list[int | None]
    files: list[Path]
    figures: Mapping[str, Figures]
    errors: Mapping[str, Figures]
    sizes: Mapping[str, float | int]

    @property
    def title(self) -> str:
        """Key of the temperature in tables and summaries."""
        return f"T={self.temperature}"

    def estimates(self) -> dict[str, Estimate]:
        """The mean over prompts of each figure that every prompt has, with its interval."""
        return {key: self.estimate(key) for key in _shared(self.figures.values())}

    def estimate(self, key: str) -> Estimate:
        """The mean over prompts of one figure, with its interval."""
        errors = None
        if all(key in of_prompt for of_prompt in self.errors.values()):
            errors = [of_prompt[key] for of_prompt in self.errors.values()]
        return estimate([of_prompt[key] for of_prompt in self.figures.values()], errors)


def read_evaluations(folder: Path, metrics: PoolMetrics) -> list[Evaluation]:
    """The evaluations of a folder, one for each policy and temperature with a finished pool file.

    Raises:
        ConfigError: There is no pool file.
    """
    groups: dict[tuple[str, float], list[Path]] = {}
    for path in sorted((folder / "pools").glob("*.parquet")):
        groups.setdefault(policy_and_temperature(path), []).append(path)
    if not groups:
        raise ConfigError(
            f"{folder}: no pools/*.parquet there; expected the folder of an evaluated run, or of "
            "vpo-eval"
        )
    return [read_evaluation(files, metrics) for files in groups.values()]


def read_evaluation(files: Sequence[Path], metrics: PoolMetrics) -> Evaluation:
    """The evaluation of one policy at one temperature, from the files of its seeds."""
    policy, temperature = policy_and_temperature(files[0])
    by_seed = [{pool.prompt_id: pool for pool in read_pools(file)} for file in files]
    prompts = [prompt for prompt in by_seed[0] if all(prompt in pools for pools in by_seed)]
    if not prompts:
        raise ConfigError(f"{files[0]}: it holds no prompt that the files of all seeds have")
    pools = [pools[prompt] for pools in by_seed for prompt in prompts]
    return Evaluation(
        policy,
        temperature,
        [read_sampling(file).get("seed") for file in files],
        list(files),
        {p: _mean([metrics.per_prompt(pools[p]) for pools in by_seed]) for p in prompts},
        {p: _mean_error([metrics.sampling_errors(pools[p]) for pools in by_seed]) for p in prompts},
        _sizes(pools),
    )


def find_evaluation(
    folder: Path, policy: str, temperature: float, metrics: PoolMetrics
) -> Evaluation:
    """The evaluation of one row of a run's final table.

    Raises:
        FileNotFoundError: The run has no such pool.
    """
    stem = pool_name(policy, temperature).removesuffix(".parquet")
    files = [folder / "pools" / f"{stem}.parquet"]
    files += sorted((folder / "pools").glob(f"{stem}_seed*.parquet"))
    return read_evaluation(files, metrics)


def compare(
    first: Evaluation, second: Evaluation, keys: Sequence[str] | None = None
) -> dict[str, Difference]:
    """The first minus the second on the prompts both have, for these figures or all that both have.

    Raises:
        ValueError: Fewer than two shared prompts.
    """
    prompts = shared_prompts(first, second)
    mine, theirs = ([e.figures[p] for p in prompts] for e in (first, second))
    keys = _shared([*mine, *theirs]) if keys is None else keys
    return {key: paired([f[key] for f in mine], [f[key] for f in theirs]) for key in keys}


def shared_prompts(first: Evaluation, second: Evaluation) -> list[str]:
    """The prompts that two evaluations share, in the order of the first."""
    return [prompt for prompt in first.figures if prompt in second.figures]


def evaluation_record(
    evaluations: Sequence[Evaluation], compared: Iterable[tuple[Evaluation, Evaluation]]
) -> dict[str, Any]:
    """What ``eval.json`` holds (see docs/evaluation.md)."""
    return {
        "version": 2,
        "evaluations": [_record(evaluation) for evaluation in evaluations],
        "comparisons": [
            {
                "first": first.policy,
                "second": second.policy,
                "temperature": first.temperature,
                "prompts": len(shared_prompts(first, second)),
                "figures": {key: asdict(gap) for key, gap in compare(first, second).items()},
            }
            for first, second in compared
        ],
    }


def pairs_with(
    policy: str, evaluations: Sequence[Evaluation]
) -> list[tuple[Evaluation, Evaluation]]:
    """That policy against each other one at the same temperature, if they share two prompts."""
    return [
        (first, second)
        for first in evaluations
        for second in evaluations
        if first.policy == policy != second.policy
        and first.temperature == second.temperature
        and len(shared_prompts(first, second)) > 1
    ]


def mean_table(evaluations: Sequence[Evaluation]) -> dict[str, dict[str, dict[str, float]]]:
    """The means as ``{"T=0.7": {policy: {figure: mean}}}``."""
    table: dict[str, dict[str, dict[str, float]]] = {}
    for evaluation in evaluations:
        keys = _shared(evaluation.figures.values())
        means = {key: fmean(f[key] for f in evaluation.figures.values()) for key in keys}
        table.setdefault(evaluation.title, {})[evaluation.policy] = means
    return table


def _record(evaluation: Evaluation) -> dict[str, Any]:
    return {
        "policy": evaluation.policy,
        "temperature": evaluation.temperature,
        "seeds": evaluation.seeds,
        "pools": [f"{file.parent.name}/{file.name}" for file in evaluation.files],
        "prompts": len(evaluation.figures),
        **evaluation.sizes,
        "figures": {key: asdict(value) for key, value in evaluation.estimates().items()},
    }


def _sizes(pools: Sequence[PromptPool]) -> dict[str, float | int]:
    calls = sum(len(pool.rewards) for pool in pools)
    return {
        "answers_per_call": len(pools[0].rewards[0]),
        "calls": calls / len(pools),
        "answers": sum(len(chain) for pool in pools for chain in pool.rewards) / len(pools),
        "tokens_per_call": sum(sum(pool.tokens) for pool in pools) / calls,
        "prompt_tokens": fmean(pool.prompt_tokens for pool in pools),
    }


def _shared(figures: Iterable[Figures]) -> list[str]:
    """The keys that all have, in the order of the first."""
    first, *others = figures
    return [key for key in first if all(key in other for other in others)]


def _mean(figures: Sequence[Figures]) -> dict[str, float]:
    return {key: fmean(f[key] for f in figures) for key in _shared(figures)}


def _mean_error(errors: Sequence[Figures]) -> dict[str, float]:
    return {key: math.hypot(*(e[key] for e in errors)) / len(errors) for key in _shared(errors)}
