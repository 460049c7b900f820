"""The authored program problems: measures by hand, and programs in the sandbox."""

from __future__ import annotations

import itertools
import math

import pytest
from scipy.optimize import minimize

from vpo_lightning.errors import ConfigError
from vpo_lightning.sandbox.sandbox import Sandbox
from vpo_lightning.tasks.program_search.problems import (
    BEST_KNOWN_RADII,
    CIRCLES,
    LOWEST,
    landscape,
    measure_circles,
    measure_minimum,
)
from vpo_lightning.tasks.program_search.task import ProgramSearchTask


def test_the_stated_minimum_is_the_lowest_that_local_searches_find() -> None:
    starts = itertools.product(range(-5, 6), repeat=2)
    found = min(minimize(lambda p: landscape(p[0], p[1]), s).fun for s in starts)
    assert found == pytest.approx(LOWEST, abs=1e-6)


def test_points_are_measured_by_their_gap_and_bad_ones_are_worth_nothing() -> None:
    best = [0.54215212, -1.03566996]
    assert measure_minimum([best, best, best]) == pytest.approx([1.0, 1.0], abs=1e-6)
    other = math.exp(LOWEST - landscape(0.0, 0.0))
    assert measure_minimum([best, [0, 0], None]) == pytest.approx(
        [(1 + other) / 3, 1 / 3], abs=1e-6
    )
    for point in ([math.nan, 0], [6, 0], [1], "12", [True, 0], [10**400, 0], {}):
        assert measure_minimum([point]) == [0.0, 0.0]


def test_circles_count_if_all_are_inside_and_apart() -> None:
    grid = [[(2 * i + 1) / 12, (2 * j + 1) / 12, 1 / 12] for i in range(6) for j in range(6)]
    circles = grid[:CIRCLES]
    assert measure_circles([circles]) == pytest.approx([26 / 12 / BEST_KNOWN_RADII, 1.0])
    overlapping = [*circles[:-1], [circles[0][0], circles[0][1], 0.01]]
    assert measure_circles([overlapping]) == [0.0, 1 - 2 / 26]
    outside = [*circles[:-1], [1.0, 1.0, 0.1]]
    assert measure_circles([outside]) == [0.0, 1 - 1 / 26]
    for returned in (None, [], circles[:5], [[0, 0]] * 26, [[0.5, 0.5, math.nan]] * 26):
        assert measure_circles([returned])[0] == 0.0


def test_the_start_programs_work_and_are_poor() -> None:
    with Sandbox(test_seconds=10, threads=4) as sandbox:
        task = ProgramSearchTask(sandbox=sandbox)
        minimum, packing = task.rows("test")
        value, hits, brevity = task.score(minimum.ground_truth["start_program"], minimum)
        assert 0.3 < value < 0.9
        assert hits < 1
        assert 0 < brevity < 1
        radii, order, _ = task.score(packing.ground_truth["start_program"], packing)
        assert radii == pytest.approx(26 / 12 / BEST_KNOWN_RADII)
        assert order == 1.0
        assert task.score("def solve(*a): return undefined", packing) == [0.0, 0.0, 0.0]
        assert not task.is_parsed("print(1)")


def test_an_unknown_problem_is_refused_with_the_options() -> None:
    with pytest.raises(ConfigError, match="minimize_function, pack_circles"):
        ProgramSearchTask(problem="knapsack")
