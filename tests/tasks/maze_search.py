"""Mazes searched on coordinates, by code that shares nothing with the task's."""

from __future__ import annotations

from collections import deque

from vpo_lightning.tasks.maze.grid import Maze

Cell = tuple[int, int]
Grid = list[list[str]]


def grid_of(maze: Maze) -> Grid:
    return [line.split(" ") for line in maze.text.split("\n")]


def places(grid: Grid, symbol: str) -> set[Cell]:
    return {(r, c) for r, row in enumerate(grid) for c, found in enumerate(row) if found == symbol}


def steps_from(grid: Grid, source: Cell, avoided: str = "#") -> dict[Cell, int]:
    """Breadth-first search over coordinates; the exit is entered but never left."""
    steps, queue = {source: 0}, deque([source])
    while queue:
        row, column = queue.popleft()
        if grid[row][column] == "E" and (row, column) != source:
            continue
        for near in ((row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1)):
            inside = 0 <= near[0] < len(grid) and 0 <= near[1] < len(grid)
            if inside and near not in steps and grid[near[0]][near[1]] not in avoided:
                steps[near] = steps[row, column] + 1
                queue.append(near)
    return steps


def manhattan(one: Cell, other: Cell) -> int:
    return abs(one[0] - other[0]) + abs(one[1] - other[1])


def zone_corner(grid: Grid, symbol: str) -> Cell:
    """The corner, other than start and end, that is nearest to the items."""
    last = len(grid) - 1
    corners = {(0, 0), (0, last), (last, 0), (last, last)}
    free = corners - places(grid, "S") - places(grid, "E")
    return min(free, key=lambda corner: sum(manhattan(corner, i) for i in places(grid, symbol)))
