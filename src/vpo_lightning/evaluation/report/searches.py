"""What searches with the runs' policies found, as curves over the budget."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import permutations
from pathlib import Path
from typing import Any

import yaml

from vpo_lightning.evaluation.report.curves import is_number, rounded
from vpo_lightning.evaluation.report.folders import Run, first_line

UNITS = ("answers", "calls", "tokens", "seconds")
TITLES = {
    "expected_max": "E_w of the best answer so far",
    "best": "best scalar reward so far",
    "selected": "reward of the answer handed over",
    "solved": "share of prompts solved",
}
_MOST_LISTED = 12  # prompts solved by one search and not by another


def searches(runs: Sequence[Run]) -> dict[str, Any]:
    """The budget curves of all searches: folders of their own, and ``search/*/`` of runs.

    Returns:
        ``charts`` (``{"figure", "title", "unit", "series"}``), ``table`` (one row for each search)
        and ``only`` (prompts that one search solved and another never did); empty without one.
    """
    results = [
        (label, result)
        for run in runs
        for label, result in _results(run)
        if isinstance(result.get("curves"), Mapping)
    ]
    if not results:
        return {}
    figures = list(dict.fromkeys(f for _, result in results for f in result.get("figures", [])))
    charts = [
        {
            "figure": figure,
            "title": TITLES.get(figure, figure),
            "unit": unit,
            "series": {
                label: series
                for label, result in results
                if (series := _series(result["curves"].get(unit) or [], figure))
            },
        }
        for figure in figures
        for unit in UNITS
    ]
    return {
        "charts": [chart for chart in charts if chart["series"]],
        "table": [_row(label, result) for label, result in results],
        "only": _solved_by_one(results),
    }


def _results(run: Run) -> list[tuple[str, dict[str, Any]]]:
    found: list[tuple[str, dict[str, Any]]] = []
    own = [run.folder / "result.json"] if run.status == "searched" else []
    for path in [*own, *sorted(run.folder.glob("search/*/result.json"))]:
        try:
            result = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            place = path.relative_to(run.folder)
            run.note(f"{place} could not be read ({first_line(error)})")
            continue
        if isinstance(result, dict):
            name = result.get("name", path.parent.name)
            asked = _asked(path.with_name("config.yaml"))
            label = run.label if path in own else f"{run.label}: {name}"
            found.append((label, {**result, "asked": asked}))
    return found


def _asked(path: Path) -> dict[str, Any]:
    """What a search was asked, as its config says: task, split, and when a prompt is solved."""
    try:
        config = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return {}
    found = config if isinstance(config, dict) else {}
    task = found.get("task")
    asked = {key: found[key] for key in ("split", "solved") if key in found}
    return {**(task if isinstance(task, dict) else {}), **asked}


def _are_asked_alike(first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    """Whether two searches agree in all that both say they were asked: ids alone may repeat."""
    return all(first[key] == second[key] for key in first.keys() & second.keys())


def _series(points: Sequence[Mapping[str, Any]], figure: str) -> dict[str, list[float]]:
    """A curve with its band; points without a finite mean are left out."""
    series: dict[str, list[float]] = {"x": [], "y": [], "low": [], "high": []}
    for point in points:
        value = point.get(figure) or {}
        mean = value.get("mean")
        if not is_number(mean) or not is_number(point.get("budget")):
            continue
        series["x"].append(rounded(float(point["budget"])))
        series["y"].append(rounded(mean))
        for end in ("low", "high"):
            series[end].append(rounded(value[end] if is_number(value.get(end)) else mean))
    return series if series["x"] else {}


def _row(label: str, result: Mapping[str, Any]) -> dict[str, Any]:
    spent = result.get("spent") or {}
    prompts = result.get("prompts") or []
    solved = [prompt for prompt in prompts if prompt.get("solved")]
    failures = {name: n for name, n in (result.get("failures") or {}).items() if n}
    return {
        "label": label,
        "status": result.get("status", ""),
        "prompts": len(prompts),
        "solved": len(solved),
        "calls": spent.get("calls"),
        "answers": spent.get("answers"),
        "tokens": sum(
            spent.get(f"{kind}_tokens") or 0 for kind in ("prompt", "completion", "judge")
        ),
        "seconds": (spent.get("generation_seconds") or 0) + (spent.get("scorer_seconds") or 0),
        "failures": ", ".join(f"{n} {name}" for name, n in failures.items()),
    }


def _solved_by_one(results: Sequence[tuple[str, Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """For each pair of searches: the shared prompts that the first solved and the second not."""
    solved = {
        label: {prompt["id"]: bool(prompt.get("solved")) for prompt in result.get("prompts") or []}
        for label, result in results
    }
    asked = {label: result["asked"] for label, result in results}
    pairs: list[dict[str, Any]] = []
    for first, second in permutations(solved, 2):
        if not _are_asked_alike(asked[first], asked[second]):
            continue
        found = [
            prompt
            for prompt, is_solved in solved[first].items()
            if is_solved and solved[second].get(prompt) is False
        ]
        if found:
            shown = found[:_MOST_LISTED]
            pairs.append({"by": first, "not": second, "count": len(found), "prompts": shown})
    return pairs
