"""Tool calls in an answer: what stands in its think and tool_call blocks."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vpo_lightning.parsing import first_body

_BETWEEN_CALLS = " \t\r\n,"
_DECODER = json.JSONDecoder()


@dataclass(frozen=True)
class ToolCall:
    """A tool's name and its arguments."""

    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True)
class ToolAnswer:
    """The parts of an answer.

    Attributes:
        has_think: Whether there is a closed think block.
        has_call_text: Whether the first closed tool_call block holds anything, readable or not.
        calls: The calls that could be read in it.
        think: Text of the think block.
        response: Text of the response block.
    """

    has_think: bool
    has_call_text: bool
    calls: tuple[ToolCall, ...]
    think: str = ""
    response: str = ""


def parse_tool_answer(answer: str) -> ToolAnswer:
    """The first block of each kind; an unclosed one is absent."""
    tags = ("think", "tool_call", "response")
    think, block, response = (first_body(answer, tag) for tag in tags)
    body = (block or "").strip()
    return ToolAnswer(
        has_think=think is not None,
        has_call_text=bool(body),
        calls=tuple(read_calls(_json_values(body))),
        think=(think or "").strip(),
        response=(response or "").strip(),
    )


def read_calls(values: Sequence[Any]) -> list[ToolCall]:
    """The objects among JSON values as calls; arguments under ``parameters`` or ``arguments``.

    Arguments that are no object count as none, a missing name as the empty one.
    """
    calls: list[ToolCall] = []
    for value in values:
        if isinstance(value, Mapping):
            arguments = value.get("parameters", value.get("arguments"))
            is_object = isinstance(arguments, Mapping)
            calls.append(ToolCall(str(value.get("name", "")), arguments if is_object else {}))
    return calls


def _json_values(body: str) -> list[Any]:
    """The items of a JSON array, or the JSON objects that follow one another up to the first fault.

    A faulty array holds nothing, as in the public reference implementation.
    """
    if body.startswith("["):
        value = _decoded(body, 0)
        is_whole = value is not None and isinstance(value[0], list) and value[1] == len(body)
        return value[0] if value is not None and is_whole else []
    values: list[Any] = []
    position = _skip(body, 0)
    while body.startswith("{", position):
        decoded = _decoded(body, position)
        if decoded is None:
            break
        values.append(decoded[0])
        position = _skip(body, decoded[1])
    return values


def _decoded(text: str, position: int) -> tuple[Any, int] | None:
    """A JSON value and the position behind it; None if there is no complete one."""
    try:
        return _DECODER.raw_decode(text, position)
    except (ValueError, RecursionError):  # also numbers of thousands of digits, endless nesting
        return None


def _skip(text: str, position: int) -> int:
    while position < len(text) and text[position] in _BETWEEN_CALLS:
        position += 1
    return position
