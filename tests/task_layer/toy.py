"""A task whose answers are their own reward vectors, written as JSON."""

from __future__ import annotations

import json
from collections.abc import Hashable, Sequence

from vpo_lightning.parsing import AnswerFormat, NumberedTags
from vpo_lightning.task import Objective, PromptRow, Task


class VectorTask(Task):
    """Scores ``[1, 0]`` with (1, 0); anything that is no list is not parsed."""

    def __init__(
        self,
        answer_format: AnswerFormat | None = None,
        *,
        weights: Sequence[float] = (1.0, 1.0),
        pads_answers: bool = True,
        drops_unparsed: bool = False,
        counts_spelling: bool = False,
    ) -> None:
        self.answer_format = answer_format or NumberedTags("response", "a vector")
        self.objectives = tuple(
            Objective(name, f"much {name}", weight)
            for name, weight in zip("xy", weights, strict=True)
        )
        self.pads_answers = pads_answers
        self.drops_unparsed = drops_unparsed
        self._counts_spelling = counts_spelling

    def rows(self, split: str) -> Sequence[PromptRow]:
        """One row."""
        return [PromptRow(f"{split}-1", "Which vector?", {}, self.objectives)]

    def score(self, answer: str, row: PromptRow) -> list[float]:
        """The vector that the answer is."""
        del row
        return [float(value) for value in json.loads(answer)]

    def is_parsed(self, answer: str) -> bool:
        """Whether the answer is a list."""
        return answer.startswith("[")

    def duplicate_key(self, answer: str, rewards: Sequence[float]) -> Hashable:
        """The vector, or on request the text."""
        return answer if self._counts_spelling else super().duplicate_key(answer, rewards)
