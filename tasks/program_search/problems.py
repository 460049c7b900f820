"""Two problems that programs are evolved for, written for this project.

What a program returns is JSON that came out of the sandbox; it is measured here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

CIRCLES = 26
# Sum of the radii of 26 circles in the unit square that AlphaEvolve reports (2025): the scale.
BEST_KNOWN_RADII = 2.635
LOWEST = -1.3780302  # of `landscape` on the square
_SEEDS = (0, 1, 2)
_SIDE = 5.0
_TOLERANCE = 1e-9
_MOST = 1e9


@dataclass(frozen=True)
class ProgramProblem:
    """A problem whose answer is a program with a function ``solve``.

    Attributes:
        name: Its id.
        question: For the policy.
        start: A program that works and is poor; evolution starts from it.
        inputs: What each run of the program gets on standard input, a JSON value a line.
        measure: From what the runs returned (None where one failed) to the rewards but the last.
        objectives: Names and descriptions of those rewards.
    """

    name: str
    question: str
    start: str
    inputs: tuple[str, ...]
    measure: Callable[[Sequence[Any]], list[float]]
    objectives: tuple[tuple[str, str], ...]


def landscape(x: float, y: float) -> float:
    """A function with many local minima on [-5, 5] x [-5, 5]; the least is `LOWEST`."""
    return math.sin(3 * x) * math.cos(3 * y) - math.cos(x - 1) / 2 + (x * x + y * y) / 20


def measure_minimum(returned: Sequence[Any]) -> list[float]:
    """How low the points are on average, and how often they are at the global minimum.

    A point that is no pair of finite numbers in the square is worth nothing.
    """
    gaps = [_gap(point) for point in returned]
    value = sum(0.0 if gap is None else math.exp(-gap) for gap in gaps) / len(gaps)
    hits = sum(gap is not None and gap < 0.01 for gap in gaps) / len(gaps)
    return [value, hits]


def _gap(point: Any) -> float | None:
    if not _are_numbers(point, 2) or max(abs(point[0]), abs(point[1])) > _SIDE:
        return None
    return max(0.0, landscape(point[0], point[1]) - LOWEST)


def measure_circles(returned: Sequence[Any]) -> list[float]:
    """The sum of the radii against the best known, and the share of circles that are in order.

    A circle is in order if it lies in the unit square, overlaps no other, and has a positive
    radius; the sum counts only if all are.
    """
    (circles,) = returned
    is_list = isinstance(circles, list) and len(circles) == CIRCLES
    if not is_list or not all(_are_numbers(circle, 3) for circle in circles):
        return [0.0, 0.0]
    faulty = {i for i, circle in enumerate(circles) if not _is_inside(*circle)}
    for (i, one), (j, other) in combinations(enumerate(circles), 2):
        if math.dist(one[:2], other[:2]) < one[2] + other[2] - _TOLERANCE:
            faulty |= {i, j}
    if faulty:
        return [0.0, 1 - len(faulty) / CIRCLES]
    return [min(1.0, sum(circle[2] for circle in circles) / BEST_KNOWN_RADII), 1.0]


def _is_inside(x: float, y: float, radius: float) -> bool:
    margin = radius - _TOLERANCE
    return radius > 0 and margin <= min(x, y) and max(x, y) <= 1 - margin


def _are_numbers(value: Any, count: int) -> bool:
    return (
        isinstance(value, list)
        and len(value) == count
        and all(isinstance(v, int | float) and not isinstance(v, bool) for v in value)
        and all(abs(v) < _MOST for v in value)  # neither infinite nor not a number
    )


_MINIMIZE = ProgramProblem(
    name="minimize_function",
    question=(
        "Write a Python program with a function solve(seed) that returns [x, y], a point of the "
        "square -5 <= x, y <= 5 where\n"
        "f(x, y) = sin(3 x) cos(3 y) - cos(x - 1) / 2 + (x^2 + y^2) / 20\n"
        "is as low as possible. Draw random numbers only from random.Random(seed). Use the "
        "standard library."
    ),
    start=(
        "import math\nimport random\n\n\n"
        "def f(x, y):\n"
        "    return math.sin(3 * x) * math.cos(3 * y) - math.cos(x - 1) / 2 "
        "+ (x * x + y * y) / 20\n\n\n"
        "def solve(seed):\n"
        "    rng = random.Random(seed)\n"
        "    points = [(rng.uniform(-5, 5), rng.uniform(-5, 5)) for _ in range(20)]\n"
        "    return list(min(points, key=lambda point: f(*point)))\n"
    ),
    inputs=tuple(str(seed) for seed in _SEEDS),
    measure=measure_minimum,
    objectives=(("value", "low function values"), ("hits", "runs that find the global minimum")),
)
_PACK = ProgramProblem(
    name="pack_circles",
    question=(
        f"Write a Python program with a function solve() that returns a list of {CIRCLES} circles "
        "[x, y, radius] inside the unit square 0 <= x, y <= 1. No two circles overlap, and the sum "
        "of the radii is as large as possible. Use the standard library."
    ),
    start=(
        "def solve():\n"
        "    side = 6\n"
        "    radius = 0.5 / side\n"
        "    places = [(2 * i + 1) * radius for i in range(side)]\n"
        f"    return [[x, y, radius] for x in places for y in places][:{CIRCLES}]\n"
    ),
    inputs=("",),
    measure=measure_circles,
    objectives=(("radii", "a large sum of radii"), ("order", "circles inside and apart")),
)
PROBLEMS = {problem.name: problem for problem in (_MINIMIZE, _PACK)}
