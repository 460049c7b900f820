"""The two ways to ask about a maze: in words for language models, in one token per cell.

The text style states everything. The compact style, for small models trained from nothing, is the
grid alone: one word per cell that carries position and symbol. It leaves the budget out. In
generated and published mazes the budget follows from the grid (`generation`), so the question is
still complete, but a policy has to learn from rewards how long a walk may be, and its failures
include walks that are too long. In a file with budgets of another kind they would be hidden: use
the text style there.
"""

from __future__ import annotations

from functools import lru_cache

from vpo_lightning.tasks.maze.grid import SYMBOLS, Maze
from vpo_lightning.tasks.maze.routes import cell_names

_BONUS_WITHOUT_EFFECT = "open floor with no effect"
_BONUS_WITH_EFFECT = (
    "bonus tile, which makes gold, diamonds and avoided lava count for half as much more"
)

_TEXT = """\
Find a walk through a maze of {size} rows and {size} columns.

The grid, from the top row to the bottom row, cells separated by spaces:
{grid}

S start; E exit; . open floor; # wall; G gold; D diamond; L lava; B {bonus}.

Rules:
- The walk begins at S, which is row {start[0]}, column {start[1]}, counted from 0 at the top \
left. E is row {end[0]}, column {end[1]}.
- A move is one of UP, DOWN, LEFT, RIGHT and goes to the cell beside. A move into a wall or off \
the grid stays in place and still counts.
- At most {budget} moves count. A walk that does not reach E within them is worth nothing. \
Reaching E ends the walk.
- Entering a cell with gold or a diamond collects it, once. Lava can be entered but should be \
avoided.

What counts: reaching E; the share of the gold collected; the share of the diamonds collected; the \
share of the lava cells never entered."""


def text_prompt(maze: Maze, *, convex_bonus: bool = False) -> str:
    """The question in words: grid, legend, rules, budget and what counts."""
    return _TEXT.format(
        size=maze.size,
        grid=maze.text,
        bonus=_BONUS_WITH_EFFECT if convex_bonus else _BONUS_WITHOUT_EFFECT,
        start=maze.coordinates(maze.start),
        end=maze.coordinates(maze.end),
        budget=maze.budget,
    )


def compact_prompt(maze: Maze) -> str:
    """The grid in one word per cell: ``r0c0. r0c1# ... r6c6E``."""
    words = _compact_words(maze.size)
    return " ".join([words[cell][symbol] for cell, symbol in enumerate(maze.cells)])


def compact_vocabulary(size: int) -> list[str]:
    """Every word of the compact prompts of one size: each cell with each symbol."""
    return [word for by_symbol in _compact_words(size) for word in by_symbol.values()]


@lru_cache
def _compact_words(size: int) -> tuple[dict[str, str], ...]:
    return tuple({symbol: name + symbol for symbol in SYMBOLS} for name in cell_names(size))
