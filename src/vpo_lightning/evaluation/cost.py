"""What a run has cost in total, and what it gained for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

COUNTS = ("prompt_tokens", "generated_tokens", "trained_tokens", "scorer_calls")
STAGES = ("generate", "score", "reference", "forward", "backward", "step")
GAINS = ("best@1", "best@30", "expected_max@3", "expected_max@30", "deployed_expected_max")
"""Figures whose gain over the start policy is divided by the tokens generated."""

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
