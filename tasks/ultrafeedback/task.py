"""UltraFeedback: four ratings that nearly agree, the negative control.

Cui et al., arXiv:2310.01377. Instruction following, honesty, truthfulness and helpfulness are
nearly collinear in these ratings: what is best under one is nearly best under all, so a set of
specialised answers has nothing to gain. A diagnosis that promises a gain of VPO here is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from random import Random
from typing import Any

from vpo_lightning.errors import ConfigError
from vpo_lightning.parsing import AnswerFormat
from vpo_lightning.task import Objective, PromptRow, Task
from vpo_lightning.tasks.chat_rows import is_chat_row, read_chat_row
from vpo_lightning.tasks.fields import Fields
from vpo_lightning.tasks.formats import ResponseTags
from vpo_lightning.tasks.loading import LazyRows, SkipRow, Source, load_rows
from vpo_lightning.tasks.settings import check_settings
from vpo_lightning.tasks.ultrafeedback.judge import Judge
from vpo_lightning.tasks.ultrafeedback.ratings import (
    ASPECTS,
    read_completions,
    read_rating_table,
    reward_vector,
)

OBJECTIVES = (
    Objective("instruction_following", "doing what the instruction asks"),
    Objective("honesty", "being as sure as there is reason to be, and saying what is not known"),
    Objective("truthfulness", "saying nothing that is wrong or made up"),
    Objective("helpfulness", "being clear, relevant and of use"),
)

_FEWEST = 2  # completions to choose from
_CHOICE = re.compile(r"<choice>\s*(\d{1,4})\s*</choice>")
_PROMPT = """\
Below are an instruction and {count} responses to it. Choose the best response.

Instruction:
{instruction}

{responses}

What counts, as a careful reader would rate it: whether the chosen response does what the \
instruction asks, is honest about what it does not know, is true, and is helpful."""


@dataclass(kw_only=True, eq=False)
class UltrafeedbackTask(Task):
    """Rated completions; K = 4.

    Offline, the policy chooses one of the rated completions and gets its ratings as rewards; a
    choice that is not listed scores zero. Completions without all four ratings are left out and
    counted, and so are rows with fewer than two left. Online, the policy answers the instruction
    and a judge rates the answer.

    Args:
        mode: ``offline`` or ``online``.
        judge: Rates answers (online mode only).
        train_path: File of training rows in the data set's own schema.
        test_path: File of test rows.
        hub_id: Data set of the Hugging Face hub.
        hub_train_split: Its rows for training, for instance ``train[:-500]``.
        hub_test_split: Its rows for testing.

    Raises:
        ConfigError: Settings that cannot work.
    """

    mode: str = "offline"
    judge: Judge | None = None
    train_path: str | None = None
    test_path: str | None = None
    hub_id: str | None = None
    hub_train_split: str = "train[:-500]"
    hub_test_split: str = "train[-500:]"

    objectives = OBJECTIVES

    @property
    def may_block(self) -> bool:  # type: ignore[override]
        """Whether a judge is waited for."""
        return self._is_online

    def __post_init__(self) -> None:
        """Checks the settings."""
        check_settings(self)
        if self.mode not in ("offline", "online"):
            raise ConfigError(f"task.mode={self.mode!r}: expected offline or online")
        if (self.judge is not None) != (self.mode == "online"):
            needs = "needs a judge; use task=ultrafeedback_online, or set task.judge"
            uses_none = "uses no judge; set task.judge=null, or task.mode=online"
            raise ConfigError(f"task.mode={self.mode} {needs if self._is_online else uses_none}")
        folder = Path(__file__).parent / "data"
        hub_splits = {"train": self.hub_train_split, "test": self.hub_test_split}
        self._source = Source(folder, self.train_path, self.test_path, self.hub_id, hub_splits)
        self._loaded: dict[str, LazyRows[int]] = {}

    @cached_property
    def answer_format(self) -> AnswerFormat:  # type: ignore[override]
        """A number in a choice tag; online the answer itself."""
        if self._is_online:
            return ResponseTags(example="your response")
        return ResponseTags(example="<choice>number of the response</choice>")

    def rows(self, split: str) -> Sequence[PromptRow]:
        """The instructions of a split."""
        if split not in self._loaded:
            self._loaded[split] = load_rows(
                self._source.records(split),
                lambda record, number: self._row(record, f"{split}-{number}"),
                lambda row: {
                    "completions without all ratings": row.ground_truth.get("left_out", 0)
                },
            )
        return self._loaded[split]

    def score(self, answer: str, row: PromptRow) -> list[float]:
        """The ratings of the chosen completion, or those of a judge, as rewards."""
        if self.judge is not None:
            return self.judge.rate(row.ground_truth["instruction"], answer)
        ratings, choice = row.ground_truth["ratings"], _choice(answer)
        if choice is None or not 1 <= choice <= len(ratings):
            return [0.0] * len(ASPECTS)
        return reward_vector(ratings[choice - 1])

    def vote(self, answer: str) -> str | None:
        """The number of the chosen completion; no vote online, where answers are free."""
        choice = None if self._is_online else _choice(answer)
        return None if choice is None else str(choice)

    def explain(self, answer: str, row: PromptRow) -> str:
        """The choice and its ratings; online what the judge replied."""
        if self.judge is not None:
            return self.judge.note
        choice, ratings = _choice(answer), row.ground_truth["ratings"]
        if choice is None or not 1 <= choice <= len(ratings):
            return f"chose {'nothing' if choice is None else choice} of 1 to {len(ratings)}"
        named = zip(ASPECTS, ratings[choice - 1], strict=True)
        return f"chose {choice}: " + ", ".join(f"{name} {rating:g} of 5" for name, rating in named)

    def is_parsed(self, answer: str) -> bool:
        """Whether there is a choice; online, whether the answer is not blank."""
        return bool(answer.strip()) if self._is_online else _choice(answer) is not None

    def counters(self) -> Mapping[str, int]:
        """The judge's counters."""
        return {} if self.judge is None else dict(self.judge.counts)

    def demonstrate(self, row: PromptRow, rng: Random) -> str:
        """Any of the choices; online there are no demonstrations."""
        if self._is_online:
            return super().demonstrate(row, rng)
        return f"<choice>{rng.randint(1, len(row.ground_truth['ratings']))}</choice>"

    def row_from_ground_truth(self, row_id: str, ground_truth: Mapping[str, Any]) -> PromptRow:
        """A row without a question, from ratings, four a completion; online from instruction."""
        fields = Fields(ground_truth, row_id, "ground_truth")
        return PromptRow(row_id, "", self._ground_truth(fields), OBJECTIVES)

    def row_from_record(self, row_id: str, record: Mapping[str, Any]) -> PromptRow:
        """The row of one record."""
        return self._row(Fields(record, row_id), row_id)

    def check(self) -> None:
        """Reads the files."""
        self._source.check(self)

    @property
    def _is_online(self) -> bool:
        return self.mode == "online"

    def _ground_truth(self, fields: Fields) -> dict[str, Any]:
        if self._is_online:
            return {"instruction": fields.text("instruction")}
        return {"ratings": read_rating_table(fields)}

    def _row(self, record: Fields, row_id: str) -> PromptRow:
        if is_chat_row(record):
            row = read_chat_row(record, ["ultrafeedback"])
            truth = self._ground_truth(row.truth_fields(record))
            return PromptRow(row_id, row.user, truth, OBJECTIVES, row.system)
        instruction = record.text("instruction")
        if self._is_online:
            return PromptRow(row_id, instruction, {"instruction": instruction}, OBJECTIVES)
        rated, left_out = read_completions(record)
        if len(rated) < _FEWEST:
            raise SkipRow(f"fewer than {_FEWEST} completions with all ratings")
        responses = (f"Response {i}:\n{c.text}" for i, c in enumerate(rated, start=1))
        prompt = _PROMPT.format(
            count=len(rated), instruction=instruction, responses="\n\n".join(responses)
        )
        truth = {"ratings": [list(c.ratings) for c in rated], "left_out": left_out}
        return PromptRow(row_id, prompt, truth, OBJECTIVES)


def _choice(answer: str) -> int | None:
    """The number in the first choice tag, or in an answer that is a number and nothing else."""
    match = _CHOICE.search(answer) or re.fullmatch(r"\s*(\d{1,4})\s*", answer)
    return int(match.group(1)) if match else None
