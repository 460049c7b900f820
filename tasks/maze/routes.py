"""From the text of an answer to the cells it visits, and from visited cells to the reward vector.

An answer is a list of moves (``RIGHT DOWN ...``) or of the cells entered (``r0c1 r1c1 ...``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache

from vpo_lightning.tasks.maze.grid import BONUS, MOVES, WALL, Maze, targets

Route = tuple[int, ...]

_MOVE_WORD = re.compile(rf"\b(?:{'|'.join(MOVES)})\b")
_MOVE_NUMBER = {move: number for number, move in enumerate(MOVES)}


def parse_moves(text: str) -> Route:
    """The moves in a text, as indices into `MOVES`: whole words in any case, all else ignored."""
    return tuple([_MOVE_NUMBER[word] for word in _MOVE_WORD.findall(text.upper())])


def parse_cells(text: str, size: int) -> Route:
    """The cells a text names, up to the first word that is no cell of the grid."""
    numbers = cell_numbers(size)
    route: list[int] = []
    for word in text.split():
        if word not in numbers:
            break
        route.append(numbers[word])
    return tuple(route)


def write_moves(cells: Iterable[int], maze: Maze) -> str:
    """The moves that enter `cells` in this order from the start."""
    words: list[str] = []
    position = maze.start
    for cell in cells:
        words.append(MOVES[targets(maze.size)[position].index(cell)])
        position = cell
    return " ".join(words)


def write_cells(cells: Iterable[int], size: int) -> str:
    """The names of `cells`, in this order."""
    names = cell_names(size)
    return " ".join([names[cell] for cell in cells])


@lru_cache
def cell_names(size: int) -> tuple[str, ...]:
    """The name of every cell: ``r0c0``, ``r0c1``, and so on row by row."""
    return tuple(f"r{row}c{column}" for row in range(size) for column in range(size))


@lru_cache
def cell_numbers(size: int) -> dict[str, int]:
    """The cell that each name of `cell_names` stands for."""
    return {name: cell for cell, name in enumerate(cell_names(size))}


def walk_moves(maze: Maze, moves: Route) -> list[int]:
    """The cells where a walk by `moves` stands, the start first, one more for each move used.

    A move into a wall or off the grid stays in place and uses a move. The walk finishes at the end
    or when the budget is spent.
    """
    cells, lead, end = maze.cells, targets(maze.size), maze.end
    position = maze.start
    walk = [position]
    for move in moves[: maze.budget]:
        target = lead[position][move]
        if cells[target] != WALL:
            position = target
        walk.append(position)
        if position == end:
            break
    return walk


def walk_cells(maze: Maze, route: Route) -> list[int]:
    """The cells where a walk that enters `route` stands, the start first.

    Each cell must be open and beside the one before. The walk finishes at the end, when the budget
    is spent, or at the first cell that cannot be entered: a route with such a cell before the end
    is worth nothing, since its walk does not reach the end.
    """
    cells, lead, end = maze.cells, targets(maze.size), maze.end
    position = maze.start
    walk = [position]
    for cell in route[: maze.budget]:
        if cell == position or cell not in lead[position] or cells[cell] == WALL:
            break
        position = cell
        walk.append(position)
        if position == end:
            break
    return walk


def reward_vector(maze: Maze, walk: Sequence[int], *, convex_bonus: bool = False) -> list[float]:
    """Completion, gold, diamond and avoid_lava of a walk, each in [0, 1].

    All zero unless the walk ends at the end. Gold and diamond are the shares collected (0 if the
    maze has none), avoid_lava is 1 - the share of lava tiles stepped on (1 if there are none); each
    tile counts once.

    Args:
        maze: The maze.
        walk: The cells where the walk stands, from `walk_moves` or `walk_cells`.
        convex_bonus: Squares the components and multiplies them by 1.5, up to 1, if the bonus tile
            was visited. False gives the paper's text, where that tile has no effect.
    """
    if walk[-1] != maze.end:
        return [0.0, 0.0, 0.0, 0.0]
    rewards = [
        1.0,
        _share(maze.gold, walk),
        _share(maze.diamonds, walk),
        1.0 - _share(maze.lava, walk),
    ]
    if not convex_bonus:
        return rewards
    factor = 1.5 if any(maze.cells[cell] == BONUS for cell in walk) else 1.0
    return [min(1.0, factor * reward * reward) for reward in rewards]


def _share(tiles: frozenset[int], walk: Sequence[int]) -> float:
    return len(tiles.intersection(walk)) / len(tiles) if tiles else 0.0
