"""Answers to learn the output format from: the right calls, some of them without an argument."""

from __future__ import annotations

import json
from collections.abc import Sequence
from random import Random

from vpo_lightning.tasks.toolrl.calls import ToolCall

_LOST = 0.3  # share of calls that lose an argument


def demonstration(gold: Sequence[ToolCall], rng: Random) -> str:
    """A thought, then imperfect calls, or a response where no tool is called."""
    if not gold:
        return "<think>No tool helps here.</think>\n<response>I cannot look this up.</response>"
    lines: list[str] = []
    for call in gold:
        arguments = dict(call.arguments)
        if arguments and rng.random() < _LOST:
            arguments.pop(rng.choice(sorted(arguments)))
        lines.append(json.dumps({"name": call.name, "parameters": arguments}))
    names = ", ".join(call.name for call in gold)
    calls = "\n".join(lines)
    return f"<think>I call {names}.</think>\n<tool_call>\n{calls}\n</tool_call>"
