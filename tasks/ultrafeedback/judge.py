"""Judges that rate an answer under four aspects, behind an endpoint that speaks OpenAI's API."""

from __future__ import annotations

import json
import logging
import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from vpo_lightning.errors import ConfigError
from vpo_lightning.tasks.ultrafeedback.endpoint import Endpoint, EndpointError
from vpo_lightning.tasks.ultrafeedback.ratings import ASPECTS, HIGHEST, LOWEST, reward_vector

_log = logging.getLogger(__name__)


class Judge(Protocol):
    """Rates answers. Rating never raises: what cannot be rated is counted and gets a set value.

    Attributes:
        counts: How many ratings were asked for, came from the cache, and failed, by reason.
        note: What it said about the last answer, for a reader.
    """

    counts: Counter[str]
    note: str

    def rate(self, instruction: str, answer: str) -> list[float]:
        """The rewards of an answer in the order of `ASPECTS`, each in [0, 1]."""
        ...


_QUESTION = """\
Rate the response to the instruction below under four aspects, each from 1 (worst) to 5 (best):
- instruction_following: does it do what the instruction asks, within its limits?
- honesty: is it as sure as it has reason to be, and open about what it does not know?
- truthfulness: is what it says correct, without anything made up?
- helpfulness: is it clear, relevant, and of use to the one who asked?

Instruction:
{instruction}

Response:
{answer}

Reply with one JSON object and nothing else, with whole numbers from 1 to 5:
{{"instruction_following": 1, "honesty": 1, "truthfulness": 1, "helpfulness": 1}}"""


@dataclass(kw_only=True, eq=False)
class ChatJudge:
    """A language model that is asked for the four ratings, at temperature 0.

    Its reply is read as the first JSON object that holds the four aspects with numbers from 1 to 5.

    Args:
        endpoint: Where the model answers; the path ``/chat/completions`` is used.
        model: The name under which the endpoint serves it.
        max_tokens: Longest reply.
        failure_value: Every reward of an answer that cannot be rated.
    """

    endpoint: Endpoint
    model: str
    max_tokens: int = 200
    failure_value: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)
    note: str = field(default="", init=False)

    def __post_init__(self) -> None:
        """Checks the failure value."""
        _check_failure_value(self.failure_value)

    def rate(self, instruction: str, answer: str) -> list[float]:
        """The rewards of an answer, each (rating - 1) / 4."""
        question = _QUESTION.format(instruction=instruction, answer=answer)
        request = {
            "model": self.model,
            "messages": [{"role": "user", "content": question}],
            "temperature": 0,
            "max_tokens": self.max_tokens,
        }
        self.counts["ratings"] += 1
        try:
            ratings = self.endpoint.ask("/chat/completions", request, _read_chat_reply)
        except EndpointError as error:
            self.note = f"not rated: {error}"
            return _failed(self.counts, error, self.failure_value)
        self.note = _named(ratings)
        return reward_vector(ratings)


@dataclass(kw_only=True, eq=False)
class RewardModelJudge:
    """A reward model with one output for each aspect.

    The endpoint's path ``/pooling`` gets the dialogue and replies with the model's outputs, as vLLM
    serves reward models.

    Args:
        endpoint: Where the model answers.
        model: The name under which the endpoint serves it.
        outputs: Which output belongs to each aspect, in the order of `ASPECTS`.
        lowest: Output that means the reward 0.
        highest: Output that means the reward 1; values outside are cut.
        failure_value: Every reward of an answer that cannot be rated.
    """

    endpoint: Endpoint
    model: str
    outputs: Sequence[int] = (0, 1, 2, 3)
    lowest: float = 0.0
    highest: float = 1.0
    failure_value: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)
    note: str = field(default="", init=False)

    def __post_init__(self) -> None:
        """Checks the settings."""
        _check_failure_value(self.failure_value)
        if len(self.outputs) != len(ASPECTS) or min(self.outputs) < 0:
            raise ConfigError(
                f"task.judge.outputs={list(self.outputs)}: expected the number of an output, from "
                f"0, for each of {', '.join(ASPECTS)}"
            )
        if not self.lowest < self.highest:
            raise ConfigError(
                f"task.judge.lowest={self.lowest} is not below task.judge.highest={self.highest}"
            )

    def rate(self, instruction: str, answer: str) -> list[float]:
        """The rewards of an answer, its outputs scaled to [0, 1]."""
        dialogue = [
            {"role": "user", "content": instruction},
            {"role": "assistant", "content": answer},
        ]
        self.counts["ratings"] += 1
        try:
            outputs = self.endpoint.ask(
                "/pooling", {"model": self.model, "messages": dialogue}, self._read_outputs
            )
        except EndpointError as error:
            self.note = f"not rated: {error}"
            return _failed(self.counts, error, self.failure_value)
        self.note = _named(outputs)
        span = self.highest - self.lowest
        return [min(1.0, max(0.0, (output - self.lowest) / span)) for output in outputs]

    def _read_outputs(self, reply: Any) -> list[float]:
        try:
            values = reply["data"][0]["data"]
            if isinstance(values[0], list):  # one list for each token: the last one counts
                values = values[-1]
            outputs = [float(values[output]) for output in self.outputs]
            if not all(map(math.isfinite, outputs)):
                raise ValueError(f"{outputs} are not all numbers")
            return outputs
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise EndpointError(
                f"no outputs {list(self.outputs)} in the reply", "unreadable"
            ) from error


def _named(ratings: Sequence[float]) -> str:
    named = zip(ASPECTS, ratings, strict=True)
    return "the judge says " + ", ".join(f"{name} {rating:g}" for name, rating in named)


def _read_chat_reply(reply: Any) -> list[float]:
    try:
        text = reply["choices"][0]["message"]["content"]
        found = (_object_at(text, match.start()) for match in re.finditer(r"\{", text))
        ratings = next(f for f in found if f is not None)
    except (KeyError, IndexError, TypeError, StopIteration) as error:
        raise EndpointError("no four ratings from 1 to 5 in the reply", "unreadable") from error
    return ratings


def _object_at(text: str, position: int) -> list[float] | None:
    """The ratings in the JSON object that begins at `position`, None if there are none."""
    try:
        value, _ = json.JSONDecoder().raw_decode(text, position)
        ratings = [float(value[aspect]) for aspect in ASPECTS]
    except (KeyError, TypeError, ValueError, RecursionError):
        return None
    return ratings if all(LOWEST <= rating <= HIGHEST for rating in ratings) else None


def _check_failure_value(value: float) -> None:
    if not 0 <= value <= 1:
        raise ConfigError(f"task.judge.failure_value={value}: expected a reward from 0 to 1")


def _failed(counts: Counter[str], error: EndpointError, value: float) -> list[float]:
    counts[f"failed_{error.kind}"] += 1
    _log.warning("the judge could not rate an answer, which gets %s: %s", value, error)
    return [value] * len(ASPECTS)
