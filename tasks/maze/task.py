"""The maze task: walk from start to end, with gold on one side and diamonds on the other."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from random import Random
from typing import Any

from vpo_lightning.errors import ConfigError
from vpo_lightning.parsing import AnswerFormat, SeparatedAnswers
from vpo_lightning.picture import Element
from vpo_lightning.task import Objective, PromptRow, Task
from vpo_lightning.tasks.fields import Fields
from vpo_lightning.tasks.loading import SPLITS, LazyRows, check_split
from vpo_lightning.tasks.maze.construction import Construction
from vpo_lightning.tasks.maze.demonstrations import RouteMix
from vpo_lightning.tasks.maze.formats import RouteTags
from vpo_lightning.tasks.maze.grid import MOVES, Maze
from vpo_lightning.tasks.maze.loading import read_maze, read_mazes
from vpo_lightning.tasks.maze.picture import drawing
from vpo_lightning.tasks.maze.prompts import compact_prompt, compact_vocabulary, text_prompt
from vpo_lightning.tasks.maze.routes import (
    Route,
    cell_names,
    parse_cells,
    parse_moves,
    reward_vector,
    walk_cells,
    walk_moves,
)
from vpo_lightning.tasks.maze.rows import draw_maze, maze_of
from vpo_lightning.tasks.settings import check_settings

OBJECTIVES = (
    Objective("completion", "reaching the exit within the allowed moves"),
    Objective("gold", "collecting as much of the gold as possible"),
    Objective("diamond", "collecting as many of the diamonds as possible"),
    Objective("avoid_lava", "not entering lava"),
)

_CHOICES = {
    "style": ("text", "compact"),
    "answers": ("moves", "cells"),
    "scoring": ("linear", "convex_bonus"),
}


@dataclass(kw_only=True, eq=False)
class MazeTask(Task):
    """Mazes, generated or from files.

    Two answers are duplicates if they hold the same list of moves (or cells), however they are
    written; answers without any are dropped. Departure from the public reference implementation,
    which counts a route without moves as parsed: here it is not (its rewards are the same zeros).

    Args:
        size: Rows and columns of the grids.
        style: ``text`` for language models; ``compact``, one word per cell, for small models.
        answers: ``moves``, or ``cells`` entered (compact style only).
        scoring: ``linear`` (the paper's text) or ``convex_bonus`` (see `reward_vector`); it rules
            over the ``score_mode`` that rows of a file may have.
        train_rows: Number of generated training mazes; a file brings its own number.
        test_rows: Number of generated test mazes; a file brings its own number.
        train_path: File of training mazes (see `read_mazes`); None generates them.
        test_path: File of test mazes; None generates them.
        seed: Of the generated mazes.
        construction: Changes to the numbers of the size's `Construction`.

    Raises:
        ConfigError: Settings that cannot work.
    """

    size: int = 9
    style: str = "text"
    answers: str = "moves"
    scoring: str = "linear"
    train_rows: int = 16384
    test_rows: int = 256
    train_path: str | None = None
    test_path: str | None = None
    seed: int = 0
    construction: Mapping[str, Any] | None = None

    objectives = OBJECTIVES
    drops_unparsed = True
    may_block = False

    def __post_init__(self) -> None:
        """Checks the settings."""
        check_settings(self)
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                expected = " or ".join(choices)
                raise ConfigError(f"task.{name}={getattr(self, name)!r}: expected {expected}")
        if self.style == "text" and self.answers == "cells":
            raise ConfigError(
                "task.answers=cells needs task.style=compact; set task.answers=moves for text"
            )
        for name in ("size", "train_rows", "test_rows"):
            if getattr(self, name) < 1:
                raise ConfigError(f"task.{name}={getattr(self, name)}: expected 1 or more")
        if self.train_path is None or self.test_path is None:
            self._numbers = Construction.of(self.size, self.construction)

    @cached_property
    def answer_format(self) -> AnswerFormat:  # type: ignore[override]
        """Tags for language models, separators in the compact style."""
        return RouteTags() if self.style == "text" else SeparatedAnswers()

    def rows(self, split: str) -> Sequence[PromptRow]:
        """The prompts of a split, made on demand."""
        check_split(split)
        mazes = self._held.get(split)
        if mazes is not None:
            return LazyRows(range(len(mazes)), partial(self._held_row, split))
        count = self.train_rows if split == "train" else self.test_rows
        return LazyRows(range(count), partial(self._generated_row, split))

    def score(self, answer: str, row: PromptRow) -> list[float]:
        """Completion, gold, diamond and avoid_lava of one route."""
        maze, route = maze_of(row), self._parse(answer)
        walk = walk_moves(maze, route) if self.answers == "moves" else walk_cells(maze, route)
        scoring = row.ground_truth.get("score_mode", self.scoring)
        return reward_vector(maze, walk, convex_bonus=scoring == "convex_bonus")

    def explain(self, answer: str, row: PromptRow) -> str:
        """How far the walk got, and what it met."""
        maze, route = maze_of(row), self._parse(answer)
        walk = walk_moves(maze, route) if self.answers == "moves" else walk_cells(maze, route)
        end = "the exit" if walk[-1] == maze.end else f"{maze.coordinates(walk[-1])}, not the exit"
        met = (
            f"{name} {len(tiles.intersection(walk))} of {len(tiles)}"
            for name, tiles in (
                ("gold", maze.gold),
                ("diamonds", maze.diamonds),
                ("lava", maze.lava),
            )
        )
        return (
            f"{len(route)} {self.answers}, {len(walk) - 1} of at most {maze.budget} used, "
            f"to {end}; {', '.join(met)}"
        )

    def is_parsed(self, answer: str) -> bool:
        """Whether the answer holds at least one move (or begins with a cell)."""
        return bool(self._parse(answer))

    def duplicate_key(self, answer: str, rewards: Sequence[float]) -> Hashable:
        """The list of moves (or cells), so that spelling does not matter and a detour does."""
        del rewards
        return self._parse(answer)

    def picture(
        self, row: PromptRow, answers: Sequence[str], rewards: Sequence[Sequence[float]]
    ) -> Element:
        """The grid with the route of each answer."""
        del rewards
        return drawing(row, answers)

    def demonstrate(self, row: PromptRow, rng: Random) -> str:
        """A route to the end, direct or by way of the gold or the diamonds."""
        return RouteMix()(row, rng)

    def row_from_ground_truth(self, row_id: str, ground_truth: Mapping[str, Any]) -> PromptRow:
        """A row of any size without a question; its ``score_mode`` is ours where it has none.

        Answers in cells need grids of `size`.
        """
        record = Fields(ground_truth, row_id, "ground_truth")
        scoring = record.text("score_mode") if record.has("score_mode") else self.scoring
        if scoring not in _CHOICES["scoring"]:
            raise record.error("score_mode", f"is {scoring!r}; expected linear or convex_bonus")
        maze = read_maze(record, self.size if self.answers == "cells" else None)
        return PromptRow(row_id, "", self._ground_truth(maze, scoring), OBJECTIVES)

    def row_from_record(self, row_id: str, record: Mapping[str, Any]) -> PromptRow:
        """The row of one record of a file of mazes; scored as `scoring` says."""
        return self._row(row_id, read_maze(Fields(record, row_id), self.size))

    def check(self) -> None:
        """Reads the files and draws one maze of each generated split."""
        for split in SPLITS:
            _ = self.rows(split)[0]

    def vocabulary(self) -> list[str]:
        """Every word of compact prompts and answers, in a fixed order.

        Raises:
            ConfigError: The text style, which has no closed vocabulary.
        """
        if not isinstance(self.answer_format, SeparatedAnswers):
            raise ConfigError(
                f"task.style={self.style} has no closed vocabulary; set task.style=compact for a "
                "model that is built for its words"
            )
        words = cell_names(self.size) if self.answers == "cells" else MOVES
        return [*compact_vocabulary(self.size), *words, *self.answer_format.words()]

    def _parse(self, answer: str) -> Route:
        return parse_moves(answer) if self.answers == "moves" else parse_cells(answer, self.size)

    @cached_property
    def _held(self) -> dict[str, list[Maze]]:
        """The mazes of each split that comes from a file."""
        paths = {"train": self.train_path, "test": self.test_path}
        return {
            split: read_mazes(path, f"task.{split}_path", self.size)
            for split, path in paths.items()
            if path is not None
        }

    def _held_row(self, split: str, index: int) -> PromptRow:
        return self._row(f"{split}-{index + 1}", self._held[split][index])

    def _generated_row(self, split: str, index: int) -> PromptRow:
        maze = draw_maze(self.size, self._numbers, self.seed, split, index)
        return self._row(f"{split}-{index + 1}", maze)

    def _row(self, row_id: str, maze: Maze) -> PromptRow:
        if self.style == "compact":
            prompt = compact_prompt(maze)
        else:
            prompt = text_prompt(maze, convex_bonus=self.scoring == "convex_bonus")
        return PromptRow(row_id, prompt, self._ground_truth(maze, self.scoring), OBJECTIVES)

    def _ground_truth(self, maze: Maze, scoring: str) -> dict[str, Any]:
        """The fields of the public reference implementation, and the language of answers."""
        return {
            "grid_text": maze.text,
            "start": maze.coordinates(maze.start),
            "end": maze.coordinates(maze.end),
            "max_steps": maze.budget,
            "num_gold": len(maze.gold),
            "num_diamond": len(maze.diamonds),
            "num_lava": len(maze.lava),
            "score_mode": scoring,
            "answers": self.answers,
        }
