"""Mazes from a file: one JSON object a line, as the public reference implementation writes them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vpo_lightning.errors import ConfigError
from vpo_lightning.tasks.maze.grid import DIAMOND, END, GOLD, LAVA, START, SYMBOLS, Maze

_COUNTS = {"num_gold": GOLD, "num_diamond": DIAMOND, "num_lava": LAVA}


def read_mazes(path: Path, size: int, key: str) -> list[Maze]:
    """The mazes of a file, in its order.

    Each row has ``grid_text`` (rows of symbols separated by spaces), ``start``, ``end`` ([row,
    column] from 0) and ``max_steps``; the counts ``num_gold``, ``num_diamond``, ``num_lava`` are
    compared with the grid where present, other fields are ignored.

    Args:
        path: The file.
        size: Rows and columns that every grid must have.
        key: The config key that named the file, for messages.

    Raises:
        ConfigError: The file is missing, empty or cut, or a row cannot be used; names the file, the
            row (from 1), the field and the config key.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise ConfigError(
            f"{path}: cannot be read ({reason}); set {key} to a file of mazes"
        ) from error
    if not any(line.strip() for line in lines):
        raise ConfigError(f"{path}: holds no rows; set {key} to a file of mazes")
    mazes: list[Maze] = []
    for number, line in enumerate(lines, start=1):
        try:
            mazes.append(_read_row(line, size))
        except _RowError as error:
            raise ConfigError(f"{path}, row {number}: {error} ({key})") from error
    return mazes


class _RowError(ValueError):
    """What is wrong with a row."""


def _read_row(line: str, size: int) -> Maze:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise _RowError(
            f"not complete JSON at column {error.colno} ({error.msg}); expected one object a line"
        ) from error
    if not isinstance(row, dict):
        raise _RowError(f"expected a JSON object, got {type(row).__name__}")
    cells = _grid(row, size)
    budget = _field(row, "max_steps")
    if isinstance(budget, bool) or not isinstance(budget, int) or budget < 1:
        raise _RowError(f"field max_steps is {budget!r}; expected a whole number, 1 or more")
    maze = Maze(size, cells, budget)
    _compare(row, maze)
    return maze


def _field(row: Mapping[str, Any], name: str) -> Any:
    if name not in row:
        raise _RowError(f"field {name} is missing")
    return row[name]


def _grid(row: Mapping[str, Any], size: int) -> str:
    text = _field(row, "grid_text")
    if not isinstance(text, str):
        raise _RowError(f"field grid_text is {type(text).__name__}; expected a string")
    lines = [line.split() for line in text.split("\n")]
    for number, line in enumerate(lines):
        if len(line) != len(lines[0]):
            raise _RowError(
                f"field grid_text is not rectangular: line {number} has {len(line)} cells, line 0 "
                f"has {len(lines[0])}"
            )
        unknown = [symbol for symbol in line if symbol not in SYMBOLS or len(symbol) != 1]
        if unknown:
            raise _RowError(
                f"field grid_text has the unknown symbol {unknown[0]!r}; expected one of "
                f"{' '.join(SYMBOLS)}"
            )
    if len(lines) != size or len(lines[0]) != size:
        raise _RowError(
            f"field grid_text has {len(lines)} rows and {len(lines[0])} columns, but task.size is "
            f"{size}; set task.size to the size of the grids"
        )
    cells = "".join(symbol for line in lines for symbol in line)
    for symbol in START + END:
        if cells.count(symbol) != 1:
            raise _RowError(f"field grid_text has {cells.count(symbol)} cells {symbol}; expected 1")
    return cells


def _compare(row: Mapping[str, Any], maze: Maze) -> None:
    """Refuses a row whose fields contradict its grid."""
    for name, cell in (("start", maze.start), ("end", maze.end)):
        if _field(row, name) != maze.coordinates(cell):
            raise _RowError(
                f"field {name} is {row[name]!r}, but {maze.cells[cell]} is at "
                f"{maze.coordinates(cell)} in field grid_text"
            )
    for name, symbol in _COUNTS.items():
        found = maze.cells.count(symbol)
        if row.get(name, found) != found:
            raise _RowError(f"field {name} is {row[name]!r}, but field grid_text has {found}")
    shortest = maze.distances(maze.end)[maze.start]
    if shortest > maze.budget:
        raise _RowError(f"field max_steps is {maze.budget}: too few to reach the end")
