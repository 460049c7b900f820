"""Prompt rows made on demand, the mazes they are made from, and the maze of a row again."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from functools import lru_cache
from random import Random
from typing import overload

from vpo_lightning.task import PromptRow
from vpo_lightning.tasks.maze.construction import Construction
from vpo_lightning.tasks.maze.generation import generate
from vpo_lightning.tasks.maze.grid import Maze

# One grid in 8 belongs to the test split, whatever seed draws it. Different seeds alone would not
# keep the splits apart: of 256 random 5x5 mazes, about 20 are among 16,384 others.
_TEST_SHARE = 8


class LazyRows(Sequence[PromptRow]):
    """`count` rows, each made by `make_row(index)` whenever it is asked for."""

    def __init__(self, count: int, make_row: Callable[[int], PromptRow]) -> None:
        self._count = count
        self._make_row = make_row

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> PromptRow: ...

    @overload
    def __getitem__(self, index: slice) -> list[PromptRow]: ...

    def __getitem__(self, index: int | slice) -> PromptRow | list[PromptRow]:
        chosen = range(self._count)[index]
        if isinstance(chosen, range):
            return [self._make_row(i) for i in chosen]
        return self._make_row(chosen)


def draw_maze(size: int, construction: Construction, seed: int, split: str, index: int) -> Maze:
    """The maze number `index` of a generated split; no grid is in both splits.

    Raises:
        ConfigError: `generate` found no maze.
    """
    rng = Random(f"{seed}/{split}/{index}")
    while True:
        maze = generate(size, construction, rng)
        is_test = zlib.crc32(maze.cells.encode()) % _TEST_SHARE == 0
        if is_test == (split == "test"):
            return maze


def maze_of(row: PromptRow) -> Maze:
    """The maze that a row asks about."""
    return _cached_maze(row.ground_truth["grid_text"], row.ground_truth["max_steps"])


_cached_maze = lru_cache(maxsize=1024)(Maze.from_text)
