"""Prints what searches found at equal budgets, and which prompts one solves and the other never.

python scripts/search_table.py <run>/search/best_of_n <other run>/search/best_of_n --baseline grpo
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

from vpo_lightning.entry import reported
from vpo_lightning.errors import ConfigError
from vpo_lightning.searching.curves import AXES, interval, read_result, solved_by_one_only, value_at

Result = dict[str, Any]


def table(results: Sequence[Result], figure: str, axis: str, budgets: Sequence[float]) -> str:
    """A figure at each budget, one row for each search: mean over prompts ± half of its band."""
    rows = [
        [
            result["policy_name"],
            Path(result["policy"]).name,
            str(result["name"]),
            *(_cell([value_at(p["curve"], axis, figure, b) for p in result["prompts"]])
              for b in budgets),
        ]
        for result in results
    ]  # fmt: skip
    return _markdown(["policy", "run", "search", *(f"{budget:g}" for budget in budgets)], rows)


def differences(
    results: Sequence[Result], baseline: str, figure: str, axis: str, budgets: Sequence[float]
) -> str:
    """The same, minus the baseline's run of the same rank, prompt by prompt."""
    by_kind: dict[tuple[str, str], list[Result]] = defaultdict(list)
    for result in results:
        by_kind[result["policy_name"], result["name"]].append(result)
    theirs = next(runs for (policy, _), runs in by_kind.items() if policy == baseline)
    rows = []
    for (policy, name), runs in by_kind.items():
        for rank, (result, other) in enumerate(zip(runs, theirs, strict=False)):
            if policy != baseline:
                pairs = _shared(result, other)
                cells = [
                    _cell([value_at(a, axis, figure, b) - value_at(c, axis, figure, b)
                           for a, c in pairs], "+")
                    for b in budgets
                ]  # fmt: skip
                rows.append([policy, name, f"{rank + 1}", *cells])
    return _markdown(["policy", "search", "pair", *(f"{budget:g}" for budget in budgets)], rows)


def exclusive(results: Sequence[Result]) -> str:
    """For each two kinds of search, the prompts that one solves in some run and the other never."""
    by_kind: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        by_kind[f"{result['policy_name']}, {result['name']}"].append(result)
    lines = []
    for one, other in combinations(by_kind, 2):
        ours, theirs = solved_by_one_only(by_kind[one], by_kind[other])
        lines.append(f"- {one} / {other}: {_listed(ours)} / {_listed(theirs)}")
    return "\n".join(lines)


def _shared(result: Result, other: Result) -> list[tuple[Any, Any]]:
    curves = {prompt["id"]: prompt["curve"] for prompt in other["prompts"]}
    return [(p["curve"], curves[p["id"]]) for p in result["prompts"] if p["id"] in curves]


def _listed(names: Sequence[str]) -> str:
    return f"{len(names)} ({', '.join(names)})" if names else "0"


def _cell(values: Sequence[float], sign: str = "") -> str:
    band = interval(values)
    return f"{band['mean']:{sign}.3f} ± {band['mean'] - band['low']:.3f}"


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)]) + "\n"


def main() -> None:
    """Prints the tables of the folders on the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--axis", choices=AXES, default="answers")
    parser.add_argument("--budgets", nargs="+", type=float, default=[3, 6, 9, 15, 30])
    parser.add_argument("--figures", nargs="+", default=["expected_max", "solved"])
    parser.add_argument("--baseline", help="name of the policy that the others are paired with")
    parser.add_argument(
        "--exclusive", action="store_true", help="list prompts only one side solves"
    )
    given = parser.parse_args()
    sys.exit(reported(lambda: show(given), sys.argv[1:]))


def show(given: argparse.Namespace) -> int:
    """Prints the tables that the command line asks for; the exit status."""
    results = [read_result(folder) for folder in given.folders]
    names = {result["policy_name"] for result in results}
    if given.baseline and given.baseline not in names:
        raise ConfigError(
            f"--baseline {given.baseline}: expected one of {', '.join(sorted(names))}"
        )
    for figure in given.figures:
        if unknown := [r for r in results if figure not in r["figures"]]:
            known = ", ".join(unknown[0]["figures"])
            raise ConfigError(f"--figures {figure}: expected some of {known}")
    for figure in given.figures:
        print(f"\n{figure} by {given.axis}\n")
        print(table(results, figure, given.axis, given.budgets))
        if given.baseline:
            print(f"Minus {given.baseline}, paired over prompts:\n")
            print(differences(results, given.baseline, figure, given.axis, given.budgets))
    if given.exclusive:
        print(exclusive(results))
    return 0


if __name__ == "__main__":
    main()
