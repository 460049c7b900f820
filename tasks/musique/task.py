"""MuSiQue-Ans: questions of two to four hops, to be answered with citations.

Trivedi et al., TACL 2022 (arXiv:2108.00573).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from vpo_lightning.errors import ConfigError
from vpo_lightning.picture import Element
from vpo_lightning.task import Objective, PromptRow, Task
from vpo_lightning.tasks.chat_rows import is_chat_row, question_of, read_chat_row
from vpo_lightning.tasks.fields import Fields
from vpo_lightning.tasks.formats import ResponseTags
from vpo_lightning.tasks.loading import LazyRows, SkipRow, Source, join_rows, load_rows
from vpo_lightning.tasks.musique.demonstrations import demonstration
from vpo_lightning.tasks.musique.picture import citation_table
from vpo_lightning.tasks.musique.rewards import parse_cited_answer, reward_vector
from vpo_lightning.tasks.settings import check_settings
from vpo_lightning.tasks.text import normalize_text, quoted

OBJECTIVES = (
    Objective("hop_1", "citing the paragraph of the first step of the reasoning"),
    Objective("hop_2", "citing the paragraph of the second step"),
    Objective("hop_3", "citing the paragraph of the third step, if there is one"),
    Objective("hop_4", "citing the paragraph of the fourth step, if there is one"),
    Objective("answer_f1", "giving the right answer in the right words", weight=3.0),
)

_PROMPT = """\
Answer the question from the paragraphs below. It takes two to four steps, and every step rests on \
one paragraph.

Paragraphs, each with its index:
{paragraphs}

Question: {question}

What counts: for each step, citing its paragraph (only the first 4 different citations count); and \
a short answer in the right words. Without an answer nothing counts."""

_FORM = """\
<support>indices of the paragraphs that the answer rests on, separated by commas</support>
<answer>a few words</answer>"""


@dataclass(kw_only=True, eq=False)
class MusiqueTask(Task):
    """Multi-hop questions; K = 5: one objective for each hop and one for the answer.

    An answer is parsed if its answer tag holds something.

    Args:
        train_path: File of training questions, in the data set's own schema or as written for the
            public reference implementation; None takes the hub's, or else the authored ones.
        test_path: File of test questions.
        hub_id: Data set of the Hugging Face hub with the splits train and validation.
        test_per_hop: Test questions of each hop count 2, 3, 4, drawn as for the paper's table
            (which takes 100); None takes all in their order.
        test_seed: Of that draw.
        instruction_start: Regular expression for the words that begin the format instruction in
            prompts of the reference implementation, which is replaced by ours.

    Raises:
        ConfigError: Settings that cannot work.
    """

    train_path: str | None = None
    test_path: str | None = None
    hub_id: str | None = None
    test_per_hop: int | None = None
    test_seed: int = 42
    instruction_start: str = r"First reason about which|Give \d+ different answers in"

    objectives = OBJECTIVES
    answer_format = ResponseTags(example=_FORM)
    may_block = False

    def __post_init__(self) -> None:
        """Checks the settings."""
        check_settings(self)
        if self.test_per_hop is not None and self.test_per_hop < 1:
            raise ConfigError(f"task.test_per_hop={self.test_per_hop}: expected 1 or more, or null")
        folder = Path(__file__).parent / "data"
        hub_splits = {"test": "validation"}
        self._source = Source(folder, self.train_path, self.test_path, self.hub_id, hub_splits)
        self._loaded: dict[str, LazyRows[Any]] = {}

    def rows(self, split: str) -> Sequence[PromptRow]:
        """The questions of a split."""
        if split not in self._loaded:
            records = self._source.records(split)
            rows = load_rows(records, lambda record, number: self._row(record, f"{split}-{number}"))
            if split == "test" and self.test_per_hop is not None:
                rows = _stratify(rows, self.test_per_hop, self.test_seed)
            self._loaded[split] = rows
        return self._loaded[split]

    def score(self, answer: str, row: PromptRow) -> list[float]:
        """hop_1 to hop_4 and answer_f1 of one answer."""
        truth = row.ground_truth
        gold = [truth["answer"], *truth["answer_aliases"]]
        return reward_vector(parse_cited_answer(answer), truth["supporting_indices_ordered"], gold)

    def vote(self, answer: str) -> str | None:
        """The short answer in lower case, without articles and punctuation."""
        return normalize_text(parse_cited_answer(answer).text, drop_articles=True) or None

    def is_parsed(self, answer: str) -> bool:
        """Whether there is a short answer."""
        return bool(parse_cited_answer(answer).text)

    def picture(
        self, row: PromptRow, answers: Sequence[str], rewards: Sequence[Sequence[float]]
    ) -> Element:
        """The paragraphs that the answers cite, and those they should."""
        del rewards
        return citation_table(row, answers)

    def explain(self, answer: str, row: PromptRow) -> str:
        """The citations and the short answer, and those that were wanted."""
        found, truth = parse_cited_answer(answer), row.ground_truth
        gold = [truth["answer"], *truth["answer_aliases"]]
        return (
            f"cited {_listed(found.cited)}, wanted {_listed(truth['supporting_indices_ordered'])}; "
            f"answered {quoted(found.text)}, wanted {' or '.join(map(quoted, gold))}"
        )

    def demonstrate(self, row: PromptRow, rng: Random) -> str:
        """An imperfect answer, see `demonstrations`."""
        return demonstration(row.ground_truth, rng)

    def row_from_ground_truth(self, row_id: str, ground_truth: Mapping[str, Any]) -> PromptRow:
        """A row without a question, from answer, answer_aliases and supporting_indices_ordered."""
        truth = _ground_truth(Fields(ground_truth, row_id, "ground_truth"))
        return PromptRow(row_id, "", truth, OBJECTIVES)

    def row_from_record(self, row_id: str, record: Mapping[str, Any]) -> PromptRow:
        """The row of one record in either schema."""
        return self._row(Fields(record, row_id), row_id)

    def check(self) -> None:
        """Reads the files."""
        self._source.check(self)

    def _row(self, record: Fields, row_id: str) -> PromptRow:
        if is_chat_row(record):
            return self._chat_row(record, row_id)
        if record.has("answerable") and not record.flag("answerable"):
            raise SkipRow("not answerable")
        paragraphs = record.objects("paragraphs")
        steps = record.objects("question_decomposition")
        truth = {
            "answer": record.text("answer"),
            "answer_aliases": record.texts("answer_aliases"),
            "supporting_indices_ordered": [step.integer("paragraph_support_idx") for step in steps],
            "num_hops": len(steps),
        }
        shown = {
            p.integer("idx"): f"{p.text('title')}: {p.text('paragraph_text')}" for p in paragraphs
        }
        for step, index in zip(steps, truth["supporting_indices_ordered"], strict=True):
            if index not in shown:
                raise step.error("paragraph_support_idx", f"is {index}; no paragraph has this idx")
        prompt = _PROMPT.format(
            paragraphs="\n".join(f"[{index}] {text}" for index, text in shown.items()),
            question=record.text("question"),
        )
        return PromptRow(record.text("id"), prompt, truth, OBJECTIVES)

    def _chat_row(self, record: Fields, row_id: str) -> PromptRow:
        row = read_chat_row(record, ["musique"])
        truth = _ground_truth(row.truth_fields(record))
        question = question_of(row, record, self.instruction_start)
        return PromptRow(row_id, question, truth, OBJECTIVES, row.system)


def _listed(indices: Sequence[int]) -> str:
    return ", ".join(map(str, indices)) or "nothing"


def _ground_truth(fields: Fields) -> dict[str, Any]:
    hops = fields.integers("supporting_indices_ordered")
    return {
        "answer": fields.text("answer"),
        "answer_aliases": fields.texts("answer_aliases") if fields.has("answer_aliases") else [],
        "supporting_indices_ordered": hops,
        "num_hops": len(hops),
    }


def _stratify(rows: LazyRows[Any], per_hop: int, seed: int) -> LazyRows[Any]:
    """`per_hop` questions of each hop count, in the order that the published split has.

    Each hop count's questions are permuted by numpy's generator of this seed and cut; the parts are
    joined and permuted by a fresh generator of the same seed.
    """
    hops = [row.ground_truth["num_hops"] for row in rows]
    parts: list[LazyRows[Any]] = []
    for count in (2, 3, 4):
        positions = [i for i, found in enumerate(hops) if found == count]
        if len(positions) < per_hop:
            raise ConfigError(
                f"task.test_per_hop={per_hop}: the test questions have only {len(positions)} of "
                f"{count} hops; lower it, or set it to null for all of them"
            )
        order = np.random.default_rng(seed).permutation(len(positions))[:per_hop]
        parts.append(rows.select([positions[i] for i in order]))
    joined = join_rows(*parts)
    return joined.select(np.random.default_rng(seed).permutation(len(joined)).tolist())
