"""Budget curves, their bands, and who solves what."""

from __future__ import annotations

import pytest

from vpo_lightning.searching.curves import interval, mean_curves, solved_by_one_only, value_at

CURVE = {
    "answers": [3, 6, 9],
    "calls": [1, 2, 3],
    "tokens": [40, 90, 120],
    "seconds": [0.1, 0.3, 0.4],
    "expected_max": [0.2, 0.5, 0.6],
    "best": [0.1, 0.4, 0.4],
    "selected": [0.1, 0.4, 0.4],
    "solved": [0.0, 0.0, 1.0],
}


@pytest.mark.parametrize(("budget", "value"), [(0, 0.0), (2, 0.0), (3, 0.2), (8, 0.5), (99, 0.6)])
def test_a_budget_pays_for_the_calls_that_ended_within_it(budget: float, value: float) -> None:
    assert value_at(CURVE, "answers", "expected_max", budget) == value


def test_the_mean_curve_has_a_band_over_prompts() -> None:
    other = {name: [0.0, *values[1:]] for name, values in CURVE.items()}
    other |= {name: CURVE[name] for name in ("answers", "calls", "tokens", "seconds")}
    points = mean_curves([CURVE, other])["answers"]
    assert [point["budget"] for point in points] == [3, 6, 9]
    # Values .2 and 0: mean .1, standard deviation .1414, standard error .1.
    assert points[0]["expected_max"] == pytest.approx({"mean": 0.1, "low": -0.096, "high": 0.296})
    assert interval([0.5]) == {"mean": 0.5, "low": 0.5, "high": 0.5}


def test_prompts_solved_by_one_side_in_some_run_and_never_by_the_other() -> None:
    def result(**solved: bool) -> dict[str, object]:
        return {"prompts": [{"id": f"test-{k[1:]}", "solved": v} for k, v in solved.items()]}

    first = [result(p1=True, p2=False, p10=True), result(p1=False, p2=True, p10=True)]
    second = [result(p1=False, p2=True, p3=True, p10=False)]
    assert solved_by_one_only(first, second) == (["test-1", "test-10"], [])
    assert solved_by_one_only(second, first) == ([], ["test-1", "test-10"])
