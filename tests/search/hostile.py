"""A task whose scorer does what the answer says, whatever that is."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from typing import Any

from vpo_lightning.parsing import NumberedTags
from vpo_lightning.task import Objective, PromptRow, Task

KINDS = ("good", "hang", "crash", "raise", "nan", "string", "short")


class HostileTask(Task):
    """The first letter of an answer decides, so that any text does something.

    Args:
        kind: What every answer but the start program does; None: what its text names.
    """

    objectives = (Objective("x", "much x"), Objective("y", "much y"))
    answer_format = NumberedTags("answer", "anything")
    may_block = True

    def __init__(self, kind: str | None = None) -> None:
        self._kind = kind

    def rows(self, split: str) -> Sequence[PromptRow]:
        """One row, with a program to start from."""
        truth = {"start_program": "good"}
        return [PromptRow(f"{split}-1", "Do something.", truth, self.objectives)]

    def score(self, answer: str, row: PromptRow) -> Any:
        """Half of each objective, or a fault."""
        kind = answer.strip() if self._kind is None or answer.strip() == "good" else self._kind
        match kind:
            case "hang":
                time.sleep(3600)
            case "crash":
                os._exit(3)
            case "raise":
                raise RuntimeError("no")
            case "nan":
                return [float("nan"), 1.0]
            case "string":
                return json.dumps([1.0, 1.0])
            case "short":
                return [1.0]
        return [0.5, 0.5]
