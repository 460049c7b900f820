"""Mazes with a designed conflict: gold in one corner, diamonds in the other, a budget for one.

Prim's algorithm carves a perfect maze on the cells with even coordinates; extra openings add ways
around. Start and end lie in two opposite corners, gold and diamonds around the other two. The
budget lets a walk visit either of these corners with some moves to spare, but never both.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from random import Random
from typing import TypeVar

from vpo_lightning.errors import ConfigError
from vpo_lightning.tasks.maze.construction import Construction
from vpo_lightning.tasks.maze.grid import (
    BONUS,
    DIAMOND,
    END,
    FAR,
    GOLD,
    LAVA,
    OPEN,
    START,
    WALL,
    Maze,
    distances,
    neighbours,
)

_ATTEMPTS = 1000
_T = TypeVar("_T")
_Cells = list[str]


def generate(size: int, construction: Construction, rng: Random) -> Maze:
    """A maze drawn by `rng`, of which only `random()` is used: the same in every Python version.

    Guarantees: the end can be reached without lava within the budget; each zone's corner can be
    visited within the budget with `slack` moves to spare; no walk visits both corners within the
    budget; every item, lava tile and the bonus tile can be reached without crossing the end.

    Raises:
        ConfigError: No such maze among 1000 drawn ones.
    """
    for _ in range(_ATTEMPTS):
        maze = _attempt(size, construction, rng)
        if maze is not None:
            return maze
    raise ConfigError(
        f"task.construction: none of {_ATTEMPTS} mazes of size {size} drawn with {construction} "
        "met the guarantees; set fewer items or lava tiles, more openings, a larger item_radius, "
        "or a smaller slack"
    )


def _attempt(size: int, construction: Construction, rng: Random) -> Maze | None:
    """One draw, or None if it does not keep the guarantees."""
    cells = _carve(size, rng)
    _open_walls(cells, size, _between(construction.openings, rng), rng)
    start, end, *zones = _corners(size, rng)
    items = construction.items
    cells[start], cells[end], cells[size * size // 2] = START, END, BONUS
    if not all(
        _scatter(cells, symbol, _near(size, corner, construction.item_radius), items, rng)
        for symbol, corner in zip((GOLD, DIAMOND), zones, strict=True)
    ):
        return None
    if not _scatter(cells, LAVA, _interior(size, construction.lava_margin), construction.lava, rng):
        return None
    budget = _budget(cells, size, (start, end, *zones), construction.slack)
    return None if budget is None else Maze(size, "".join(cells), budget)


def _carve(size: int, rng: Random) -> _Cells:
    """A perfect maze on the cells with even coordinates (Prim's algorithm on random weights)."""
    links = _links(size)
    first = 2 * _index(rng, (size + 1) // 2) * (size + 1)
    cells = [WALL] * (size * size)
    cells[first] = OPEN
    frontier = list(links[first])
    while frontier:
        wall, cell = _take(frontier, rng)
        if cells[cell] == WALL:
            cells[wall] = cells[cell] = OPEN
            frontier += links[cell]
    return cells


def _open_walls(cells: _Cells, size: int, count: int, rng: Random) -> None:
    """Opens `count` (or all) of the walls that have at least two open cells beside them."""
    beside = neighbours(size)
    walls = [
        cell
        for cell, symbol in enumerate(cells)
        if symbol == WALL and sum(cells[near] == OPEN for near in beside[cell]) >= 2
    ]
    for _ in range(min(count, len(walls))):
        cells[_take(walls, rng)] = OPEN


def _scatter(
    cells: _Cells, symbol: str, places: Sequence[int], count: tuple[int, int], rng: Random
) -> bool:
    """Puts `symbol` on open cells among `places`; False if there are fewer than the least count."""
    free = [cell for cell in places if cells[cell] == OPEN]
    if len(free) < count[0]:
        return False
    for _ in range(min(_between(count, rng), len(free))):
        cells[_take(free, rng)] = symbol
    return True


def _budget(cells: _Cells, size: int, corners: Sequence[int], slack: int) -> int | None:
    """The longer of the shortest walks via a zone's corner + slack; None if a guarantee fails."""
    start, end, gold, diamond = corners
    from_gold = distances(cells, size, gold, end=end)
    from_diamond = distances(cells, size, diamond, end=end)
    via_gold = from_gold[start] + from_gold[end]
    via_diamond = from_diamond[start] + from_diamond[end]
    budget = max(via_gold, via_diamond) + slack
    via_both = from_gold[diamond] + min(
        from_gold[start] + from_diamond[end], from_diamond[start] + from_gold[end]
    )
    reached = all(
        steps < FAR or symbol in (WALL, OPEN)
        for steps, symbol in zip(from_gold, cells, strict=True)
    )
    if not reached or via_both <= budget:
        return None
    around_lava = distances(cells, size, end, end=end, blocked=WALL + LAVA)
    return budget if around_lava[start] <= budget else None


@lru_cache
def _links(size: int) -> dict[int, list[tuple[int, int]]]:
    """For every cell with even coordinates, the (wall between, cell) pairs two steps away."""
    links: dict[int, list[tuple[int, int]]] = {}
    for row in range(0, size, 2):
        for column in range(0, size, 2):
            around = [(row - 2, column), (row + 2, column), (row, column - 2), (row, column + 2)]
            links[row * size + column] = [
                ((row + r) // 2 * size + (column + c) // 2, r * size + c)
                for r, c in around
                if 0 <= r < size and 0 <= c < size
            ]
    return links


@lru_cache
def _near(size: int, corner: int, radius: int) -> tuple[int, ...]:
    row, column = divmod(corner, size)
    return tuple(
        cell
        for cell in range(size * size)
        if abs(cell // size - row) + abs(cell % size - column) <= radius
    )


@lru_cache
def _interior(size: int, margin: int) -> tuple[int, ...]:
    rows = range(margin, size - margin)
    return tuple(row * size + column for row in rows for column in rows)


def _corners(size: int, rng: Random) -> list[int]:
    """Start, end, gold corner, diamond corner: a random diagonal, both directions of each."""
    last = size * size - 1
    first = [(0, last), (size - 1, last + 1 - size)]
    one, other = first if rng.random() < 0.5 else reversed(first)
    return [
        *(one if rng.random() < 0.5 else one[::-1]),
        *(other if rng.random() < 0.5 else other[::-1]),
    ]


def _index(rng: Random, count: int) -> int:
    return int(rng.random() * count)


def _between(bounds: tuple[int, int], rng: Random) -> int:
    return bounds[0] + _index(rng, bounds[1] - bounds[0] + 1)


def _take(items: list[_T], rng: Random) -> _T:
    """Removes a random item of `items` in constant time; the order of the rest changes."""
    place = int(rng.random() * len(items))
    items[place], items[-1] = items[-1], items[place]
    return items.pop()
