"""EUREQA: resolve the masked names of a story from its end backwards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from vpo_lightning.errors import ConfigError
from vpo_lightning.parsing import first_body
from vpo_lightning.task import Objective, PromptRow, Task
from vpo_lightning.tasks.chat_rows import is_chat_row, question_of, read_chat_row
from vpo_lightning.tasks.eureqa.demonstrations import demonstration
from vpo_lightning.tasks.fields import Fields
from vpo_lightning.tasks.formats import ResponseTags
from vpo_lightning.tasks.loading import (
    LazyRows,
    SkipRow,
    Source,
    check_split,
    join_rows,
    load_rows,
)
from vpo_lightning.tasks.records import HubRecords, Records, open_records
from vpo_lightning.tasks.settings import check_settings
from vpo_lightning.tasks.text import normalize_text, quoted

LETTERS = "ABCDE"
OBJECTIVES = (
    Objective("entity_A", "finding name A, the answer to the question"),
    *(Objective(f"entity_{letter}", f"finding name {letter}") for letter in LETTERS[1:]),
)

_NAMES_NEEDED = 6  # five that are asked for, and the one that the story gives away
_PROMPT = """\
In the story below some names are masked. One name at its end is given; work backwards from there, \
one masked name after the other.

Story:
{story}

Find out what these stand for:
{masks}

Name each as the title of its Wikipedia article, for instance Marie Curie or Jaws (film). A is the \
answer to the story's question. What counts: each of the five names."""
_FORM = "\n".join(f"<entity_{letter}>name {letter}</entity_{letter}>" for letter in LETTERS)


@dataclass(kw_only=True, eq=False)
class EureqaTask(Task):
    """Chains of masked entities; K = 5: exact match of each of the first five.

    Names are compared after ``_`` has become a space, in lower case, without articles and
    punctuation; accents count. An answer is parsed if one of its entity tags holds something. The
    tags may be in any case.

    Args:
        train_path: File of training stories, in the data set's own schema or as written for the
            public reference implementation.
        test_path: File of test stories.
        hard_path: File of the split hard_5; with `normal_path`, both splits are made from the two.
        normal_path: File of the split normal_5.
        hub_id: Data set of the Hugging Face hub with the two splits.
        hub_hard_split: Name of hard_5 on the hub.
        hub_normal_split: Name of normal_5 on the hub.
        hard_train_rows: Stories of the shuffled hard_5 that are added to normal_5 for training; the
            rest is the test split.
        split_seed: Of that shuffle.
        instruction_start: Regular expression for the words that begin the format instruction in
            prompts of the reference implementation, which is replaced by ours.

    Raises:
        ConfigError: Settings that cannot work.
    """

    train_path: str | None = None
    test_path: str | None = None
    hard_path: str | None = None
    normal_path: str | None = None
    hub_id: str | None = None
    hub_hard_split: str = "questions_hard_5"
    hub_normal_split: str = "questions_normal_5"
    hard_train_rows: int = 681
    split_seed: int = 0
    instruction_start: str = "For each masked entity above"

    objectives = OBJECTIVES
    answer_format = ResponseTags(example=_FORM)
    may_block = False

    def __post_init__(self) -> None:
        """Checks the settings."""
        check_settings(self)
        if (self.hard_path is None) != (self.normal_path is None):
            missing = "hard_path" if self.hard_path is None else "normal_path"
            raise ConfigError(f"task.{missing}=null: expected a file, for both or for neither")
        if self.hard_train_rows < 1:
            raise ConfigError(f"task.hard_train_rows={self.hard_train_rows}: expected 1 or more")
        folder = Path(__file__).parent / "data"
        self._source = Source(folder, self.train_path, self.test_path, self.hub_id)
        self._loaded: dict[str, LazyRows[Any]] = {}

    def rows(self, split: str) -> Sequence[PromptRow]:
        """The stories of a split."""
        if split not in self._loaded:
            path = {"train": self.train_path, "test": self.test_path}.get(check_split(split))
            is_mixed = self.hard_path is not None or self.hub_id is not None
            if path is None and is_mixed:
                self._loaded[split] = self._mixed(split)
            else:
                self._loaded[split] = self._load(self._source.records(split), split)
        return self._loaded[split]

    def score(self, answer: str, row: PromptRow) -> list[float]:
        """Exact match of entity_A to entity_E."""
        gold: Sequence[str] = row.ground_truth["chain_entities"]
        names = [*gold[: len(LETTERS)], *[""] * (len(LETTERS) - len(gold))]
        return [_match(found, name) for found, name in zip(parse_names(answer), names, strict=True)]

    def vote(self, answer: str) -> str | None:
        """The name of entity_A, which the story asks for, as names are compared."""
        return _normal(parse_names(answer)[0]) or None

    def is_parsed(self, answer: str) -> bool:
        """Whether at least one entity tag holds something."""
        return any(parse_names(answer))

    def explain(self, answer: str, row: PromptRow) -> str:
        """Each name that was found, and the one that was wanted where they differ."""
        scores = zip(LETTERS, parse_names(answer), self.score(answer, row), strict=True)
        names: Sequence[str] = [*row.ground_truth["chain_entities"], *[""] * len(LETTERS)]
        return "; ".join(
            f"{letter} {quoted(found)}" + ("" if score else f", wanted {quoted(names[i])}")
            for i, (letter, found, score) in enumerate(scores)
        )

    def demonstrate(self, row: PromptRow, rng: Random) -> str:
        """An imperfect answer, see `demonstrations`."""
        return demonstration(LETTERS, row.ground_truth["chain_entities"], rng)

    def row_from_ground_truth(self, row_id: str, ground_truth: Mapping[str, Any]) -> PromptRow:
        """A row without a question, from chain_entities."""
        truth = _ground_truth(Fields(ground_truth, row_id, "ground_truth"))
        return PromptRow(row_id, "", truth, OBJECTIVES)

    def row_from_record(self, row_id: str, record: Mapping[str, Any]) -> PromptRow:
        """The row of one record in either schema."""
        return self._row(Fields(record, row_id), row_id)

    def check(self) -> None:
        """Reads the files."""
        self._source.check(self)

    def _mixed(self, split: str) -> LazyRows[Any]:
        """The published splits: normal_5 and a part of hard_5 to train, the rest of hard_5 to test.

        hard_5 is permuted by numpy's generator of the split's seed, as the published split is.
        """
        hard = self._load(self._part("hard"), "hard")
        if self.hard_train_rows >= len(hard):
            raise ConfigError(
                f"task.hard_train_rows={self.hard_train_rows}: expected less than the {len(hard)} "
                f"stories of hard_5, so that some are left to test"
            )
        order = np.random.default_rng(self.split_seed).permutation(len(hard)).tolist()
        if split == "test":
            return hard.select(order[self.hard_train_rows :])
        normal = self._load(self._part("normal"), "normal")
        return join_rows(normal, hard.select(order[: self.hard_train_rows]))

    def _part(self, name: str) -> Records:
        path: str | None = getattr(self, f"{name}_path")
        if path is not None:
            return open_records(path, f"task.{name}_path")
        return HubRecords(str(self.hub_id), getattr(self, f"hub_{name}_split"))

    def _load(self, records: Records, name: str) -> LazyRows[int]:
        return load_rows(records, lambda record, number: self._row(record, f"{name}-{number}"))

    def _row(self, record: Fields, row_id: str) -> PromptRow:
        if is_chat_row(record):
            row = read_chat_row(record, ["eureqa"])
            truth = _ground_truth(row.truth_fields(record))
            question = question_of(row, record, self.instruction_start)
            return PromptRow(row_id, question, truth, OBJECTIVES, row.system)
        story, masks, names = (record.texts(f) for f in ("question", "entity_masks", "entities"))
        if min(len(masks), len(names)) < _NAMES_NEEDED:
            raise SkipRow(f"fewer than {_NAMES_NEEDED} masks or entities")
        truth = {
            "answer": names[0],
            "chain_entities": names[: len(LETTERS)],
            "entity_masks": masks[: len(LETTERS)],
        }
        shown = (f"{letter}: {mask}" for letter, mask in zip(LETTERS, masks, strict=False))
        prompt = _PROMPT.format(story="\n".join(story), masks="\n".join(shown))
        return PromptRow(row_id, prompt, truth, OBJECTIVES)


def parse_names(answer: str) -> list[str]:
    """The names in the first tag of each of entity_A to entity_E, empty where there is none."""
    bodies = (first_body(answer, f"entity_{letter}", ignore_case=True) for letter in LETTERS)
    return [(body or "").strip() for body in bodies]


def _match(found: str, name: str) -> float:
    """Exact match of two names; an empty one matches nothing."""
    if not found or not name:
        return 0.0
    return float(_normal(found) == _normal(name))


def _normal(name: str) -> str:
    return normalize_text(name, drop_articles=True, split_underscores=True)


def _ground_truth(fields: Fields) -> dict[str, Any]:
    return {"chain_entities": fields.texts("chain_entities")}
