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
        object.__setattr__(self, "detour_probabilities", tuple(self.detour_probabilities))
        shares = (self.direct, self.gold, self.diamond)
        if min(shares) < 0 or sum(shares) == 0:
            raise ConfigError(
                f"warmup.demonstrations direct, gold, diamond = {shares}: expected frequencies, "
                "0 or more, not all 0"
            )
        if not self.detour_probabilities or not all(
            0 <= p <= 1 for p in (*self.detour_probabilities, self.avoid_lava)
        ):
            raise ConfigError(
                f"warmup.demonstrations.detour_probabilities={list(self.detour_probabilities)}, "
                f"avoid_lava={self.avoid_lava}: expected probabilities in [0, 1]"
            )

    def __call__(self, row: PromptRow, rng: Random) -> str:
        """The text of one route, in the row's language (moves or cells).

        Args:
            row: A row of `MazeTask`.
            rng: Source of all draws.
        """
        maze = maze_of(row)
        cells = self.route(maze, rng)
        if row.ground_truth["answers"] == "cells":
            return write_cells(cells, maze.size)
        return write_moves(cells, maze)

    def route(self, maze: Maze, rng: Random) -> list[int]:
        """The cells that one route enters, the end last."""
        zones = [frozenset[int](), maze.gold, maze.diamonds]
        (items,) = rng.choices(zones, (self.direct, self.gold, self.diamond))
        detours = rng.choice(self.detour_probabilities)
        blocked = WALL + LAVA if rng.random() < self.avoid_lava else WALL
        walker = _Walker(maze, blocked, rng)
        for probability in [detours] * _TRIES + [0.0]:
            cells = walker.walk(items, probability)
            if cells and 2 * len(items.intersection(cells)) >= len(items):
                return cells
        # A few grids have no such walk: then the way to the end, if need be through lava.
        to_end = frozenset[int]()
        return walker.walk(to_end, 0.0) or _Walker(maze, WALL, rng).walk(to_end, 0.0)


@dataclass(frozen=True)
class _Walker:
    """Walks that never enter `blocked` symbols and always keep the end within reach."""

    maze: Maze
    blocked: str
    rng: Random

    def walk(self, items: frozenset[int], detours: float) -> list[int]:
        """The cells entered by way of `items`, the nearest first, as far as the budget allows.

        Empty if the end cannot be reached within the budget.
        """
        position, left, end = self.maze.start, self.maze.budget, self.maze.end
        cells: list[int] = []
        if self._moves(position, end) > left:
            return cells
        while position != end:
            is_detour = detours > 0 and self.rng.random() < detours
            choices = self._affordable(position, left) if is_detour else []
            goal = self._goal(items, position, left)
            position = self.rng.choice(choices or self._closer(position, goal))
            cells.append(position)
            items -= {position}
            left -= 1
        return cells

    def _goal(self, items: frozenset[int], position: int, left: int) -> int:
        """The nearest item from which the end can still be reached, or else the end."""
        end = self.maze.end
        goal, nearest = end, FAR
        for item in sorted(items):
            moves = self._moves(position, item)
            if moves < nearest and moves + self._moves(item, end) <= left:
                goal, nearest = item, moves
        return goal

    def _closer(self, position: int, goal: int) -> list[int]:
        """The cells beside that are closer to the goal."""
        field = _field(self.maze, goal, self.blocked)
        closer = field[position] - 1
        return [cell for cell in neighbours(self.maze.size)[position] if field[cell] == closer]

    def _affordable(self, position: int, left: int) -> list[int]:
        """The cells beside from which the end can be reached in time, without the end."""
        field = _field(self.maze, self.maze.end, self.blocked)
        return [cell for cell in neighbours(self.maze.size)[position] if 0 < field[cell] < left]

    def _moves(self, position: int, goal: int) -> int:
        return _field(self.maze, goal, self.blocked)[position]


@lru_cache(maxsize=8192)
def _field(maze: Maze, goal: int, blocked: str) -> list[int]:
    """Moves from every cell to `goal`; the end is far from all others, as no walk leaves it."""
    field = maze.distances(goal, blocked)
    if goal != maze.end:
        field[maze.end] = FAR
    return field
