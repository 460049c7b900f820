"""Mazes from files, as the public reference implementation writes them."""

from __future__ import annotations

from pathlib import Path

from vpo_lightning.tasks.chat_rows import is_chat_row, read_chat_row
from vpo_lightning.tasks.fields import Fields
from vpo_lightning.tasks.maze.grid import DIAMOND, END, GOLD, LAVA, START, SYMBOLS, Maze
from vpo_lightning.tasks.records import open_records

_COUNTS = {"num_gold": GOLD, "num_diamond": DIAMOND, "num_lava": LAVA}


def read_mazes(path: str | Path, key: str, size: int) -> list[Maze]:
    """The mazes of a ``.jsonl`` or ``.parquet`` file, in its order.

    Args:
        path: The file; see `read_maze` for its rows.
        key: The config key that named the file, for messages.
        size: Rows and columns that every grid must have.

    Raises:
        ConfigError: The file is missing, empty or cut, or a row cannot be used; names the file, the
            row (from 1), the field and the config key.
    """
    return [read_maze(record, size) for record in open_records(path, key)]


def read_maze(record: Fields, size: int | None = None) -> Maze:
    """The maze of a row.

    A row has ``grid_text`` (lines of symbols separated by spaces), ``start``, ``end`` ([row,
    column] from 0) and ``max_steps``, or holds them in ``reward_model.ground_truth``. The counts
    ``num_gold``, ``num_diamond``, ``num_lava`` must agree with the grid where present; other fields
    are ignored.

    Args:
        record: The row.
        size: Rows and columns that the grid must have; None for any.

    Raises:
        ConfigError: A field is missing, malformed, or contradicts the grid.
    """
    if is_chat_row(record):
        record = read_chat_row(record, ("maze",)).truth_fields(record)
    lines = _grid_lines(record)
    expected = len(lines) if size is None else size
    if len(lines) != expected or len(lines[0]) != expected:
        raise record.error(
            "grid_text",
            f"has {len(lines)} rows and {len(lines[0])} columns; expected {expected} of each"
            + ("" if size is None else ", or set task.size to the size of the grids"),
        )
    maze = Maze(expected, "".join(map("".join, lines)), record.integer("max_steps"))
    _check_fields(record, maze)
    return maze


def _grid_lines(record: Fields) -> list[list[str]]:
    """The symbols line by line, each known, as many in one line as in the others."""
    lines = [line.split() for line in record.text("grid_text").strip().split("\n")]
    for number, line in enumerate(lines, start=1):
        for symbol in line:
            if len(symbol) != 1 or symbol not in SYMBOLS:
                known = " ".join(SYMBOLS)
                raise record.error(
                    "grid_text", f"has the symbol {symbol!r} in line {number}; expected {known}"
                )
        if len(line) != len(lines[0]):
            raise record.error(
                "grid_text",
                f"is not rectangular: line {number} has {len(line)} cells, line 1 {len(lines[0])}",
            )
    return lines


def _check_fields(record: Fields, maze: Maze) -> None:
    """Refuses a row whose fields contradict its grid."""
    for name, symbol in (("start", START), ("end", END)):
        places = sorted(maze.find(symbol))
        if len(places) != 1:
            raise record.error("grid_text", f"has {len(places)} cells {symbol}; expected 1")
        if record.integers(name) != maze.coordinates(places[0]):
            raise record.error(
                name,
                f"is {record.values[name]}, but {symbol} is at {maze.coordinates(places[0])} of "
                f"field {record.path_of('grid_text')}",
            )
    for name, symbol in _COUNTS.items():
        count = maze.cells.count(symbol)
        if record.has(name) and record.integer(name) != count:
            raise record.error(
                name, f"is {record.integer(name)}, but the grid has {count} {symbol}"
            )
    if maze.distances(maze.end)[maze.start] > maze.budget:
        raise record.error("max_steps", f"is {maze.budget}, too few to walk from S to E")
