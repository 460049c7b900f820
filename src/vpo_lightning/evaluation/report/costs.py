"""What the runs cost, and what was wrong with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

from vpo_lightning.evaluation.alarms import AlarmThresholds, find_alarms
from vpo_lightning.evaluation.cost import total_cost
from vpo_lightning.evaluation.report.curves import is_number
from vpo_lightning.evaluation.report.evaluations import column_title
from vpo_lightning.evaluation.report.folders import Run

_COUNTS = {
    "prompt_tokens": "tokens prompted",
    "generated_tokens": "tokens generated",
    "trained_tokens": "tokens trained",
    "scorer_calls": "scorer calls",
}


def run_alarms(run: Run, objectives: Sequence[str]) -> list[dict[str, Any]]:
    """The alarms of a run: as its summary says, or found in the metrics while it goes on."""
    stored = run.summary.get("alarms")
    if isinstance(stored, list):
        return [alarm for alarm in stored if isinstance(alarm, dict)]
    return [asdict(alarm) for alarm in find_alarms(_figures(run), objectives, _thresholds(run))]


def _thresholds(run: Run) -> AlarmThresholds:
    """As the run's config has them."""
    given = run.config.get("alarms")
    own = given if isinstance(given, dict) else {}
    known = {field.name for field in fields(AlarmThresholds)}
    values: dict[str, Any] = {k: v for k, v in own.items() if k in known and is_number(v)}
    return AlarmThresholds(**values)


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
    cost = cost if isinstance(cost, Mapping) else total_cost(_figures(run))  # it goes on
    row: dict[str, str] = {}
    for key, title in _COUNTS.items():
        if is_number(cost.get(key)):
            row[title] = f"{cost[key]:,.0f}"
    stages = cost.get("seconds")
    for stage, value in (stages if isinstance(stages, Mapping) else {}).items():
        if is_number(value) and stage != "step":
            row[f"in {stage}"] = f"{value:,.0f} s"
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
            row[f"gain in {column_title(key)} per 10⁶ tokens"] = f"{value:+.3f}"
    return row


def _figures(run: Run) -> list[dict[str, float]]:
    """The numbers in the records of the run's steps so far."""
    return [{k: float(v) for k, v in record.items() if is_number(v)} for record in run.metrics]
