"""What the runs cost, and what was wrong with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vpo_lightning.evaluation.report.curves import is_number
from vpo_lightning.evaluation.report.folders import Run

_SUMS = {
    "prompt_tokens": "tokens prompted",
    "generated_tokens": "tokens generated",
    "trained_tokens": "tokens trained",
    "scorer_calls": "scorer calls",
}


def run_alarms(run: Run) -> list[dict[str, Any]]:
    """The alarms of a run, from its summary, or while it goes on from its metrics.

    Each is ``{"name", "message", "first_step", "last_step"}``.
    """
    stored = run.summary.get("alarms")
    if isinstance(stored, list):
        return [alarm for alarm in stored if isinstance(alarm, dict)]
    raised: dict[str, list[int]] = {}
    for record in run.metrics:
        for key, value in record.items():
            if key.startswith("alarm/") and value:
                raised.setdefault(key.removeprefix("alarm/"), []).append(int(record["step"]))
    return [
        {
            "name": name,
            "message": name.replace("_", " "),
            "first_step": steps[0],
            "last_step": steps[-1],
        }
        for name, steps in raised.items()
    ]


def cost_table(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """What is known of each run's cost, as texts by column title; runs without any left out."""
    rows: list[dict[str, Any]] = []
    for run in runs:
        row = _cost(run)
        if row:
            rows.append({"run": run.label, **row})
    columns = list(dict.fromkeys(key for row in rows for key in row))
    return [{column: row.get(column, "–") for column in columns} for row in rows]


def _cost(run: Run) -> dict[str, str]:
    cost = run.summary.get("cost")
    cost = cost if isinstance(cost, Mapping) else _sums(run)
    row: dict[str, str] = {}
    for key, title in _SUMS.items():
        if is_number(cost.get(key)):
            row[title] = f"{cost[key]:,.0f}"
    seconds = run.summary.get("seconds") or {}
    for stage, value in seconds.items():
        if is_number(value):
            row[stage] = f"{value:,.0f} s"
    if is_number(cost.get("device_hours")):
        row["device-hours"] = f"{cost['device_hours']:.3g}"
    for key, title in (("process_mib", "peak memory"), ("device_mib", "peak device memory")):
        if is_number(cost.get(key)):
            row[title] = f"{cost[key]:,.0f} MiB"
    gains = cost.get("gain_per_million_tokens")
    for key, value in (gains if isinstance(gains, Mapping) else {}).items():
        if is_number(value):
            row[f"gain in {key} per 10⁶ tokens"] = f"{value:+.3f}"
    return row


def _sums(run: Run) -> dict[str, float]:
    """The sums over the steps so far, for a run that has no summary yet."""
    sums = {
        key: sum(
            record[f"cost/{key}"] for record in run.metrics if is_number(record.get(f"cost/{key}"))
        )
        for key in _SUMS
    }
    return {key: value for key, value in sums.items() if value}
