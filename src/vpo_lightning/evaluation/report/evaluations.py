"""The held-out figures of all runs, as tables and as curves over the number of answers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vpo_lightning.evaluation.report.curves import is_number, rounded
from vpo_lightning.evaluation.report.folders import Run

_AT = re.compile(r"([a-z_]+)@(\d+)(|_answers|_calls|_tokens)")
FAMILIES = {
    "expected_max": "E_w[max@k]",
    "best": "best@k",
    "pass": "pass@k",
    "majority": "majority@k",
    "hypervolume": "hypervolume@k",
}
"""Titles of the figures that depend on k; others keep their own names."""
FAMILY_WORDS = {
    "expected_max": "the best of k answers for a random weighting of the objectives",
    "best": "the best of k answers under the task's fixed scalar reward",
    "pass": "the chance that one of k answers solves the prompt",
    "majority": "the answer that most of k answers agree on",
    "hypervolume": "the volume that the Pareto front of k answers covers",
}
COLUMNS = {
    "deployed_expected_max": "E_w set",
    "deployed_cover": "set both",
    "nonzero_fraction": "non-zero",
    "diversity": "diversity",
    "cover": "cover",
    "pareto_count": "on the front",
    "distinct_fraction": "distinct",
}
"""Titles of the table's columns after those with k."""


@dataclass(frozen=True)
class Evaluated:
    """One policy at one temperature.

    Attributes:
        run: Label of the run.
        policy: Name of the row: ``start, ...`` or the method.
        setting: ``T=0.7``.
        figures: Mean, low and high by figure; low and high are None without an interval.
        pools: Its pools on disk, a file for each seed of the sampling.
        label: Name in charts and tables: that of the run, or of the start policy; the run's and its
            own for further policies that were evaluated in the run's folder.
    """

    run: str
    policy: str
    setting: str
    figures: dict[str, tuple[float, float | None, float | None]]
    pools: Sequence[Path] = ()
    label: str = ""

    @property
    def is_start(self) -> bool:
        """Whether this is the policy that training started from."""
        return self.policy.startswith("start")


def evaluated(runs: Sequence[Run]) -> list[Evaluated]:
    """Every policy and temperature; the same start policy of several runs once."""
    found: list[Evaluated] = []
    starts: set[tuple[Any, ...]] = set()
    for run in runs:
        entries = _entries(run)
        several = len({entry.policy for entry in entries if not entry.is_start}) > 1
        for entry in entries:
            if entry.is_start:
                start = (run.summary.get("start_policy"), entry.policy, entry.setting)
                if start in starts:
                    continue
                starts.add(start)
                label = entry.policy
            else:
                is_own = not several or entry.policy == run.method
                label = run.label if is_own else f"{run.label}: {entry.policy}"
            found.append(replace(entry, label=label))
    return found


def _entries(run: Run) -> list[Evaluated]:
    """From eval.json, or from the means that the summary repeats."""
    if isinstance(run.evaluation.get("evaluations"), list):
        return [
            Evaluated(
                run.label,
                str(record["policy"]),
                f"T={record['temperature']}",
                {
                    key: value
                    for key, estimate in record["figures"].items()
                    if (value := _estimate(estimate)) is not None
                },
                _existing(run, record.get("pools") or []),
            )
            for record in run.evaluation["evaluations"]
        ]
    return [
        Evaluated(
            run.label,
            policy,
            setting,
            {k: (rounded(v), None, None) for k, v in figures.items() if is_number(v)},
        )
        for setting, policies in (run.summary.get("evaluation") or {}).items()
        for policy, figures in policies.items()
    ]


def _estimate(value: Mapping[str, Any]) -> tuple[float, float | None, float | None] | None:
    mean, low, high = value.get("mean"), value.get("low"), value.get("high")
    if not is_number(mean):
        return None
    if is_number(low) and is_number(high):
        return rounded(mean), rounded(low), rounded(high)
    return rounded(mean), None, None


def _existing(run: Run, names: Sequence[str]) -> list[Path]:
    """The pool files that are there; names that lead out of the run folder are not."""
    inside = run.folder.resolve()
    paths = [run.folder / name for name in names]
    return [p for p in paths if p.is_file() and p.resolve().is_relative_to(inside)]


def k_curves(entries: Sequence[Evaluated]) -> list[dict[str, Any]]:
    """One chart for each setting, family and unit that at least one policy has two points of.

    Returns:
        ``{"setting", "family", "title", "about", "unit", "series": {label: {"x", "y", "low",
        "high"}}}`` each, with low and high only where there are intervals.
    """
    charts: dict[tuple[str, str, str], dict[str, Any]] = {}
    for entry in entries:
        for (family, unit), points in _points(entry).items():
            chart = charts.setdefault(
                (entry.setting, family, unit),
                {
                    "setting": entry.setting,
                    "family": family,
                    "title": FAMILIES.get(family, f"{family}@k"),
                    "about": FAMILY_WORDS.get(family, family),
                    "unit": unit,
                    "series": {},
                },
            )
            chart["series"][entry.label] = _series(points)
    order = list(FAMILIES)
    wanted = [c for c in charts.values() if any(len(s["x"]) > 1 for s in c["series"].values())]
    return sorted(
        wanted, key=lambda c: order.index(c["family"]) if c["family"] in order else len(order)
    )


def _points(entry: Evaluated) -> dict[tuple[str, str], list[tuple[int, Any]]]:
    """The figures that depend on k, by family and unit, each as (k, estimate) in order."""
    points: dict[tuple[str, str], list[tuple[int, Any]]] = {}
    for key, value in entry.figures.items():
        match = _AT.fullmatch(key)
        if match:
            family, k, unit = match.groups()
            points.setdefault((family, unit.lstrip("_") or "answers"), []).append((int(k), value))
    return {name: sorted(values) for name, values in points.items()}


def _series(points: Sequence[tuple[int, Any]]) -> dict[str, list[Any]]:
    series: dict[str, list[Any]] = {
        "x": [k for k, _ in points],
        "y": [value[0] for _, value in points],
    }
    if any(value[1] is not None for _, value in points):
        series["low"] = [value[0] if value[1] is None else value[1] for _, value in points]
        series["high"] = [value[0] if value[2] is None else value[2] for _, value in points]
    return series


def figure_table(entries: Sequence[Evaluated], setting: str) -> tuple[list[str], list[list[Any]]]:
    """Column keys and, for each policy of a setting, its label and its estimates."""
    chosen = [entry for entry in entries if entry.setting == setting]
    present = list(dict.fromkeys(key for entry in chosen for key in entry.figures))
    at = [key for f in ("best", "expected_max", "pass") for key in present if _is_at(key, f)]
    columns = [*at, *(key for key in COLUMNS if key in present)]
    rows = [[entry.label, *(entry.figures.get(key) for key in columns)] for entry in chosen]
    return columns, rows


def _is_at(key: str, family: str) -> bool:
    match = _AT.fullmatch(key)
    return bool(match) and match.group(1) == family and not match.group(3)


def column_title(key: str) -> str:
    """The heading of a figure's column."""
    match = _AT.fullmatch(key)
    if match and match.group(1) == "expected_max":
        return f"E_w@{match.group(2)}"
    return COLUMNS.get(key, key)
