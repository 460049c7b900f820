"""The figures of vpo-rescore as a table in the terminal and as a page with two heat maps."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from typing import Any

from vpo_lightning.evaluation.heatmap import heatmap_svg

STORED = "as trained"
_COLUMNS = {
    "compared": "compared in a group",
    "groups_with_signal": "groups with signal",
    "mean_abs_advantage": "mean |A|",
    "standard_error": "error of set reward",
    "weight_variance": "variance from weights",
    "correlation_with_trained": "correlation",
    "sign_agreement_with_trained": "equal sign",
}


def text_table(report: Mapping[str, Any]) -> str:
    """The figures of every method, for a terminal."""
    header = f"{'method':<24}" + "".join(f"{title:>23}" for title in _COLUMNS.values())
    lines = [headline(report), header]
    for row in report["methods"]:
        lines.append(f"{row['method']:<24}" + "".join(f"{_cell(row[k]):>23}" for k in _COLUMNS))
    lines += [f"{name}: {why}" for name, why in report["not_defined"].items()]
    return "\n".join(lines)


def headline(report: Mapping[str, Any]) -> str:
    """What was compared, in words."""
    m = report["num_answers"]
    singles = (
        f"Methods that ask for one answer see each of the {m} answers of a chain as a rollout of "
        "its own, as written; a chain's advantage is then the mean of its answers'. "
        if m > 1
        else ""
    )
    return (
        f"{report['rollouts']} rollouts of {m} answers in {report['groups']} groups of "
        f"{report['group_size']}, preset {report['preset']}, rewards: {report['rewards']}. "
        f"{singles}Correlation and sign are those with the advantages {STORED}"
    )


def _cell(value: float | str | None) -> str:
    if isinstance(value, str):
        return value
    return "-" if value is None else f"{value:.3f}"


def page(report: Mapping[str, Any]) -> str:
    """The same as a self-contained page, with the two matrices as pictures."""
    head = "".join(f"<th>{title}</th>" for title in ("method", *_COLUMNS.values()))
    body = "".join(
        f"<tr><td>{html.escape(row['method'])}</td>"
        + "".join(f"<td>{_cell(row[key])}</td>" for key in _COLUMNS)
        + "</tr>\n"
        for row in report["methods"]
    )
    skipped = "".join(
        f"<p><b>{html.escape(name)}</b> is not defined here: {html.escape(why)}</p>"
        for name, why in report["not_defined"].items()
    )
    pictures = "".join(
        f"<h2>{title}</h2>{heatmap_svg(report['names'], _floats(report[key]), least)}"
        for key, title, least in (
            ("correlation", "Correlation of advantages", 0.0),
            ("sign_agreement", "Rollouts with advantages of equal sign, where neither is 0", 0.5),
        )
    )
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>vpo-rescore</title>'
        "<style>body{font-family:sans-serif;margin:2em;max-width:70em}td,th{padding:.2em .8em;"
        "text-align:right}td:first-child,th:first-child{text-align:left}</style>"
        f"<h1>The same rollouts under every method</h1><p>{html.escape(headline(report))}. "
        "Error of set reward: its standard error from the finite number of weights drawn. "
        "Variance from weights: mean variance of an advantage over resampled weights, relative to "
        f"the variance of all advantages.</p><table><tr>{head}</tr>\n{body}</table>{skipped}"
        f"{pictures}</html>\n"
    )


def _floats(matrix: Sequence[Sequence[float | None]]) -> list[list[float]]:
    return [[math.nan if value is None else value for value in row] for row in matrix]
