"""A user's task whose scoring goes wrong in the way that the answer names."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
import time
import zlib
from collections.abc import Hashable, Sequence

from vpo_lightning.parsing import NumberedTags
from vpo_lightning.task import Objective, PromptRow, Task


class BadTask(Task):
    """Scores ``good`` with (1, 0.5) and every other word with a fault."""

    objectives = (Objective("x", "much x"), Objective("y", "much y"))
    answer_format = NumberedTags("word", "a word")

    def __init__(self) -> None:
        self._scored = 0

    def rows(self, split: str) -> Sequence[PromptRow]:
        return [PromptRow(f"{split}-{i}", "Which word?", {}, self.objectives) for i in range(8)]

    def score(self, answer: str, row: PromptRow) -> list[float]:
        self._scored += 1
        if answer in RESULTS:
            return RESULTS[answer]
        FAULTS[answer]()
        return [1.0, 0.5]

    def duplicate_key(self, answer: str, rewards: Sequence[float]) -> Hashable:
        keys: dict[str, object] = {"unhashable": [], "not to be sent": lambda: 0}
        return keys.get(answer, answer)  # type: ignore[return-value]

    def explain(self, answer: str, row: PromptRow) -> str:
        return f"it says\n{1 / (answer != 'unexplained')}"

    def counters(self) -> dict[str, int]:
        return {"scored": self._scored}


RESULTS = {
    "nan": [float("nan"), 1.0],
    "infinite": [float("inf"), 1.0],
    "too many": [1.0, 1.0, 1.0],
    "too few": [],
    "text": "10",
    "texts": ["1", "0"],
    "nothing": None,
    "a number": 0.5,
    "a mapping": {"x": 1.0, "y": 0.5},
    "numbers of another kind": (True, 0),
}


def spin() -> None:
    while True:
        pass


def refuse_to_end() -> None:
    while True:
        try:
            spin()
        except BaseException:
            continue


def leave_a_child() -> None:
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
    spin()


FAULTS = {
    "good": lambda: None,
    "unexplained": lambda: None,
    "unhashable": lambda: None,
    "not to be sent": lambda: None,
    "raise": lambda: [][1],
    "leave": lambda: sys.exit(0),
    "spin": spin,
    "refuse to end": refuse_to_end,
    "sleep": lambda: time.sleep(1000),
    "never match": lambda: re.match("(a+)+$", "a" * 60 + "b"),
    "leave a child": leave_a_child,
    "segfault": lambda: ctypes.string_at(0),
    "exit": lambda: os._exit(0),
    "abort": os.abort,
    "print": lambda: print("x" * 10_000_000),
    "close everything": lambda: os.closerange(0, 100),
    "recurse": lambda: FAULTS["recurse"](),
}


class MixedTask(BadTask):
    """Every answer is scored, or goes wrong, in a way that its text decides."""

    def score(self, answer: str, row: PromptRow) -> list[float]:
        words = [*FAULTS, *RESULTS]
        return super().score(words[zlib.crc32(answer.encode()) % len(words)], row)
