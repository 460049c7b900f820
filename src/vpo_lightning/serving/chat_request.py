"""A chat completion request: every field read, checked, or refused by name."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vpo_lightning.prompting import Message
from vpo_lightning.serving.api_error import ApiError

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
# Fields that change nothing at these values, and are not supported at others.
_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "stream": (False, None),
    "stream_options": (None,),
    "top_logprobs": (0, None),
    "frequency_penalty": (0, None),
    "presence_penalty": (0, None),
    "logit_bias": ({}, None),
    "response_format": ({"type": "text"}, None),
    "tools": ([], None),
    "tool_choice": ("none", "auto", None),
    "functions": ([], None),
    "modalities": (["text"], None),
}
# Fields that tell about the caller and need no answer.
_IGNORED = {"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"}
_READ = {
    *("model", "messages", "n", "seed", "max_tokens", "max_completion_tokens"),
    *("temperature", "top_p", "stop", "logprobs", "answers"),
}
_MOST_STOPS = 4


@dataclass(frozen=True)
class Limits:
    """What one request may ask for, and how much may wait.

    Attributes:
        body_bytes: Length of the body.
        messages: Messages of a prompt.
        completions: ``n``.
        answers: ``answers``, the answers of a chain.
        tokens: ``max_tokens``.
        waiting: Requests that wait while others are computed; more are refused with status 429.
    """

    body_bytes: int = 1 << 20
    messages: int = 256
    completions: int = 64
    answers: int = 16
    tokens: int = 4096
    waiting: int = 64


@dataclass(frozen=True)
class ChatRequest:
    """A valid request.

    Attributes:
        messages: The prompt.
        n: Completions (chains, where `answers` is given).
        seed: Of the sampling; None draws one.
        max_tokens: Longest completion; None for the server's default.
        temperature: Divides the logits.
        top_p: Mass of the tokens that are kept.
        stop: Texts that end a completion and are cut off.
        logprobs: Whether the log-probability of each token is wanted.
        answers: m, to ask for chains of m answers and get each as a choice; None for plain text.
    """

    messages: list[Message]
    n: int = 1
    seed: int | None = None
    max_tokens: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    stop: tuple[str, ...] = ()
    logprobs: bool = False
    answers: int | None = None


def parse_request(body: bytes, limits: Limits) -> ChatRequest:
    """The request in a body.

    Raises:
        ApiError: Status 400, with the field at fault.
    """
    fields = _object(body)
    unknown = sorted(set(fields) - _READ - _IGNORED - set(_NEUTRAL))
    if unknown:
        raise _refused(unknown[0][:64], "there is no such field")
    for name, neutral in _NEUTRAL.items():
        if name in fields and not any(_is_same(fields[name], value) for value in neutral):
            raise _refused(name, "this server does not support it", code="unsupported_parameter")
    answers = _whole(fields, "answers", 1, limits.answers)
    stop = _stop(fields.get("stop"))
    logprobs = fields.get("logprobs") or False
    if logprobs is not True and logprobs is not False:
        raise _refused("logprobs", "expected true or false")
    if answers is not None and (stop or logprobs):
        raise _refused("answers", "it excludes stop and logprobs")
    tokens = [
        value
        for name in ("max_completion_tokens", "max_tokens")
        if (value := _whole(fields, name, 1, limits.tokens)) is not None
    ]
    return ChatRequest(
        messages=_messages(fields.get("messages"), limits),
        n=_whole(fields, "n", 1, limits.completions) or 1,
        seed=_whole(fields, "seed", -(2**63), 2**63 - 1),
        max_tokens=tokens[0] if tokens else None,
        temperature=_number(fields, "temperature", 0.0, 2.0),
        top_p=_number(fields, "top_p", 1e-6, 1.0),
        stop=stop,
        logprobs=logprobs,
        answers=answers,
    )


def _object(body: bytes) -> dict[str, Any]:
    def refuse(word: str) -> None:
        raise ValueError(f"{word} is not JSON")

    try:
        fields = json.loads(body, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"the body is no JSON: {error}"[:300], code="invalid_json") from error
    if not isinstance(fields, dict):
        raise ApiError(400, f"the body is {type(fields).__name__}; expected an object")
    return fields


def _messages(given: Any, limits: Limits) -> list[Message]:
    if not isinstance(given, list) or not given:
        raise _refused("messages", "expected a list with at least one message")
    if len(given) > limits.messages:
        raise _refused("messages", f"{len(given)} messages; at most {limits.messages}")
    return [_message(message, f"messages[{i}]") for i, message in enumerate(given)]


def _message(given: Any, place: str) -> Message:
    if not isinstance(given, dict):
        raise _refused(place, "expected an object with role and content")
    role, content = given.get("role"), given.get("content")
    if not isinstance(role, str) or role not in _ROLES:
        raise _refused(f"{place}.role", f"expected one of {', '.join(_ROLES)}")
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, dict)]
        is_text = all(isinstance(part, str) for part in parts) and len(parts) == len(content)
        content = "".join(parts) if is_text else None  # type: ignore[arg-type]
    if not isinstance(content, str):
        raise _refused(f"{place}.content", "expected a text, or a list of text parts")
    return {"role": _ROLES[role], "content": content}


def _stop(given: Any) -> tuple[str, ...]:
    texts = [given] if isinstance(given, str) else given or []
    is_list = isinstance(texts, list) and len(texts) <= _MOST_STOPS
    if not is_list or not all(isinstance(text, str) and text for text in texts):
        raise _refused("stop", f"expected a text or up to {_MOST_STOPS} texts, none empty")
    return tuple(texts)


def _whole(fields: Mapping[str, Any], name: str, least: int, most: int) -> int | None:
    value = fields.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise _refused(name, f"expected a whole number from {least} to {most}")
    return value


def _number(fields: Mapping[str, Any], name: str, least: float, most: float) -> float:
    value = fields.get(name)
    if value is None:
        return 1.0
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not least <= value <= most or not math.isfinite(value):
        raise _refused(name, f"expected a number from {least:g} to {most:g}")
    return float(value)


def _is_same(given: Any, neutral: Any) -> bool:
    """Equality that tells 0 from False."""
    return given == neutral and isinstance(given, bool) == isinstance(neutral, bool)


def _refused(param: str, reason: str, code: str = "invalid_value") -> ApiError:
    return ApiError(400, f"{param}: {reason}", param, code)
