"""Routes to learn the answer format from: direct, by way of the gold, by way of the diamonds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from random import Random

from vpo_lightning.errors import ConfigError
from vpo_lightning.task import PromptRow
from vpo_lightning.tasks.maze.grid import FAR, LAVA, WALL, Maze, neighbours
from vpo_lightning.tasks.maze.routes import write_cells, write_moves
from vpo_lightning.tasks.maze.rows import maze_of

_TRIES = 4


@dataclass(frozen=True)
class RouteMix:
    """Draws one demonstration route of a maze.

    Every route reaches the end within the budget. One by way of a zone collects at least half of
    its items, with as few moves from item to item as looking one item ahead finds.

    Attributes:
        direct: Relative frequency of routes that just go to the end.
        gold: Of routes by way of the gold.
        diamond: Of routes by way of the diamonds.
        detour_probabilities: Each route draws one of these: how often a move is a random one.
        avoid_lava: Share of the routes that never enter lava.

    Raises:
        ConfigError: Frequencies that are negative or all zero, probabilities outside [0, 1].
    """

    direct: float = 0.5
    gold: float = 0.25
    diamond: float = 0.25
    detour_probabilities: Sequence[float] = (0.0, 0.1, 0.25)
    avoid_lava: float = 0.5

    def __post_init__(self) -> None:
        """Checks the numbers."""
        shares = (self.direct, self.gold, self.diamond)
        if min(shares) < 0 or sum(shares) == 0:
            raise ConfigError(
                f"demonstrations.direct, gold, diamond = {shares}: expected frequencies, 0 or "
                "more, not all 0"
            )
        if not self.detour_probabilities or not all(
            0 <= p <= 1 for p in (*self.detour_probabilities, self.avoid_lava)
        ):
            raise ConfigError(
                f"demonstrations.detour_probabilities={list(self.detour_probabilities)}, "
                f"avoid_lava={self.avoid_lava}: expected probabilities in [0, 1]"
            )

    def __call__(self, row: PromptRow, rng: Random, style: object = None) -> str:
        """The text of one route, in the row's language (moves or cells).

        Args:
            row: A row of `MazeTask`.
            rng: Source of all draws.
            style: The prompt style that is demonstrated; a route is the same in all of them.
        """
        del style
        maze = maze_of(row)
        cells = self.route(maze, rng)
        if row.ground_truth["answers"] == "cells":
            return write_cells(cells, maze.size)
        return write_moves(cells, maze)

    def route(self, maze: Maze, rng: Random) -> list[int]:
        """The cells that one route enters, the end last."""
        zone = rng.random() * (self.direct + self.gold + self.diamond) - self.direct
        items = frozenset() if zone < 0 else maze.gold if zone < self.gold else maze.diamonds
        place = int(rng.random() * len(self.detour_probabilities))
        detours = self.detour_probabilities[place]
        blocked = WALL + LAVA if rng.random() < self.avoid_lava else WALL
        for probability in [detours] * _TRIES + [0.0]:
            cells = _walk(maze, items, probability, blocked, rng)
            if cells and 2 * len(items.intersection(cells)) >= len(items):
                return cells
        # Some grids have no such walk: then the way to the end, if need be through lava.
        return _walk(maze, frozenset(), 0.0, blocked, rng) or _walk(
            maze, frozenset(), 0.0, WALL, rng
        )


def _walk(
    maze: Maze, items: frozenset[int], detours: float, blocked: str, rng: Random
) -> list[int]:
    """A walk by way of the nearest of `items` that can still be afforded, then to the end.

    Empty if the end cannot be reached within the budget.
    """
    to_end = _field(maze, maze.end, blocked)
    position, left = maze.start, maze.budget
    if to_end[position] > left:
        return []
    cells: list[int] = []
    goal = _next_goal(maze, items, position, left, blocked)
    while position != maze.end:
        is_detour = detours > 0 and rng.random() < detours
        position = _step(maze, position, left, None if is_detour else goal, blocked, rng)
        cells.append(position)
        left -= 1
        if position in items:
            items -= {position}
            goal = _next_goal(maze, items, position, left, blocked)
        elif goal != maze.end and _field(maze, goal, blocked)[position] + to_end[goal] > left:
            goal = _next_goal(maze, items, position, left, blocked)
    return cells


def _next_goal(maze: Maze, items: frozenset[int], position: int, left: int, blocked: str) -> int:
    """The nearest item from which the end can still be reached, or else the end."""
    to_end = _field(maze, maze.end, blocked)
    goal, nearest = maze.end, FAR
    for item in sorted(items):
        moves = _field(maze, item, blocked)[position]
        if moves < nearest and moves + to_end[item] <= left:
            goal, nearest = item, moves
    return goal


def _step(maze: Maze, position: int, left: int, goal: int | None, blocked: str, rng: Random) -> int:
    """The next cell: closer to the goal, or any from which the end can be reached in time."""
    beside = neighbours(maze.size)[position]
    if goal is None:
        to_end = _field(maze, maze.end, blocked)
        choices = [near for near in beside if near != maze.end and to_end[near] < left]
        if choices:
            return choices[int(rng.random() * len(choices))]
        goal = maze.end
    field = _field(maze, goal, blocked)
    closer = field[position] - 1
    choices = [near for near in beside if field[near] == closer]
    return choices[int(rng.random() * len(choices))]


@lru_cache(maxsize=8192)
def _field(maze: Maze, cell: int, blocked: str) -> list[int]:
    """Moves from every cell to `cell`; the end is far from all others, as no walk leaves it."""
    field = maze.distances(cell, blocked)
    if cell != maze.end:
        field[maze.end] = FAR
    return field
