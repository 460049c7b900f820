"""The metrics of training as short series, one for each run and quantity."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

from vpo_lightning.evaluation.report.folders import Run

MOST_POINTS = 2400  # of a chart; series with more than their share are means over bins
LEAST_POINTS, LONGEST = 40, 240  # of a series
_MOST_OBJECTIVES = 16  # as many as a LiveCodeBench problem has
STAGES = ("generate", "score", "reference", "forward", "backward")


@dataclass(frozen=True)
class Quantity:
    """One chart over training steps.

    Attributes:
        title: Heading.
        key: Metric of `metrics.jsonl`.
        about: What it is and what to look for, one sentence.
        group: Heading of the section it stands in.
        is_fraction: Whether its values are shares, drawn on a percent axis.
    """

    title: str
    key: str
    about: str
    group: str
    is_fraction: bool = False

    @property
    def validation_key(self) -> str:
        """The same quantity on held-out prompts."""
        return self.key.replace("rollout/", "val/", 1)


_REWARD, _POLICY, _ANSWERS, _SPEED = "Reward and diversity", "Policy", "Answers", "Time and cost"
QUANTITIES = (
    Quantity("Set reward", "rollout/set_reward", "What the method maximises.", _REWARD),
    Quantity(
        "Reward of an answer",
        "rollout/trained_reward",
        "Mean over answers and objectives, duplicates as zeros.",
        _REWARD,
    ),
    Quantity(
        "Diversity",
        "rollout/diversity",
        "Mean L1 distance between the reward vectors of a group's answers.",
        _REWARD,
    ),
    Quantity(
        "Hypervolume", "rollout/hypervolume", "Volume that a group's Pareto front covers.", _REWARD
    ),
    Quantity("KL to the start policy", "train/kl", "Nats per token.", _POLICY),
    Quantity("Entropy", "rollout/entropy", "Mean surprise per sampled token, nats.", _POLICY),
    Quantity("Gradient norm", "train/grad_norm", "Before clipping.", _POLICY),
    Quantity("Learning rate", "train/learning_rate", "Of the optimizer.", _POLICY),
    Quantity(
        "Length", "rollout/completion_tokens", "Tokens of a completion, all its answers.", _ANSWERS
    ),
    Quantity(
        "Truncated", "rollout/truncated_fraction", "Completions cut at the limit.", _ANSWERS, True
    ),
    Quantity(
        "Copies",
        "rollout/duplicate_fraction",
        "Answers that repeat an earlier one.",
        _ANSWERS,
        True,
    ),
    Quantity("Missing", "rollout/missing_fraction", "Slots of a chain left empty.", _ANSWERS, True),
    Quantity(
        "Unparsed", "rollout/unparsed_fraction", "Answers that could not be scored.", _ANSWERS, True
    ),
    Quantity(
        "Groups without signal",
        "rollout/no_signal_fraction",
        "All advantages are zero: nothing is learnt from them.",
        _ANSWERS,
        True,
    ),
    Quantity("Seconds per step", "time/step", "Without validation.", _SPEED),
    Quantity("Tokens per second", "time/tokens_per_second", "Generated, over the step.", _SPEED),
    Quantity("Tokens sampled", "cost/generated_tokens", "In a step, by all processes.", _SPEED),
    Quantity("Scorer calls", "cost/scorer_calls", "Answers scored in a step.", _SPEED),
    Quantity("Peak memory", "memory/process_mib", "Of the largest process so far, MiB.", _SPEED),
    Quantity("Peak device memory", "memory/device_mib", "Of the fullest GPU, MiB.", _SPEED),
)


def curves(runs: Sequence[Run], objectives: Mapping[str, Sequence[str]]) -> list[dict[str, Any]]:
    """The charts that at least one run has values for.

    Args:
        runs: The runs.
        objectives: Names of the objectives by run label.

    Returns:
        ``{"title", "about", "group", "fraction", "series": {label: {"x", "y", "vx", "vy"}}}`` each,
        x in training steps, v for validation on held-out prompts.
    """
    points = min(max(MOST_POINTS // max(len(runs), 1), LEAST_POINTS), LONGEST)
    charts = [_chart(quantity, runs, points) for quantity in _quantities(objectives)]
    return [chart for chart in charts if chart["series"]]


def _quantities(objectives: Mapping[str, Sequence[str]]) -> list[Quantity]:
    """The fixed quantities with one for each objective behind the rewards."""
    names = list(dict.fromkeys(name for run in objectives.values() for name in run))
    own = [
        Quantity(name, f"rollout/{name}", "Mean over all answers as written.", "Objectives")
        for name in names[:_MOST_OBJECTIVES]
    ]
    rewards = [quantity for quantity in QUANTITIES if quantity.group == _REWARD]
    return [*rewards, *own, *(q for q in QUANTITIES if q.group != _REWARD)]


def _chart(quantity: Quantity, runs: Sequence[Run], points: int) -> dict[str, Any]:
    series: dict[str, Any] = {}
    for run in runs:
        x, y = _values(run.metrics, quantity.key, points)
        if x:
            vx, vy = _values(run.metrics, quantity.validation_key, points)
            has_validation = quantity.validation_key != quantity.key
            series[run.label] = {"x": x, "y": y} | (
                {"vx": vx, "vy": vy} if vx and has_validation else {}
            )
    return {
        "title": quantity.title,
        "about": quantity.about,
        "group": quantity.group,
        "fraction": quantity.is_fraction,
        "series": series,
    }


def _values(
    records: Sequence[Mapping[str, Any]], key: str, most: int
) -> tuple[list[int], list[float]]:
    """Steps and values of a metric, averaged in bins if there are too many."""
    pairs = [
        (int(record["step"]), float(record[key]))
        for record in records
        if is_number(record.get(key)) and is_number(record.get("step"))
    ]
    width = -(-len(pairs) // most) if pairs else 1
    bins = [pairs[i : i + width] for i in range(0, len(pairs), width)]
    return (
        [group[-1][0] for group in bins],
        [rounded(sum(value for _, value in group) / len(group)) for group in bins],
    )


def stage_seconds(run: Run) -> dict[str, float]:
    """Mean seconds of a step by stage, with what none of the stages accounts for as ``other``."""
    records = [record for record in run.metrics if is_number(record.get("time/step"))]
    if not records:
        return {}
    seconds = {
        stage: sum(float(record.get(f"time/{stage}") or 0.0) for record in records) / len(records)
        for stage in STAGES
    }
    total = sum(float(record["time/step"]) for record in records) / len(records)
    seconds["other"] = max(total - sum(seconds.values()), 0.0)
    return {stage: rounded(value) for stage, value in seconds.items()}


def is_number(value: Any) -> TypeGuard[float]:
    """Whether a value of a JSON file is a finite number."""
    is_numeric = isinstance(value, int | float) and not isinstance(value, bool)
    return is_numeric and math.isfinite(value)


def rounded(value: float) -> float:
    """Five significant digits, which is more than a chart shows."""
    return float(f"{value:.5g}")
