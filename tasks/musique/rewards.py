"""The reward vector of a cited answer: one entry for each hop, and word F1 of the answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vpo_lightning.parsing import first_body
from vpo_lightning.tasks.text import word_f1

MAX_HOPS = 4

_MOST_DIGITS = 4000  # int() refuses more than 4,300


@dataclass(frozen=True)
class CitedAnswer:
    """What an answer says.

    Attributes:
        cited: The distinct paragraph indices in the order of citation.
        text: The short answer, empty if there is none.
    """

    cited: tuple[int, ...]
    text: str


def parse_cited_answer(answer: str) -> CitedAnswer:
    """The first support tag's indices and the first answer tag's text.

    Citations are separated by commas; an item that is not made of digits alone is skipped. (The
    public reference implementation raises an error at a superscript digit.)
    """
    support, text = first_body(answer, "support"), first_body(answer, "answer")
    items = [item.strip() for item in (support or "").split(",")]
    digits = [item for item in items if item.isdecimal()]
    cited = [int(item) if len(item) <= _MOST_DIGITS else -1 for item in digits]
    return CitedAnswer(tuple(dict.fromkeys(cited)), (text or "").strip())


def reward_vector(
    answer: CitedAnswer, gold_hops: Sequence[int], gold_answers: Sequence[str]
) -> list[float]:
    """``[hop_1, hop_2, hop_3, hop_4, answer_f1]``.

    hop_i is 1 if the paragraph of step i is among the first four distinct citations, and for steps
    that the question does not have. answer_f1 is the best word F1 over the gold answers, without
    articles. Without an answer everything is zero: citations alone are worth nothing.

    Args:
        answer: What the policy answered.
        gold_hops: Index of the supporting paragraph of each step, in order.
        gold_answers: The answer and its aliases.
    """
    if not answer.text:
        return [0.0] * (MAX_HOPS + 1)
    cited = set(answer.cited[:MAX_HOPS])
    hops = [float(index in cited) for index in gold_hops[:MAX_HOPS]]
    hops += [1.0] * (MAX_HOPS - len(hops))
    return [*hops, max(word_f1(answer.text, gold, drop_articles=True) for gold in gold_answers)]
