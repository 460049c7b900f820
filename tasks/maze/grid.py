"""A maze as a flat string of symbols, and how far its cells are from each other.

A cell holds one symbol; start, end and bonus tile are open floor with nothing else on it.
Cells are numbered row by row from the top left corner; cell ``r * size + c`` is row r, column c.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

OPEN, WALL, START, END, GOLD, DIAMOND, LAVA, BONUS = SYMBOLS = ".#SEGDLB"
MOVES = ("UP", "DOWN", "LEFT", "RIGHT")

# A cell that cannot be reached is farther than any budget, so that sums of distances compare well.
FAR = 1_000_000
_BLOCKED = FAR + 1


@dataclass(frozen=True)
class Maze:
    """One maze.

    Attributes:
        size: Number of rows and of columns.
        cells: The size * size symbols, row by row.
        budget: Number of moves a walk may use.
    """

    size: int
    cells: str
    budget: int

    @classmethod
    def from_text(cls, grid_text: str, budget: int) -> Maze:
        """The maze of a grid written as rows of symbols separated by spaces (not validated)."""
        rows = grid_text.split("\n")
        return cls(len(rows), "".join(grid_text.split()), budget)

    @cached_property
    def start(self) -> int:
        """The cell where a walk begins."""
        return self.cells.index(START)

    @cached_property
    def end(self) -> int:
        """The cell that ends a walk."""
        return self.cells.index(END)

    @cached_property
    def gold(self) -> frozenset[int]:
        """The cells with gold."""
        return self.find(GOLD)

    @cached_property
    def diamonds(self) -> frozenset[int]:
        """The cells with a diamond."""
        return self.find(DIAMOND)

    @cached_property
    def lava(self) -> frozenset[int]:
        """The cells with lava."""
        return self.find(LAVA)

    def find(self, symbol: str) -> frozenset[int]:
        """The cells that hold `symbol`."""
        return frozenset(cell for cell, found in enumerate(self.cells) if found == symbol)

    @property
    def text(self) -> str:
        """The grid as rows of symbols separated by spaces."""
        size = self.size
        rows = (self.cells[i : i + size] for i in range(0, size * size, size))
        return "\n".join(" ".join(row) for row in rows)

    def coordinates(self, cell: int) -> list[int]:
        """Row and column of a cell."""
        return list(divmod(cell, self.size))

    def distances(self, source: int, blocked: str = WALL) -> list[int]:
        """Moves between `source` and every cell, on walks that enter the end last (see below)."""
        return distances(self.cells, self.size, source, end=self.end, blocked=blocked)


@lru_cache
def targets(size: int) -> tuple[tuple[int, int, int, int], ...]:
    """For every cell, where UP, DOWN, LEFT and RIGHT lead; off the grid is the cell itself."""
    return tuple(
        (
            cell - size if cell >= size else cell,
            cell + size if cell < size * (size - 1) else cell,
            cell - 1 if cell % size else cell,
            cell + 1 if (cell + 1) % size else cell,
        )
        for cell in range(size * size)
    )


@lru_cache
def neighbours(size: int) -> tuple[tuple[int, ...], ...]:
    """For every cell, the cells beside it."""
    return tuple(tuple(t for t in four if t != c) for c, four in enumerate(targets(size)))


def distances(
    cells: str | list[str], size: int, source: int, *, end: int, blocked: str = WALL
) -> list[int]:
    """The least number of moves between `source` and every cell, `FAR` or more where none exist.

    Reaching the end finishes a walk, so paths that would cross the end do not count.

    Args:
        cells: The symbols of the grid.
        size: Number of rows and of columns.
        source: The cell to count from; it may be the end.
        end: The cell that no path crosses.
        blocked: The symbols that no path enters.
    """
    beside = neighbours(size)
    field = [_BLOCKED if symbol in blocked else FAR for symbol in cells]
    field[source] = 0
    frontier, moves = [source], 0
    while frontier:
        moves += 1
        entered: list[int] = []
        for cell in frontier:
            if cell == end != source:
                continue
            for near in beside[cell]:
                if field[near] == FAR:
                    field[near] = moves
                    entered.append(near)
        frontier = entered
    return field
