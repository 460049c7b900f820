"""Everything a report says, gathered from the run folders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from vpo_lightning.evaluation.intervals import Difference
from vpo_lightning.evaluation.pool_metrics import PoolMetrics
from vpo_lightning.evaluation.report import headline
from vpo_lightning.evaluation.report.browser import (
    Pictures,
    compared_groups,
    compared_prompts,
    embedded,
    sampled_rollouts,
)
from vpo_lightning.evaluation.report.configs import differences
from vpo_lightning.evaluation.report.costs import cost_table, run_alarms
from vpo_lightning.evaluation.report.curves import curves, stage_seconds
from vpo_lightning.evaluation.report.evaluations import (
    Evaluated,
    column_title,
    evaluated,
    figure_table,
    k_curves,
)
from vpo_lightning.evaluation.report.folders import Run, model_name, preset_name, task_name
from vpo_lightning.evaluation.report.page import render
from vpo_lightning.evaluation.report.paired import paired_differences
from vpo_lightning.evaluation.report.searches import searches
from vpo_lightning.evaluation.report.stored import objectives_of
from vpo_lightning.evaluation.report.witness import witness_map

_UNTRAINED = ("evaluated", "searched")


def report_page(
    runs: Sequence[Run], pictures: Pictures, *, rollouts: int = 200, live: bool = False
) -> str:
    """The report of some runs as one HTML text.

    Args:
        runs: The runs, read and labelled.
        pictures: What the runs' tasks add.
        rollouts: Rollouts of each run that the browser embeds.
        live: Whether the page asks its server for newer ones.
    """
    entries = evaluated(runs)
    objectives = {run.label: objectives_of(run) for run in runs}
    groups = {run.label: sampled_rollouts(run, rollouts, pictures) for run in runs}
    compared = {run.label: _compared(run, entries, groups[run.label], pictures) for run in runs}
    samples, counts = embedded({"rollouts": groups, "compared": compared})
    found = searches(runs)
    data = {
        "runs": [_run_data(run, index) for index, run in enumerate(_coloured(runs))],
        "curves": curves(runs, objectives),
        "stages": {run.label: stage_seconds(run) for run in runs},
        "answers": k_curves(entries),
        "slots": {run.label: witness for run in runs if (witness := witness_map(run))},
        "search": found.get("charts", []),
    }
    view = _view(runs, entries, found, objectives) | {
        "sample": [(label, counts[label]) for label in counts],
        "has_rollouts": any(counts.values()),
        "has_compared": any(compared.values()),
        "sections": {name: bool(data[name]) for name in ("curves", "answers", "slots", "search")},
    }
    return render(data, samples, view, live=live)


def _compared(
    run: Run, entries: Sequence[Evaluated], groups: list[Any], pictures: Pictures
) -> list[dict[str, Any]]:
    """Held-out prompts of the run's first pools, or training prompts where it has none."""
    own = [e for e in entries if e.run == run.label and not e.is_start and e.pools]
    deployed = run.config.get("m")
    count = deployed if isinstance(deployed, int) and deployed > 0 else 1
    if own:
        return compared_prompts(run, own[0].pools[0], count, pictures)
    return compared_groups(groups)


def _coloured(runs: Sequence[Run]) -> list[tuple[Run, int, int]]:
    """Each run with the number of its method, which colours it, and its number within it."""
    methods = list(dict.fromkeys(run.method for run in runs))
    is_method_enough = len(methods) > 1 or len(runs) == 1
    seen: dict[str, int] = {}
    coloured: list[tuple[Run, int, int]] = []
    for index, run in enumerate(runs):
        number = seen.get(run.method, 0)
        seen[run.method] = number + 1
        colour = methods.index(run.method) if is_method_enough else index
        coloured.append((run, colour, number if is_method_enough else 0))
    return coloured


def _run_data(coloured: tuple[Run, int, int], index: int) -> dict[str, Any]:
    run, colour, dash = coloured
    return {
        "label": run.label,
        "index": index,
        "colour": colour % 8 + 1,
        "dash": (dash + 2 * (colour // 8)) % 5,
        "method": run.method,
        "status": run.status,
    }


def _view(
    runs: Sequence[Run],
    entries: Sequence[Evaluated],
    found: Mapping[str, Any],
    objectives: Mapping[str, Sequence[str]],
) -> dict[str, Any]:
    """What the template writes without scripts."""
    match = headline.contest(runs, entries)
    gaps = {} if match is None else _gaps(match, runs[0])
    settings = list(dict.fromkeys(entry.setting for entry in entries))
    trained = [run for run in runs if run.status not in _UNTRAINED]
    return {
        "title": _title(runs),
        "facts": _facts(runs),
        "written": datetime.now().astimezone().strftime("%d %B %Y, %H:%M"),
        "match": match,
        "verdict": [] if match is None else headline.verdict(match, gaps),
        "tiles": [] if match is None else headline.tiles(match, gaps),
        "alarms": [
            (run.label, alarm) for run in runs for alarm in run_alarms(run, objectives[run.label])
        ],
        "tables": [_table(entries, setting) for setting in settings],
        "runs": [_run_view(run) for run in runs],
        "differences": differences({run.label: run.config for run in trained}),
        "costs": cost_table(runs),
        "notes": [(run.label, note) for run in runs for note in run.notes],
        "searches": found.get("table", []),
        "only": found.get("only", []),
        "number": headline.number,
    }


def _gaps(match: headline.Contest, run: Run) -> dict[str, Difference]:
    """The headline's differences with intervals, on the weight grid that the run's config names."""
    keys = headline.headline_figures([*match.heroes, *match.rivals])
    settings = run.config.get("evaluation")
    named = settings.get("metrics") if isinstance(settings, dict) else None
    metrics = PoolMetrics()
    for field in ("grid_size", "grid_seed", "deployed_answers"):
        if isinstance(value := (named or {}).get(field), int):
            metrics = replace(metrics, **{field: value})
    return paired_differences(match.heroes, match.rivals, keys, metrics)


def _title(runs: Sequence[Run]) -> str:
    """The run's name, or that of the folder that holds all runs."""
    if len(runs) == 1:
        return runs[0].label
    parents = {run.folder.resolve().parent for run in runs}
    common = parents.pop() if len(parents) == 1 else None
    methods = list(dict.fromkeys(run.method for run in runs))
    if len(methods) > 1:
        shown = ", ".join(methods[:4])
        return shown + (f" and {len(methods) - 4} more" if len(methods) > 4 else "")
    return common.name if isinstance(common, Path) and common.name else f"{len(runs)} runs"


def _facts(runs: Sequence[Run]) -> list[str]:
    """The line under the title: what all runs share, or how many there are of it."""
    count = "1 run" if len(runs) == 1 else f"{len(runs)} runs"
    facts = [count]
    for describe in (task_name, model_name, preset_name):
        values = sorted({describe(run) for run in runs} - {""})
        facts += [" and ".join(values)] if values else []
    steps = sorted({run.steps for run in runs})
    facts.append(f"{steps[0]} steps" if len(steps) == 1 else f"{steps[0]} to {steps[-1]} steps")
    unfinished = sum(run.status not in ("finished", *_UNTRAINED) for run in runs)
    return facts + ([f"{unfinished} not finished"] if unfinished else [])


def _table(entries: Sequence[Evaluated], setting: str) -> dict[str, Any]:
    columns, rows = figure_table(entries, setting)
    return {"setting": setting, "columns": [column_title(key) for key in columns], "rows": rows}


def _run_view(run: Run) -> dict[str, Any]:
    return {
        "label": run.label,
        "status": run.status,
        "steps": run.steps,
        "seed": run.seed,
        "folder": str(run.folder),
    }
