"""Which slot of a chain wins which weights, over training and at its end.

A slot that wins no weights is dead: its answers add nothing to the set. The shares are those that
training stored with each answer (ties go to the earlier slot).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from vpo_lightning.evaluation.report.curves import rounded
from vpo_lightning.evaluation.report.folders import Run
from vpo_lightning.evaluation.report.stored import read_columns, spread, step_files

MOST_STEPS = 60  # read for the shares over training
LAST_STEPS = 12  # read for the map at its end
_MOST_ROLLOUTS = 4096  # of one file, for the map
DEAD_SHARE = 0.01
"""A slot that wins less than this share of the weights is dead."""
_SLOT = "answers.list.element."


def witness_map(run: Run) -> dict[str, Any]:
    """The shares of the slots; empty for single answers and for runs without rollouts.

    Returns:
        ``steps`` with ``shares`` (one list of slots each), ``slots`` (one row each over the last
        steps: share, dead, copies, unparsed), ``winners`` (the share of chains in which 1, 2, .. M
        slots win some weights) and, where all prompts have the same K objectives,
        ``objectives`` with ``map``: the share of each slot among the weights whose largest entry is
        that objective's.
    """
    steps = step_files(run)
    shares: dict[int, list[float]] = {}
    last: list[dict[str, np.ndarray]] = []
    chosen = spread(list(steps), MOST_STEPS)
    for step in chosen:
        found = [slots for path in steps[step] if (slots := _slots(run, path)) is not None]
        if not found:
            continue
        merged = {key: np.concatenate([slots[key] for slots in found]) for key in found[0]}
        shares[step] = _mean_by_slot(merged, "win_share")
        if step in chosen[-LAST_STEPS:]:
            last.append(merged)
    if not last or max(map(len, shares.values())) < 2:
        return {}
    end = {key: np.concatenate([slots[key] for slots in last]) for key in last[0]}
    return {
        "steps": [step + 1 for step in shares],
        "shares": [[rounded(value) for value in row] for row in shares.values()],
        "slots": _rows(end),
        "winners": _winning_slots(end),
        **_by_objective(run, [path for step in chosen[-LAST_STEPS:] for path in steps[step]]),
    }


def _slots(run: Run, path: Any) -> dict[str, np.ndarray] | None:
    """Slot, win share and flags of every answer of a file; None without shares of two slots."""
    fields = ("slot", "win_share", "is_duplicate", "is_parsed")
    table = read_columns(run, path, [f"{_SLOT}{name}" for name in fields])
    if table is None or table.num_rows == 0:
        return None
    answers = table["answers"].combine_chunks().flatten()
    columns = {
        name: np.asarray(answers.field(name).cast(pa.float64()).fill_null(np.nan))
        for name in fields
    }
    if np.isnan(columns["win_share"]).all():
        return None  # the weights are those of other objectives than the task's own
    return columns


def _mean_by_slot(slots: dict[str, np.ndarray], key: str) -> list[float]:
    number = slots["slot"].astype(int)
    counts = np.bincount(number).clip(1)
    return (np.bincount(number, np.nan_to_num(slots[key])) / counts).tolist()


def _rows(end: dict[str, np.ndarray]) -> list[dict[str, Any]]:
    shares, copies, parsed = (
        _mean_by_slot(end, key) for key in ("win_share", "is_duplicate", "is_parsed")
    )
    return [
        {
            "slot": slot + 1,
            "share": rounded(share),
            "is_dead": share < DEAD_SHARE,
            "copies": rounded(copies[slot]),
            "unparsed": rounded(1 - parsed[slot]),
        }
        for slot, share in enumerate(shares)
    ]


def _winning_slots(end: dict[str, np.ndarray]) -> list[float]:
    """The shares of chains with 1, 2, .. M slots that win at least a `DEAD_SHARE` of weights."""
    starts = np.flatnonzero(end["slot"] == 0)
    winning = np.add.reduceat((np.nan_to_num(end["win_share"]) >= DEAD_SHARE).astype(int), starts)
    counts = np.bincount(winning, minlength=int(end["slot"].max()) + 2)[1:]
    return [rounded(value) for value in (counts / len(starts)).tolist()]


def _by_objective(run: Run, paths: Sequence[Any]) -> dict[str, Any]:
    """Wins by slot and by the objective that a weight draw stresses most."""
    names: list[str] | None = None
    wins: np.ndarray | None = None
    for path in paths:
        columns = ["sample", "objectives", "weights", f"{_SLOT}rewards"]
        table = read_columns(run, path, columns)
        if table is None:
            continue
        weights = np.empty((0, 0))
        for record in table.slice(0, _MOST_ROLLOUTS).to_pylist():
            if record["weights"] is not None:
                weights = np.array(record["weights"])
            rewards = np.array([answer["rewards"] for answer in record["answers"]])
            if names is None:
                names, wins = record["objectives"], np.zeros((len(rewards), len(weights[0])))
            assert wins is not None
            if record["objectives"] != names or wins.shape != (len(rewards), weights.shape[1]):
                return {}
            winners = (rewards @ weights.T).argmax(0)
            np.add.at(wins, (winners, weights.argmax(1)), 1)
    if names is None or wins is None or len(names) < 2:
        return {}
    map_ = wins / wins.sum(0).clip(1)
    seen = wins.sum(0) > 0  # fixed weights stress one objective only
    return {
        "objectives": [name for name, is_seen in zip(names, seen, strict=True) if is_seen],
        "map": [[rounded(v) for v, s in zip(row, seen, strict=True) if s] for row in map_.tolist()],
    }
