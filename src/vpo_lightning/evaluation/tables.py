"""The figures of a run as a table for the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from io import StringIO
from typing import Any

from rich.console import Console
from rich.table import Table

from vpo_lightning.evaluation.results import Evaluation, compare, shared_prompts

_SHOWN_KS = ("1", "3", "10", "30")
_WIDEST = 10_000  # columns: rich cuts cells off where a table is wider than its console
_NAMES = {
    "deployed_expected_max": "E_w set",
    "deployed_cover": "set both",
    "nonzero_fraction": "completion",
    "diversity": "diversity",
    "cover": "cover",
}


def evaluation_table(results: Mapping[str, Mapping[str, Mapping[str, float]]]) -> str:
    """Start and trained policy side by side, one block for each temperature.

    Args:
        results: ``{"T=0.7": {policy: {figure: value}}}``.
    """
    return "\n".join(
        _rendered(f"held-out prompts, {title}", ["policy", *columns], _rows(policies, keys))
        for title, policies in results.items()
        for keys, columns in [_columns(policies)]
    )


def comparison_table(compared: Sequence[tuple[Evaluation, Evaluation]]) -> str:
    """The first minus the second of each pair on their shared prompts, for the headline figures."""
    rows: list[list[str]] = []
    for first, second in compared:
        keys, names = _columns({"": first.figures[shared_prompts(first, second)[0]]})
        gaps = compare(first, second, keys)
        for key, name in zip(keys, names, strict=True):
            gap = gaps[key]
            interval = f"[{gap.low:+.3f}, {gap.high:+.3f}]"
            values = [f"{gap.difference:+.3f}", interval, f"{gap.p:.4f}"]
            pair = f"{first.policy} - {second.policy}, {first.title}"
            rows.append([pair if key == keys[0] else "", name, *values])
    head = ["paired over prompts", "figure", "difference", "95% interval", "p"]
    return _rendered("comparison", head, rows)


def _columns(policies: Mapping[str, Mapping[str, float]]) -> tuple[list[str], list[str]]:
    figures = next(iter(policies.values()))
    wanted = [f"{name}@{k}" for name in ("best", "expected_max") for k in _SHOWN_KS]
    keys = [key for key in [*wanted, *_NAMES] if key in figures]
    return keys, [_NAMES.get(key, key.replace("expected_max", "E_w[max]")) for key in keys]


def _rows(policies: Mapping[str, Mapping[str, float]], keys: Sequence[str]) -> list[list[str]]:
    return [[name, *(f"{f[key]:.3f}" for key in keys)] for name, f in policies.items()]


def _rendered(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for i, column in enumerate(columns):
        table.add_column(column, justify="left" if i == 0 else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    console = Console(file=StringIO(), width=_WIDEST)
    console.print(table)
    return console.file.getvalue()  # type: ignore[attr-defined]
