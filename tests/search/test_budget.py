"""One stop rule and one account for every search."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.search.conftest import RunSearch, search_vectors
from vpo_lightning.errors import ConfigError
from vpo_lightning.searching.beam import Beam
from vpo_lightning.searching.best_of_n import BestOfN
from vpo_lightning.searching.budget import Budget, Spent
from vpo_lightning.searching.evolve import Evolve
from vpo_lightning.searching.mcts import MCTS
from vpo_lightning.searching.search import Search

SEARCHES: list[Search] = [
    BestOfN(calls_per_round=3),
    Beam(),
    MCTS(),
    Evolve(shown="chain", islands=2),
]
every_search = pytest.mark.parametrize("search", SEARCHES, ids=lambda s: type(s).__name__)


@pytest.mark.parametrize(
    ("limits", "spent", "expected"),
    [
        ({"answers": 7}, Spent(), 2),  # a third chain of three would exceed seven
        ({"answers": 7}, Spent(answers=5), 0),
        ({"calls": 2}, Spent(calls=1), 1),
        ({"calls": 2}, Spent(calls=2), 0),
        ({"tokens": 100}, Spent(), 2),  # at most 50 each
        ({"tokens": 100}, Spent(prompt_tokens=40, completion_tokens=20), 1),  # at least one
        ({"tokens": 100}, Spent(prompt_tokens=60, completion_tokens=39, judge_tokens=1), 0),
        ({"seconds": 1.0}, Spent(generation_seconds=0.5), 4),
        ({"seconds": 1.0}, Spent(generation_seconds=0.5, scorer_seconds=0.5), 0),
        ({"answers": 100, "calls": 3, "tokens": 10_000}, Spent(), 3),
    ],
)
def test_calls_are_made_while_every_limit_has_room(
    limits: dict[str, float], spent: Spent, expected: int
) -> None:
    assert Budget(**limits).affordable(spent, [(3, 50)] * 4) == expected  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "limits",
    [{}, {"answers": 0}, {"calls": 1.5}, {"tokens": True}, {"seconds": -1}, {"hours": 1}],
)
def test_impossible_limits_are_refused_by_name(limits: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="budget"):
        Budget.of(limits)


@every_search
@pytest.mark.parametrize("limits", [{"answers": 13}, {"calls": 7}, {"tokens": 400}], ids=str)
def test_no_search_exceeds_the_budget_and_all_use_it(
    run_search: RunSearch, search: Search, limits: dict[str, int]
) -> None:
    (name, limit), *_ = limits.items()
    for found in run_search(search, **limits):
        used = getattr(found.spent, name)
        longest = {"answers": 3, "calls": 1, "tokens": 80}[name]  # of one call
        assert limit - longest < used < limit + (longest if name == "tokens" else 1)


@every_search
def test_the_account_is_what_the_archive_and_the_curve_say(
    run_search: RunSearch, search: Search
) -> None:
    for found in run_search(search, answers=12):
        points = found.curve.points
        assert found.spent.answers == len(found.problem.archive.answers) == points["answers"][-1]
        assert found.spent.calls == len(points["calls"]) == points["calls"][-1]
        assert found.spent.tokens == points["tokens"][-1]
        assert found.spent.seconds == pytest.approx(points["seconds"][-1])
        calls = {answer.call for answer in found.problem.archive.answers}
        assert calls == set(range(found.spent.calls))
        for axis in ("answers", "calls", "tokens", "seconds", "expected_max", "best"):
            assert points[axis] == sorted(points[axis])


def test_completions_of_one_round_share_their_prompt(run_search: RunSearch, tmp_path: Path) -> None:
    together = run_search(BestOfN(calls_per_round=6), tmp_path / "together", calls=6)[0].spent
    alone = run_search(BestOfN(calls_per_round=1), tmp_path / "alone", calls=6)[0].spent
    assert alone.prompt_tokens == 6 * together.prompt_tokens
    assert alone.completion_tokens == together.completion_tokens  # the same seeds


def test_rejection_ends_with_the_call_that_solves(tmp_path: Path) -> None:
    search = BestOfN(calls_per_round=1, stop_when_solved=True)
    texts = ["[0, 0]", "[0.5, 1]", "[1, 0.8]", "[1, 1]"]
    found = search_vectors(search, texts, tmp_path, answers=9)
    assert found.spent.calls == 3
    assert found.curve.points["solved"] == [0.0, 0.0, 1.0]
    assert found.curve.points["best"] == [0.0, 0.75, 0.9]


def test_a_budget_below_one_chain_is_refused(run_search: RunSearch) -> None:
    with pytest.raises(ConfigError, match=r"budget.answers=2.*3 answers"):
        run_search(BestOfN(), answers=2)
