"""The files of a search: archive and result (docs/search.md)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from vpo_lightning.evaluation.files import write_text
from vpo_lightning.searching.budget import Spent
from vpo_lightning.searching.curves import mean_curves
from vpo_lightning.searching.loop import PromptSearch
from vpo_lightning.searching.quality import FIGURES


def write_archive(searches: Sequence[PromptSearch], path: Path) -> None:
    """Writes every answer, one prompt a line, without anything that a clock decides."""
    lines = [
        json.dumps(
            {
                "id": search.problem.row.id,
                "objectives": [objective.name for objective in search.problem.row.objectives],
                "answers": [asdict(answer) for answer in search.problem.archive.answers],
            }
        )
        for search in searches
    ]
    write_text("".join(f"{line}\n" for line in lines), path)


def write_result(
    searches: Sequence[PromptSearch], path: Path, description: Mapping[str, Any]
) -> dict[str, Any]:
    """Writes and returns the result.

    Args:
        searches: All prompts.
        path: The file.
        description: What the search was: name, policy, seed, budget, status.
    """
    spent, failures = Spent(), Counter[str]()
    for search in searches:
        spent.add(search.spent)
        failures.update(search.failures)
    kinds = ("timeout", "failed", "unparsed", "missing", "truncated", "ended_early", "stalled")
    curves = [search.curve.points for search in searches]
    result = {
        "format": 1,
        **description,
        "spent": asdict(spent),
        "failures": {kind: failures[kind] for kind in kinds},
        "figures": list(FIGURES),
        "prompts": [_prompt(search) for search in searches],
        "curves": mean_curves(curves),
    }
    write_text(json.dumps(result) + "\n", path)
    return result


def _prompt(search: PromptSearch) -> dict[str, Any]:
    last = search.curve.last()
    return {
        "id": search.problem.row.id,
        "spent": asdict(search.spent),
        **last,
        "solved": bool(last["solved"]),
        "curve": search.curve.points,
    }
