"""Runs side by side on the same prompts: means, and paired differences with intervals.

A difference is taken prompt by prompt between runs of the same seed, which removes what is due to
the prompts; its interval is that of the mean over prompts (`evaluation.intervals`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vpo_lightning.evaluation.intervals import Difference
from vpo_lightning.evaluation.results import Evaluation, compare


@dataclass(frozen=True)
class EvaluatedRun:
    """One row of a comparison.

    Attributes:
        name: Of the method.
        seed: Of the run.
        evaluation: Its figures on each prompt.
    """

    name: str
    seed: int
    evaluation: Evaluation


def markdown_tables(runs: Sequence[EvaluatedRun], baseline: str, shown: Mapping[str, str]) -> str:
    """Two tables: the means of every run, and its paired difference to the baseline's same seed.

    Args:
        runs: All runs; those of the start policy have no pair.
        baseline: Name of the runs that the others are paired with.
        shown: Column title by figure.
    """
    head = ["run", "seed", *shown.values()]
    means = [
        [r.name, r.seed, *(f"{r.evaluation.estimate(key).mean:.3f}" for key in shown)] for r in runs
    ]
    pairs = {run.seed: run.evaluation for run in runs if run.name == baseline}
    text = markdown_table(head, means)
    differences: list[list[Any]] = []
    for run in runs:
        if run.name != baseline and run.seed in pairs:
            gaps = compare(run.evaluation, pairs[run.seed], list(shown))
            differences.append([run.name, run.seed, *(signed(gaps[key]) for key in shown)])
    if differences:
        text += f"\nMinus {baseline} of the same seed, paired over prompts (95% interval):\n\n"
        text += markdown_table(head, differences)
    return text


def signed(difference: Difference) -> str:
    """A difference with half of its interval: +0.074 ± 0.013."""
    half = (difference.high - difference.low) / 2
    return f"{difference.difference:+.3f} ± {half:.3f}"


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Rows as a table in Markdown."""
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    lines += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"
