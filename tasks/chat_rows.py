"""Rows that were written for the public reference implementation, in the schema of veRL."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vpo_lightning.tasks.fields import Fields


@dataclass(frozen=True)
class ChatRow:
    """A row written for the reference implementation (the schema of veRL).

    Attributes:
        system: Text of the system message, or None.
        user: Text of the last message, with the instruction about the answer format.
        ground_truth: What the scorer needs; a JSON object in a string has been read.
    """

    system: str | None
    user: str
    ground_truth: Mapping[str, Any] | str

    def truth_fields(self, record: Fields) -> Fields:
        """The ground truth as an object with its place; raises ConfigError if it is text."""
        reward_model = record.inner("reward_model")
        if isinstance(self.ground_truth, str):
            raise reward_model.error("ground_truth", "is text; expected an object")
        return Fields(self.ground_truth, record.place, reward_model.path_of("ground_truth"))


def is_chat_row(record: Fields) -> bool:
    """Whether a record is in the schema of veRL instead of the data set's own."""
    return "reward_model" in record.values


def read_chat_row(record: Fields, sources: Sequence[str]) -> ChatRow:
    """The parts of a row with data_source, prompt and reward_model.ground_truth.

    Raises:
        ConfigError: A field is missing or has another type, or the row belongs to another task.
    """
    source = record.text("data_source")
    if source not in sources:
        raise record.error("data_source", f"is {source!r}; expected {' or '.join(sources)}")
    messages = [(m.text("role"), m.text("content")) for m in record.objects("prompt")]
    if not messages:
        raise record.error("prompt", "is empty; expected a list of messages")
    roles = [role for role, _ in messages]
    if roles not in (["user"], ["system", "user"]):
        raise record.error(
            "prompt",
            f"has messages of {', '.join(roles)}; expected one of the user, behind one of the "
            f"system or none",
        )
    reward_model = record.inner("reward_model")
    truth = reward_model.values.get("ground_truth")
    if not isinstance(truth, Mapping):
        truth = reward_model.text("ground_truth")
        if truth.lstrip().startswith("{"):
            try:
                truth = json.loads(truth)
            except ValueError as error:
                raise reward_model.error("ground_truth", f"is not JSON ({error})") from error
    system = messages[0][1] if len(messages) > 1 else None
    return ChatRow(system, messages[-1][1], truth)


def question_of(row: ChatRow, record: Fields, instruction_start: str) -> str:
    """The user message without the instruction about the answer format at its end.

    The prompt styles write their own instruction, for one answer or for several.

    Args:
        row: The row.
        record: The same as stored, for messages.
        instruction_start: Regular expression that matches where the instruction begins.

    Raises:
        ConfigError: Nothing in the message matches.
    """
    match = re.search(instruction_start, row.user)
    if match is None:
        raise record.error(
            "prompt",
            f"has no format instruction that begins like {instruction_start!r}; set "
            f"task.instruction_start to the words where it begins in your file",
        )
    return row.user[: match.start()].rstrip()
