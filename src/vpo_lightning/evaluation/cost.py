"""What a run has cost in total, and what it gained for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vpo_lightning.evaluation.comparison import markdown_table

COUNTS = ("prompt_tokens", "generated_tokens", "trained_tokens", "scorer_calls")
STAGES = ("generate", "score", "reference", "forward", "backward", "step")
GAINS = ("best@1", "best@30", "expected_max@3", "expected_max@30", "deployed_expected_max")
"""Figures whose gain over the start policy is divided by the tokens generated."""
SHOWN_GAINS = ("best@1", "expected_max@30", "deployed_expected_max")

Record = Mapping[str, float | int]


def total_cost(records: Sequence[Record]) -> dict[str, Any]:
    """The cost of training, from the records of ``metrics.jsonl`` (see docs/evaluation.md).

    None where no step tells, as for runs of earlier versions.
    """

    def total(key: str) -> float | None:
        values = [record[key] for record in records if key in record]
        return sum(values) if values else None

    def peak(key: str) -> float | None:
        return max((record[key] for record in records if key in record), default=None)

    counts = {name: total(f"cost/{name}") for name in COUNTS}
    seconds = total("time/device_seconds")
    return {
        **{name: None if count is None else int(count) for name, count in counts.items()},
        "seconds": {stage: total(f"time/{stage}") for stage in STAGES},
        "device_hours": None if seconds is None else seconds / 3600,
        "process_mib": peak("memory/process_mib"),
        "device_mib": peak("memory/device_mib"),
    }


def cost_table(summaries: Sequence[Mapping[str, Any]]) -> str:
    """What each run cost and gained, as a table in Markdown; empty if none of them tells.

    Args:
        summaries: Of the runs, as in ``summary.json``.
    """
    told = [s for s in summaries if (s.get("cost") or {}).get("generated_tokens")]
    if not told:
        return ""
    head = ["run", "seed", "10^6 tokens prompted", "generated", "trained", "scorer calls"]
    head += [
        "seconds by stage",
        "device-hours",
        "peak MiB",
        *(f"{key} gained per 10^6 tokens" for key in SHOWN_GAINS),
    ]
    return markdown_table(head, [_cost_row(summary) for summary in told])


def _cost_row(summary: Mapping[str, Any]) -> list[str]:
    cost, run = summary["cost"], summary["run"]
    gains = cost.get("gain_per_million_tokens") or {}
    peak = cost["device_mib"] or cost["process_mib"]
    seconds = cost.get("seconds") or {}
    return [
        run["name"],
        str(run["seed"]),
        f"{(cost.get('prompt_tokens') or 0) / 1e6:.3f}",
        f"{cost['generated_tokens'] / 1e6:.3f}",
        f"{cost['trained_tokens'] / 1e6:.3f}",
        str(cost["scorer_calls"]),
        ", ".join(f"{stage} {value:.0f}" for stage, value in seconds.items() if value),
        f"{cost['device_hours']:.3f}",
        f"{peak:.0f}",
        *(f"{gains[key]:+.4f}" if key in gains else "" for key in SHOWN_GAINS),
    ]


def gain_per_million_tokens(
    trained: Mapping[str, float], start: Mapping[str, float], generated_tokens: float | int | None
) -> dict[str, float]:
    """What the trained policy gained over the start for each 10^6 tokens generated in training.

    Args:
        trained: Its figures.
        start: Those of the start policy asked for single answers.
        generated_tokens: Of the whole training.
    """
    if not generated_tokens:
        return {}
    keys = [key for key in GAINS if key in trained and key in start]
    return {key: (trained[key] - start[key]) / generated_tokens * 1e6 for key in keys}
