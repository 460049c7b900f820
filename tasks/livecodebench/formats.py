"""Programs in a completion: fenced blocks, several of them separated by a line ``---``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from typing_extensions import override

from vpo_lightning.parsing import AnswerFormat, StopRule

_SEPARATOR = re.compile(r"^[ \t]*---[ \t]*\r?$", re.MULTILINE)
_PYTHON_BLOCK = re.compile(r"```python[ \t]*\r?\n(.*?)(?:```|\Z)", re.DOTALL)
_ANY_BLOCK = re.compile(r"```(.*?)(?:```|\Z)", re.DOTALL)

_FORM = "```python\n# your program\n```"


@dataclass(frozen=True)
class FencedPrograms(AnswerFormat):
    """One answer is one fenced program.

    A program is the first block labelled ``python``, else the first block, else the whole text; a
    block that is not closed ends with the text. Another label is taken for a part of the program,
    as in the public reference implementation. Several answers lie between lines ``---``; where
    there is no such line, every block is one.
    """

    @override
    def parse_single(self, text: str) -> str | None:
        return _program(text) if text.strip() else None

    @override
    def parse_multiple(self, text: str, m: int) -> list[str | None]:
        parts = [part for part in _SEPARATOR.split(text) if part.strip()]
        programs = [_program(part) for part in parts]
        if len(parts) == 1:
            blocks = _blocks(text)
            programs = blocks if len(blocks) > 1 else programs
        found: list[str | None] = [*programs[:m]]
        return found + [None] * (m - len(found))

    @override
    def ask_single(self) -> str:
        return f"Answer with one program in this form:\n{_FORM}"

    @override
    def ask_multiple(self, m: int) -> str:
        return (
            f"Answer with {m} different programs, each of which could be the one that passes a "
            f"test where the others fail. Put each in its own block of this form, and a line that "
            f"holds only --- between two blocks:\n{_FORM}"
        )

    @override
    def stop_single(self) -> StopRule | None:
        return None

    @override
    def stop_multiple(self, m: int) -> StopRule | None:
        return None

    @override
    def render_single(self, answer: str) -> str:
        return f"```python\n{answer}\n```"

    @override
    def render_multiple(self, answers: Sequence[str]) -> str:
        return "\n---\n".join(self.render_single(answer) for answer in answers)


def _blocks(text: str) -> list[str]:
    found = _PYTHON_BLOCK.findall(text) or _ANY_BLOCK.findall(text)
    return [block.strip() for block in found]


def _program(text: str) -> str:
    return next(iter(_blocks(text)), text.strip())
