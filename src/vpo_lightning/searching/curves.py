"""Quality against cost: the staircase of one prompt, means with bands, and who solves what."""

from __future__ import annotations

import bisect
import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vpo_lightning.errors import ConfigError
from vpo_lightning.searching.archive import Answer
from vpo_lightning.searching.budget import Spent
from vpo_lightning.searching.problem import Problem
from vpo_lightning.searching.quality import FIGURES, Solved, weight_grid
from vpo_lightning.searching.search import Search

AXES = ("answers", "calls", "tokens", "seconds")
_POINTS = 30  # budgets of a mean curve


class Curve:
    """The figures of one prompt after each call.

    Args:
        problem: The prompt.
        search: Selects.
        solved: When it counts as solved.
    """

    def __init__(self, problem: Problem, search: Search, solved: Solved) -> None:
        self._problem = problem
        self._search = search
        self._solved = solved
        self._missing = solved.parts()
        self._best = 0.0
        self._grid = weight_grid(len(problem.row.objectives))
        self._highest = np.zeros(len(self._grid))
        self.points: dict[str, list[float]] = {name: [] for name in (*AXES, *FIGURES)}

    def add(self, spent: Spent, answers: Sequence[Answer]) -> None:
        """Adds the point after a call.

        Args:
            spent: All costs until then.
            answers: The new answers; they are in the archive.
        """
        task, row = self._problem.task, self._problem.row
        for answer in answers:
            rewards = np.asarray(answer.rewards, dtype=np.float64)
            self._highest = np.maximum(self._highest, self._grid @ rewards)
            self._best = max(self._best, task.scalar(answer.rewards, row))
            self._missing -= self._solved.reached(task, row, answer.rewards)
        chosen = self._search.select(self._problem, self._problem.archive.answers)
        point = {name: getattr(spent, name) for name in AXES}
        point["expected_max"] = float(self._highest.mean())
        point["best"] = self._best
        point["selected"] = 0.0 if chosen is None else task.scalar(chosen.rewards, row)
        point["solved"] = float(not self._missing)
        for name, value in point.items():
            self.points[name].append(value)

    def last(self) -> dict[str, float]:
        """The figures at the end; zeros before the first call."""
        return {name: self.points[name][-1] if self.points[name] else 0.0 for name in FIGURES}


def value_at(curve: Mapping[str, Sequence[float]], axis: str, figure: str, budget: float) -> float:
    """A figure of one prompt at a budget: that of the last call that ended within it, else 0."""
    count = bisect.bisect_right(curve[axis], budget + 1e-9)
    return curve[figure][count - 1] if count else 0.0


def mean_curves(curves: Sequence[Mapping[str, Sequence[float]]]) -> dict[str, list[dict[str, Any]]]:
    """By axis, the mean of each figure over prompts with its 95% interval, at common budgets."""
    return {axis: _mean_curve(curves, axis) for axis in AXES}


def _mean_curve(curves: Sequence[Mapping[str, Sequence[float]]], axis: str) -> list[dict[str, Any]]:
    ends = [curve[axis][-1] for curve in curves if curve[axis]]
    if not ends:
        return []
    whole = axis != "seconds"
    steps = sorted({x for curve in curves for x in curve[axis]})
    if len(steps) > _POINTS:
        highest = max(ends)
        steps = sorted({_rounded(highest * (i + 1) / _POINTS, whole) for i in range(_POINTS)})
    return [
        {"budget": step}
        | {name: interval([value_at(c, axis, name, step) for c in curves]) for name in FIGURES}
        for step in steps
    ]


def interval(values: Sequence[float]) -> dict[str, float]:
    """The mean and its 95% interval, mean plus or minus 1.96 standard errors."""
    mean = statistics.fmean(values)
    error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0
    return {"mean": mean, "low": mean - 1.96 * error, "high": mean + 1.96 * error}


def read_result(folder: Path) -> dict[str, Any]:
    """The ``result.json`` of a search's folder.

    Raises:
        ConfigError: The folder holds none, or it is not readable.
    """
    path = folder / "result.json"
    try:
        result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        for key in ("name", "policy", "policy_name", "figures", "prompts"):
            result[key]
        return result
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ConfigError(f"{path}: no result of a search ({error}); run vpo-search first") from (
            error
        )


def solved_by_one_only(
    first: Sequence[Mapping[str, Any]], second: Sequence[Mapping[str, Any]]
) -> tuple[list[str], list[str]]:
    """The prompts that one side solves in some run and the other in none, for both sides.

    Args:
        first: Results of one policy or search, for instance one for each seed.
        second: Those of the other.
    """
    ours, theirs = _solved_prompts(first), _solved_prompts(second)
    shared = _all_prompts(first) & _all_prompts(second)
    key = _natural
    return sorted((ours - theirs) & shared, key=key), sorted((theirs - ours) & shared, key=key)


def _solved_prompts(results: Sequence[Mapping[str, Any]]) -> set[str]:
    return {p["id"] for result in results for p in result["prompts"] if p["solved"]}


def _all_prompts(results: Sequence[Mapping[str, Any]]) -> set[str]:
    return {p["id"] for result in results for p in result["prompts"]}


def _natural(name: str) -> tuple[str, int]:
    """Sorts test-2 before test-10."""
    stem, _, number = name.rpartition("-")
    return (stem, int(number)) if number.isdigit() else (name, 0)


def _rounded(value: float, whole: bool) -> float:
    return round(value) if whole else value
