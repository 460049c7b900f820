"""An OpenAI-compatible endpoint as a policy or a judge, with the standard library alone."""

from __future__ import annotations

import http.client
import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from vpo_lightning.errors import ConfigError
from vpo_lightning.http_reply import read_reply
from vpo_lightning.prompting import Message
from vpo_lightning.rollout.engine import SamplingSettings
from vpo_lightning.searching.policies import Ask, Sample

# Answers that a server may give while it is busy or starting.
_BUSY = (429, 500, 502, 503, 504)
_LARGEST_SEED = 2**31 - 1  # some servers take no larger one


@dataclass(frozen=True)
class Endpoint:
    """Where chat completions are asked for.

    Attributes:
        url: Up to and including ``/v1``; None: there is no endpoint.
        model: Name of the model; None takes the first that the endpoint lists.
        key_variable: Environment variable with the API key; None sends no key.
        seconds: Deadline of one request; a busy server is asked again until then.
    """

    url: str | None = None
    model: str | None = None
    key_variable: str | None = None
    seconds: float = 120.0

    def model_name(self) -> str:
        """The model that is asked.

        Raises:
            ConfigError: The endpoint lists none, or does not answer.
        """
        if self.model is not None:
            return self.model
        listed = self._ask("models", None).get("data")
        if not isinstance(listed, list) or not listed:
            raise ConfigError(
                f"{self.url}: it lists no models; set endpoint.model, of a judge search.judge.model"
            )
        return str(listed[0]["id"])

    def chat(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to a chat completion request.

        Raises:
            ConfigError: The endpoint refuses the request, or does not answer in time.
        """
        return self._ask("chat/completions", body)

    def _ask(self, path: str, body: Mapping[str, Any] | None) -> dict[str, Any]:
        deadline = time.monotonic() + self.seconds
        pause = 0.1
        while True:
            left = deadline - time.monotonic()
            try:
                return self._once(path, body, max(left, 0.1))
            except urllib.error.HTTPError as error:
                detail = error.read(2000).decode(errors="replace")
                reason, may_pass = f"status {error.code}: {_message(detail)}", error.code in _BUSY
            except (OSError, http.client.HTTPException, ValueError, RecursionError) as error:
                reason, may_pass = f"{type(error).__name__}: {error}", False
            if not may_pass or time.monotonic() + pause > deadline:
                raise ConfigError(f"{self.url}/{path}: {reason}; check the endpoint and its URL")
            time.sleep(pause)
            pause = min(2 * pause, 5.0)

    def _once(self, path: str, body: Mapping[str, Any] | None, seconds: float) -> dict[str, Any]:
        headers = {"Content-Type": "application/json"}
        if self.key_variable is not None:
            key = os.environ.get(self.key_variable)
            if not key:
                raise ConfigError(
                    f"{self.url}: key_variable={self.key_variable} (of endpoint or search.judge) "
                    "is no environment variable; set it to the API key, or the config key to null"
                )
            headers["Authorization"] = f"Bearer {key}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{(self.url or '').rstrip('/')}/{path}", data, headers)
        parsed = json.loads(read_reply(request, seconds))
        if not isinstance(parsed, dict):
            raise ValueError("the answer is no JSON object")
        return parsed


class EndpointPolicy:
    """A policy behind an OpenAI-compatible endpoint. It continues no chains: text goes in and out.

    Args:
        endpoint: Where it is.
        sampling: Temperature, top-p and the longest completion.
        concurrency: Requests at the same time.
    """

    continues_chains = False

    def __init__(self, endpoint: Endpoint, sampling: SamplingSettings, concurrency: int) -> None:
        self.endpoint = endpoint
        self._sampling = sampling
        self._model = endpoint.model_name()
        self._threads = ThreadPoolExecutor(concurrency)

    @property
    def max_tokens(self) -> int:
        """Most tokens of a completion."""
        return self._sampling.max_tokens

    def num_tokens(self, messages: list[Message]) -> int:
        """Unknown: 0."""
        del messages
        return 0

    def encode_text(self, text: str) -> tuple[int, ...]:
        """Not for this policy.

        Raises:
            ConfigError: Always.
        """
        raise ConfigError("policy: an endpoint does not continue chains; use a run or model folder")

    def sample(self, asks: Sequence[Ask]) -> list[Sample]:
        """One request for each ask.

        Raises:
            ConfigError: The endpoint refuses a request.
        """
        return list(self._threads.map(self._one, asks))

    def close(self) -> None:
        """Ends the threads."""
        self._threads.shutdown()

    def _one(self, ask: Ask) -> Sample:
        if ask.prefix_ids:
            raise ConfigError(
                "policy: an endpoint does not continue chains by token ids; use a run folder or a "
                "model folder for this search"
            )
        started = time.perf_counter()
        answer = self.endpoint.chat(
            {
                "model": self._model,
                "messages": ask.messages,
                "max_tokens": self._sampling.max_tokens,
                "temperature": self._sampling.temperature,
                "top_p": self._sampling.top_p,
                "seed": ask.seed % _LARGEST_SEED,
            }
        )
        text, finish, read, written = read_completion(answer)
        return Sample((), text, finish, read, written, time.perf_counter() - started)


def read_completion(answer: Mapping[str, Any]) -> tuple[str, str, int, int]:
    """Text, end (``stop`` or ``length``), and the tokens read and written of a chat completion.

    Raises:
        ConfigError: It has no choice with a text.
    """
    try:
        choice = answer["choices"][0]
        text = choice["message"]["content"] or ""
        usage = answer.get("usage") or {}
        read, written = usage.get("prompt_tokens", 0), usage.get("completion_tokens", 0)
        return str(text), str(choice.get("finish_reason") or "stop"), int(read), int(written)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(
            f"the endpoint's answer is no chat completion ({type(error).__name__}: {error}); "
            "expected choices[0].message.content"
        ) from error


def _message(detail: str) -> str:
    """The message of an error in the OpenAI shape, else the text."""
    try:
        return str(json.loads(detail)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return " ".join(detail.split())[:200]
