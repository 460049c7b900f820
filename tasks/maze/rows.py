"""The mazes of generated splits, and the maze of a prompt row."""

from __future__ import annotations

import zlib
from functools import lru_cache
from random import Random

from vpo_lightning.task import PromptRow
from vpo_lightning.tasks.maze.construction import Construction
from vpo_lightning.tasks.maze.generation import generate
from vpo_lightning.tasks.maze.grid import Maze

# One grid in 8 belongs to the test split, whatever seed draws it. Different seeds alone would not
# keep the splits apart: of 256 random 5x5 mazes, about 20 are among 16,384 others.
_TEST_SHARE = 8


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
