"""The body of a chat completion in OpenAI's shape."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any


def chat_reply(
    model: str, choices: Sequence[Mapping[str, Any]], prompt_tokens: int, completion_tokens: int
) -> dict[str, Any]:
    """The body that tells of some choices, which get their numbers here.

    Args:
        model: Its name.
        choices: ``message`` and ``finish_reason`` of each, and what else it has.
        prompt_tokens: Tokens read.
        completion_tokens: Tokens sampled, of all choices.
    """
    return {
        "id": f"chatcmpl-{uuid.uuid4().hex}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model,
        "choices": [{"index": i, **choice} for i, choice in enumerate(choices)],
        "usage": {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": completion_tokens,
            "total_tokens": prompt_tokens + completion_tokens,
        },
    }
