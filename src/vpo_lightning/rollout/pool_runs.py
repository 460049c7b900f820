"""All pools of a policy: each temperature and seed, sampled in pieces and written as they come."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vpo_lightning.evaluation.pool import PromptPool
from vpo_lightning.evaluation.pool_store import PoolStore, pool_name
from vpo_lightning.prompting import PromptStyle
from vpo_lightning.rollout.engine import SamplingSettings
from vpo_lightning.rollout.exchange import ALONE, Exchange
from vpo_lightning.rollout.pools import PoolSampler
from vpo_lightning.task import PromptRow


@dataclass(frozen=True)
class PoolPlan:
    """What is sampled from each policy.

    Attributes:
        temperatures: One file for each.
        top_p: For all of them.
        max_tokens: Longest completion.
        seeds: One file for each; a prompt's figures are means over them.
        calls_at_a_time: Completions sampled before they are written, on each process.
    """

    temperatures: Sequence[float]
    top_p: float
    max_tokens: int
    seeds: Sequence[int]
    calls_at_a_time: int


@dataclass(frozen=True)
class Sampled:
    """A policy that is asked in one style.

    Attributes:
        policy: Name of its row in tables and files.
        style: How it is asked.
        facts: Further JSON values that tell its answers from others', e.g. its model and task.
    """

    policy: str
    style: PromptStyle
    facts: Mapping[str, Any]


def sample_pools(
    sampler: PoolSampler,
    asked: Sampled,
    rows: Sequence[PromptRow],
    plan: PoolPlan,
    folder: Path,
    exchange: Exchange = ALONE,
    *,
    replaces: bool = False,
    report: Callable[[str, int, int], None] | None = None,
) -> list[Path]:
    """The pool files of a policy in `folder`, sampled as far as they are not there.

    Args:
        sampler: Holds the policy's weights.
        asked: The policy.
        rows: All prompts, the same on every process.
        plan: Temperatures, seeds, sizes.
        folder: Where the files go; every process reads it, the first one writes.
        exchange: Shares the prompts among processes; all must call.
        replaces: Whether answers that were sampled in another way give way.
        report: Is told file, sampled prompts and all prompts after each piece.

    Raises:
        ConfigError: The folder holds answers that were sampled in another way.
    """
    files: list[Path] = []
    for temperature in plan.temperatures:
        settings = SamplingSettings(plan.max_tokens, temperature, plan.top_p)
        for number, seed in enumerate(plan.seeds):
            path = folder / pool_name(asked.policy, temperature, seed if number else None)
            store = PoolStore(path, _sampling(sampler, asked, settings, seed), replaces=replaces)
            seeded = replace(sampler, seed=seed, exchange=exchange)
            _sample_missing(
                store,
                rows,
                lambda some, seeded=seeded, settings=settings: seeded.sample(
                    some, asked.style, settings
                ),
                _prompts_at_a_time(seeded, asked.style, plan),
                exchange,
                report if exchange.rank == 0 else None,
            )
            files.append(path)
    return files


def _sample_missing(
    store: PoolStore,
    rows: Sequence[PromptRow],
    sample: Callable[[Sequence[PromptRow]], list[PromptPool]],
    at_a_time: int,
    exchange: Exchange,
    report: Callable[[str, int, int], None] | None,
) -> None:
    # What the first process finds on disk holds for all of them.
    shares = exchange.gather(set(store.finished()))
    there, processes = shares[0], len(shares)
    missing = [row for row in rows if row.id not in there]
    for first in range(0, len(missing), at_a_time * processes):
        piece = missing[first : first + at_a_time * processes]
        pools = exchange.gather(sample(piece[exchange.rank :: processes]))
        if exchange.rank == 0:
            store.add([pool for share in pools for pool in share])
        if report is not None:
            left = max(0, len(missing) - first - at_a_time * processes)
            report(store.path.stem, len(rows) - left, len(rows))
    if exchange.rank == 0:
        store.finish([row.id for row in rows])


def _prompts_at_a_time(sampler: PoolSampler, style: PromptStyle, plan: PoolPlan) -> int:
    if sampler.num_tokens is not None:
        calls = max(1, sampler.num_tokens // plan.max_tokens)
    else:
        calls = max(1, sampler.num_answers // style.num_answers)
    return max(1, plan.calls_at_a_time // calls)


def _sampling(
    sampler: PoolSampler, asked: Sampled, settings: SamplingSettings, seed: int
) -> dict[str, Any]:
    """How the answers of a file are sampled, as JSON values."""
    size = (
        {"num_answers": sampler.num_answers}
        if sampler.num_tokens is None
        else {"num_tokens": sampler.num_tokens}
    )
    shown = {"weights": sampler.weights} if asked.style.shows_weights else {}
    return {
        "policy": asked.policy,
        "style": type(asked.style).__name__,
        "answers_per_call": asked.style.num_answers,
        "temperature": settings.temperature,
        "top_p": settings.top_p,
        "max_tokens": settings.max_tokens,
        "seed": seed,
        **size,
        **shown,
        **asked.facts,
    }
