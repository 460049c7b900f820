"""One vLLM server over HTTP: tokens in and out, its weight version, and the phases of an update."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import httpx

CHECK_SECONDS = 10.0
"""A server that does not tell its weight version within this time counts as lost."""
_GENERATE = "/inference/v1/generate"
_IDLE_SECONDS = 2.0  # an idle connection is given up before vLLM closes it, after 5 seconds


class ServerLostError(RuntimeError):
    """The server gave no usable answer: gone, restarting, too slow, or of other weights."""


class ServerRefusedError(RuntimeError):
    """The server understood and said no; asking again would not help."""


class RolloutServer:
    """The calls of one server that rollouts need.

    Args:
        url: Scheme, host and port.
        connections: Requests at a time.
        request_timeout: Seconds for one completion, the wait in the server's queue included.

    Attributes:
        url: Scheme, host and port, without a slash at the end.
        state: Why the server gets no requests at present; None when it has the current weights.
        is_up: Whether it answered when it was last asked for its version.
        load: Completions it is asked for at present.
    """

    def __init__(self, url: str, *, connections: int, request_timeout: float | int) -> None:
        self.url = url.rstrip("/")
        self.state: str | None = "not asked yet"
        self.is_up = False
        self.load = 0
        # A request waits for a free connection without limit: others are being served meanwhile.
        self._client = httpx.AsyncClient(
            base_url=self.url,
            limits=httpx.Limits(max_connections=connections, keepalive_expiry=_IDLE_SECONDS),
            timeout=httpx.Timeout(request_timeout, connect=CHECK_SECONDS, pool=None),
            trust_env=False,
        )

    async def weight_version(self) -> str:
        """The label of the weights in use; ``default`` in a server that has just started.

        Raises:
            ServerLostError: No answer.
        """
        answer = await self.call("GET", "/weight_info", timeout=CHECK_SECONDS)
        return str(answer["weight_version"])

    async def check_settings(self, wanted: Mapping[str, str]) -> int:
        """The server's longest prompt and completion together, in tokens.

        Args:
            wanted: Those of `WorkerExtension.rollout_settings` that the training needs.

        Raises:
            ServerRefusedError: It was started with others.
        """
        remedy = (
            "start it with scripts/serve_rollouts.py, --dtype as model.dtype and --transfer as "
            "engine.transfer"
        )
        try:
            answer = await self.call("POST", "/collective_rpc", {"method": "rollout_settings"})
        except (ServerLostError, ServerRefusedError) as error:
            raise ServerRefusedError(
                f"{self.url} is no vLLM server that tells its settings ({error}); {remedy}"
            ) from error
        found = answer["results"][0]
        for name, value in wanted.items():
            if found[name] != value:
                raise ServerRefusedError(
                    f"the vLLM server at {self.url} runs with {name}={found[name]}, the training "
                    f"needs {value}; {remedy}"
                )
        return int(found["max_model_len"])

    async def world_size(self) -> int:
        """The number of the server's workers."""
        return int((await self.call("GET", "/get_world_size"))["world_size"])

    async def sample(self, body: Mapping[str, Any], label: str) -> tuple[list[int], list[float]]:
        """The token ids of one completion and their log-probabilities in nats.

        Args:
            body: Of a request to ``/inference/v1/generate``.
            label: Of the weights that every token must come from.

        Raises:
            FloatingPointError: A log-probability is not a number.
            ServerLostError: No answer, an aborted one, or one of other weights.
            ServerRefusedError: The request is not possible, e.g. longer than the model's positions.
        """
        [choice] = (await self.call("POST", _GENERATE, body))["choices"]
        versions = {span["version"] for span in choice["weight_versions"] or []}
        if choice["finish_reason"] not in ("stop", "length") or versions != {label}:
            raise ServerLostError(
                f"it answered with weights {', '.join(sorted(versions)) or 'of no version'} "
                f"(finish reason {choice['finish_reason']}); expected {label}"
            )
        logprobs = [entry["logprob"] for entry in choice["logprobs"]["content"]]
        if any(math.isnan(value) or value <= -9999 for value in logprobs):  # vLLM's word for NaN
            raise FloatingPointError(
                f"{self.url} drew a token of probability zero: the weights have diverged (see "
                "train/grad_norm) or overflow in the server's dtype; lower optimizer.lr"
            )
        return choice["token_ids"], logprobs

    async def call(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        timeout: float | None = None,
    ) -> Any:
        """The JSON answer of one call.

        Args:
            method: GET or POST.
            path: Under the server's URL.
            body: Sent as JSON.
            timeout: Seconds; None is the limit of a completion.

        Raises:
            ServerLostError: No answer within the time, or an internal error; with its text.
            ServerRefusedError: A status of 400 to 499, with its text.
        """
        limit = httpx.USE_CLIENT_DEFAULT if timeout is None else timeout
        # vLLM closes a connection after an internal error; a call that follows must not take it.
        headers = {} if path == _GENERATE else {"Connection": "close"}
        try:
            answer = await self._client.request(
                method, path, json=body, headers=headers, timeout=limit
            )
        except httpx.HTTPError as error:
            raise ServerLostError(f"{path}: {type(error).__name__} {error}".rstrip()) from error
        if answer.is_success:
            return answer.json() if answer.content else None
        problem = ServerRefusedError if answer.is_client_error else ServerLostError
        raise problem(f"{path}: status {answer.status_code}: {_reason(answer)}")

    async def close(self) -> None:
        """Closes the connections."""
        await self._client.aclose()


def _reason(answer: httpx.Response) -> str:
    """The message in an error answer, on one line."""
    try:
        text = answer.json()["error"]["message"]
    except (ValueError, KeyError, TypeError):
        text = answer.text
    return " ".join(str(text).split())[:500]
