"""How answers are delimited in a completion, and how they are found again.

A format says which words ask for it in a prompt, where a chain of m answers ends, and which part of
a completion is the text of answer i. It never looks at what an answer says.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from typing_extensions import override


@dataclass(frozen=True)
class StopRule:
    """A completion ends with the `count`-th occurrence of `text`, which stays in the completion."""

    text: str
    count: int = 1


class AnswerFormat(ABC):
    """The delimiters of answers in a completion."""

    @abstractmethod
    def parse_single(self, text: str) -> str | None:
        """The answer in a completion that was asked for one, or None if there is none."""

    @abstractmethod
    def parse_multiple(self, text: str, m: int) -> list[str | None]:
        """The answers by slot: exactly m entries, None where a slot is missing."""

    @abstractmethod
    def ask_single(self) -> str:
        """The sentence in a prompt that asks for one answer."""

    @abstractmethod
    def ask_multiple(self, m: int) -> str:
        """The sentence in a prompt that asks for m different answers."""

    @abstractmethod
    def stop_single(self) -> StopRule | None:
        """Where a completion with one answer ends, beside the end-of-sequence token."""

    @abstractmethod
    def stop_multiple(self, m: int) -> StopRule | None:
        """Where a chain of m answers ends, beside the end-of-sequence token."""

    def render_single(self, answer: str) -> str:
        """A completion that holds one answer, as a model should write it."""
        return answer

    @abstractmethod
    def render_multiple(self, answers: Sequence[str]) -> str:
        """A completion that holds these answers, as a model should write it."""

    def ask_goal(self, names: Sequence[str], weights: Sequence[float]) -> str:
        """The words of a goal-conditioned prompt that state the importance of each objective."""
        shares = ", ".join(f"{n} {100 * w:.0f}%" for n, w in zip(names, weights, strict=True))
        return f"Optimise for this mix of objectives (importance of each): {shares}."


def numbered_tags(text: str | None, m: int, tag: str) -> list[str | None]:
    """The bodies of ``<tag_1>..</tag_1>`` to ``<tag_m>..</tag_m>``, None where one is missing.

    The first occurrence of each counts, in any order in the text; an unclosed tag is missing.
    """
    bodies = [first_body(text or "", f"{tag}_{i}") for i in range(1, m + 1)]
    return [body if body is None else body.strip() for body in bodies]


def first_body(text: str, tag: str, *, ignore_case: bool = False) -> str | None:
    """What the first ``<tag>..</tag>`` holds; None if there is none that is closed."""
    return next(tag_bodies(text, tag, ignore_case=ignore_case), None)


def tag_bodies(text: str, tag: str, *, ignore_case: bool = False) -> Iterator[str]:
    """What every ``<tag>..</tag>`` holds, one after the other.

    The time is linear in the text. (A regular expression that spans both tags looks for the end
    behind every opening tag, and a policy may write thousands that it never closes.)
    """
    flags = re.IGNORECASE if ignore_case else 0
    opening, closing = re.compile(f"<{tag}>", flags), re.compile(f"</{tag}>", flags)
    position = 0
    while start := opening.search(text, position):
        end = closing.search(text, start.end())
        if end is None:
            return
        yield text[start.end() : end.start()]
        position = end.end()


@dataclass(frozen=True)
class NumberedTags(AnswerFormat):
    """Answers in ``<tag_i>..</tag_i>``; a single answer is the text of the completion.

    Attributes:
        tag: Name of the numbered tags, without the number.
        example: What goes inside one tag, in words or as a template.
    """

    tag: str
    example: str

    @override
    def parse_single(self, text: str) -> str | None:
        return text

    @override
    def parse_multiple(self, text: str, m: int) -> list[str | None]:
        return numbered_tags(text, m, self.tag)

    @override
    def ask_single(self) -> str:
        return f"Answer in this form:\n{self.example}"

    @override
    def ask_multiple(self, m: int) -> str:
        shown = "\n".join(
            f"<{self.tag}_{i}>{self.example}</{self.tag}_{i}>" for i in range(1, m + 1)
        )
        return (
            f"Give {m} different answers, each of which could be the best one under other "
            f"priorities, in this form:\n{shown}"
        )

    @override
    def stop_single(self) -> StopRule | None:
        return None

    @override
    def stop_multiple(self, m: int) -> StopRule | None:
        return StopRule(f"</{self.tag}_{m}>")

    @override
    def render_multiple(self, answers: Sequence[str]) -> str:
        tags = enumerate(answers, 1)
        return "\n".join(f"<{self.tag}_{i}>{answer}</{self.tag}_{i}>" for i, answer in tags)


@dataclass(frozen=True)
class SeparatedAnswers(AnswerFormat):
    """Answers of a compact token language: ``a | b | c``, asked for by a word of that language.

    Attributes:
        separator: The word between two answers.
        single_word: The last word of a prompt that asks for one answer.
        multiple_word: The last word of a prompt that asks for several.
        goal_word: The word that opens the importance of the objectives, one digit word ``0``-``10``
            (tenths) for each.
    """

    separator: str = "|"
    single_word: str = "<one>"
    multiple_word: str = "<set>"
    goal_word: str = "<goal>"

    @override
    def parse_single(self, text: str) -> str | None:
        return text.split(self.separator, 1)[0].strip()

    @override
    def parse_multiple(self, text: str, m: int) -> list[str | None]:
        parts = [part.strip() for part in text.split(self.separator)][:m]
        return [*parts, *[None] * (m - len(parts))]

    @override
    def ask_single(self) -> str:
        return self.single_word

    @override
    def ask_multiple(self, m: int) -> str:
        del m
        return self.multiple_word

    @override
    def stop_single(self) -> StopRule | None:
        return StopRule(self.separator)

    @override
    def stop_multiple(self, m: int) -> StopRule | None:
        return StopRule(self.separator, m)

    @override
    def render_multiple(self, answers: Sequence[str]) -> str:
        return f" {self.separator} ".join(answers)

    @override
    def ask_goal(self, names: Sequence[str], weights: Sequence[float]) -> str:
        del names
        return " ".join([self.goal_word, *(str(round(10 * w)) for w in weights)])

    def words(self) -> list[str]:
        """Every word this format adds to the vocabulary of a compact tokenizer."""
        named = [self.separator, self.single_word, self.multiple_word, self.goal_word]
        return named + [str(i) for i in range(11)]
