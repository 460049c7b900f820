"""What a reader asks first: did the method beat the baseline, is it diverse, is anything wrong."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from vpo_lightning.evaluation.intervals import Difference
from vpo_lightning.evaluation.report.evaluations import Evaluated, column_title
from vpo_lightning.evaluation.report.folders import Run

BASELINE = "grpo"
_MINUS = "\N{MINUS SIGN}"


@dataclass(frozen=True)
class Contest:
    """The two groups of evaluations that the headline compares, at one setting.

    Attributes:
        setting: ``T=0.7``.
        hero: Name of the method in question.
        rival: Name of what it is compared with.
        heroes: Its evaluations, one for each run.
        rivals: Those it is compared with.
        is_over_seeds: Whether its runs differ in their seeds only, as far as seeds tell.
    """

    setting: str
    hero: str
    rival: str
    heroes: list[Evaluated]
    rivals: list[Evaluated]
    is_over_seeds: bool


def contest(runs: Sequence[Run], entries: Sequence[Evaluated]) -> Contest | None:
    """Who is compared with whom: vpo with grpo where there are both, else with the start policy.

    The first setting counts, and runs of the first evaluated run's task. The hero is the first
    method whose name begins with ``vpo``, else the first that is not the baseline. None without an
    evaluation of a trained policy.
    """
    trained = [entry for entry in entries if entry.label == entry.run]
    if not trained:
        return None
    setting = trained[0].setting
    by_label = {run.label: run for run in runs}
    task = by_label[trained[0].run].config.get("task")
    entries = [entry for entry in entries if by_label[entry.run].config.get("task") == task]
    trained = [entry for entry in entries if entry.label == entry.run]
    by_method: dict[str, list[Evaluated]] = {}
    for entry in trained:
        if entry.setting == setting:
            by_method.setdefault(by_label[entry.run].method, []).append(entry)
    names = list(by_method)
    hero = next(
        (name for name in names if name.startswith("vpo")),
        next((name for name in names if name != BASELINE), names[0]),
    )
    starts = [entry for entry in entries if entry.is_start and entry.setting == setting]
    others = [name for name in names if name != hero]
    rival = BASELINE if BASELINE in others else (others[0] if others and not starts else None)
    heroes = by_method[hero]
    seeds = [by_label[entry.run].seed for entry in heroes]
    is_over_seeds = len(set(seeds)) == len(seeds)
    if rival is not None:
        return Contest(setting, hero, rival, heroes, by_method[rival], is_over_seeds)
    if not starts:
        return None
    rival = f"the start policy ({starts[0].policy})"
    return Contest(setting, hero, rival, heroes, starts[:1], is_over_seeds)


def headline_figures(entries: Sequence[Evaluated]) -> list[str]:
    """The figures of the tiles: a set of answers, the best of the most, one answer, diversity."""
    shared = [key for key in entries[0].figures if all(key in e.figures for e in entries)]
    ks = sorted(int(m[1]) for key in shared if (m := re.fullmatch(r"expected_max@(\d+)", key)))
    middle = [f"expected_max@{ks[-2] if len(ks) > 2 else ks[-1]}"] if ks else []
    wanted = ["deployed_expected_max", *middle, "best@1", "diversity"]
    return [key for key in wanted if key in shared]


_WORDS = {
    "deployed_expected_max": "one deployed set",
    "best@1": "a single answer",
    "diversity": "diversity",
}
_ABOUT = {
    "deployed_expected_max": "E_w: its best answer for a random weighting of the objectives",
    "best@1": "best@1: mean scalar reward",
    "diversity": "Mean L1 distance between reward vectors",
}


def tiles(match: Contest, differences: Mapping[str, Difference]) -> list[dict[str, Any]]:
    """One tile for each headline figure: value, rival's value, difference and interval."""
    found: list[dict[str, Any]] = []
    for key in headline_figures([*match.heroes, *match.rivals]):
        mine = fmean(entry.figures[key][0] for entry in match.heroes)
        theirs = fmean(entry.figures[key][0] for entry in match.rivals)
        gap = differences.get(key)
        difference = mine - theirs if gap is None else gap.difference
        found.append(
            {
                "key": key,
                "title": _WORDS.get(key, f"{key.partition('@')[2]} answers"),
                "about": _ABOUT.get(key, "E_w: the best of them for a random weighting"),
                "figure": column_title(key),
                "value": number(mine),
                "rival": number(theirs),
                "difference": signed(difference),
                "interval": "" if gap is None else f"{signed(gap.low)} to {signed(gap.high)}",
                "direction": _direction(difference, gap),
            }
        )
    return found


def verdict(match: Contest, differences: Mapping[str, Difference]) -> list[str]:
    """Up to three sentences: quality of sets, diversity, and what it costs at k = 1."""
    made = {tile["key"]: tile for tile in tiles(match, differences)}
    sentences: list[str] = []
    main = made.get("deployed_expected_max") or next(iter(made.values()), None)
    if main is not None:
        verb = {"up": "beats", "down": "falls behind", "even": "is level with"}[main["direction"]]
        sentences.append(
            f"{match.hero} {verb} {match.rival}: {main['title']} is worth {main['value']} "
            f"against {main['rival']} ({main['difference']}{_bracket(main)})."
        )
    spread = made.get("diversity")
    if spread is not None:
        words = {
            "up": "Its answers are more diverse",
            "down": "Its answers are less diverse",
            "even": "Its answers are neither more nor less diverse for certain",
        }
        sentences.append(
            f"{words[spread['direction']]}: {spread['value']} against {spread['rival']} "
            f"({spread['difference']}{_bracket(spread)})."
        )
    single = made.get("best@1")
    if single is not None and single["direction"] != "even":
        word = "gains" if single["direction"] == "up" else "gives up"
        amount = single["difference"].lstrip(f"+{_MINUS}")
        sentences.append(f"At k = 1 it {word} {amount} of scalar reward.")
    return sentences


def _bracket(tile: Mapping[str, Any]) -> str:
    return f"; 95% interval {tile['interval']}" if tile["interval"] else ""


def _direction(difference: float, gap: Difference | None) -> str:
    """Up or down; even if the interval holds zero, or if three digits show no difference."""
    is_unclear = gap is not None and gap.low <= 0 <= gap.high
    if is_unclear or abs(difference) < 0.0005:
        return "even"
    return "up" if difference > 0 else "down"


def number(value: float) -> str:
    """Three decimals for shares and rewards, fewer for large numbers."""
    if abs(value) < 10:
        return f"{value:.3f}"
    return f"{value:.1f}" if abs(value) < 1000 else f"{value:,.0f}"


def signed(value: float) -> str:
    """The same with a sign; a typographic minus."""
    return f"{_MINUS if value < 0 else '+'}{number(abs(value))}"
