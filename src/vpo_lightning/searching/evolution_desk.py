"""Where OpenEvolve asks the policy and has programs scored: an endpoint that books everything."""

from __future__ import annotations

import asyncio
import hashlib
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from vpo_lightning.core.seeding import derive_seed
from vpo_lightning.searching.archive import Answer
from vpo_lightning.searching.budget import Spent
from vpo_lightning.searching.curves import Curve
from vpo_lightning.searching.loop import PromptSearch, SearchLoop
from vpo_lightning.searching.policies import Ask
from vpo_lightning.searching.problem import Problem
from vpo_lightning.searching.search import Search
from vpo_lightning.serving.api_error import ApiError
from vpo_lightning.serving.app import ERROR_HANDLERS, read_body
from vpo_lightning.serving.chat_reply import chat_reply
from vpo_lightning.serving.chat_request import ChatRequest, Limits, parse_request

_MOST_BYTES = 1 << 24


class EvolutionDesk:
    """Answers the two questions of an OpenEvolve run on one prompt, and keeps its archive.

    A call asks for one answer, the program that OpenEvolve makes of it; if OpenEvolve makes none,
    the answer is missing. The start program is in the archive with call -1 and costs no answer.

    Args:
        search: Ranks answers.
        loop: Policy, scorer, budget and log.
        problem: The prompt.
        recorded: What an interrupted run was told.

    Attributes:
        search: The costs and the curve.
        is_spent: Whether the budget has ended.
        is_stalled: Whether OpenEvolve was given up.
        error: What made the run impossible.
    """

    def __init__(
        self, search: Search, loop: SearchLoop, problem: Problem, recorded: Sequence[Any]
    ) -> None:
        self.problem, self.row = problem, problem.row
        self.seed = derive_seed(problem.seed, "openevolve", problem.row.id) % 2**31
        self.search = PromptSearch(problem, _NoSearcher(), Curve(problem, search, loop.solved))
        self.is_spent = self.is_stalled = False
        self.error: Exception | None = None
        self._ranking = search
        self._loop = loop
        self._lock = threading.Lock()
        self._num_asking = 0
        self._last_request = time.monotonic()
        self._open_call: Spent | None = None
        self._told: dict[str, deque[Any]] = defaultdict(deque)
        for event in recorded:
            self._told[event["key"]].append(event["reply"])

    @property
    def idle_seconds(self) -> float:
        """How long OpenEvolve has asked nothing; 0 while it waits for a reply."""
        return 0.0 if self._num_asking else time.monotonic() - self._last_request

    def app(self) -> Starlette:
        """The endpoint; the time that OpenEvolve is idle begins now."""
        self._last_request = time.monotonic()
        return Starlette(
            routes=[
                Route("/v1/chat/completions", self._endpoint(self._chat), methods=["POST"]),
                Route("/score", self._endpoint(self._score), methods=["POST"]),
            ],
            exception_handlers=ERROR_HANDLERS,
        )

    def close(self) -> None:
        """Books the call that OpenEvolve made nothing of."""
        with self._lock:
            self._settle()

    def _endpoint(self, answer: Callable[[bytes], Mapping[str, Any]]) -> Any:
        def locked(body: bytes) -> Mapping[str, Any]:
            with self._lock:
                return answer(body)

        async def handler(request: Request) -> Response:
            body = await read_body(request, _MOST_BYTES)
            self._num_asking += 1
            try:
                return JSONResponse(await asyncio.to_thread(locked, body))
            finally:
                self._num_asking -= 1
                self._last_request = time.monotonic()

        return handler

    def _chat(self, body: bytes) -> Mapping[str, Any]:
        request = parse_request(body, Limits(body_bytes=_MOST_BYTES))
        self._settle()
        spent = self.search.spent
        most = self.problem.policy.num_tokens(request.messages) + self.problem.policy.max_tokens
        if not self._loop.budget.affordable(spent, [(1, most)]):
            self.is_spent = True
            raise ApiError(403, "the budget of this search is spent", code="budget")
        sample = self._once("chat", body, lambda: self._sampled(request))
        self._open_call = Spent(
            calls=1,
            answers=1,
            prompt_tokens=sample["prompt_tokens"],
            completion_tokens=sample["completion_tokens"],
            generation_seconds=sample["seconds"],
        )
        self.search.failures["truncated"] += sample["finish"] == "length"
        return _chat_body(sample)

    def _sampled(self, request: ChatRequest) -> dict[str, Any]:
        seed = derive_seed(self.problem.seed, "search", self.row.id, self.search.spent.calls)
        ask = Ask(self.row.id, request.messages, (), seed, None)
        try:
            (sample,) = self._loop.policy.sample([ask])
        except Exception as error:  # the run cannot go on; it ends with this error
            self.error = error
            raise ApiError(500, str(error)) from error
        return {**asdict(sample), "ids": []}

    def _score(self, body: bytes) -> Mapping[str, Any]:
        # OpenEvolve takes a whole reply for the program where a fence is not closed.
        text = self.problem.task.answer_format.parse_single(body.decode(errors="replace"))
        score = self._once(
            "score", body, lambda: asdict(self._loop.scorer.score([(self.row, text)])[0])
        )
        archive = self.problem.archive.answers
        call = self.search.spent.calls if self._open_call is not None else -1
        answer = Answer(
            len(archive), call, 0, text, tuple(score["rewards"]), score["flag"], score["key"]
        )
        archive.append(answer)
        self.search.failures[score["flag"]] += score["flag"] != "ok"
        costs = self._open_call or Spent()
        costs.scorer_seconds += score["seconds"]
        self._book(costs, [answer])
        scalar = self._ranking.guide.answer_value(self.problem.task, self.row, answer.rewards)
        names = [objective.name for objective in self.row.objectives]
        metrics = dict(zip(names, answer.rewards, strict=True))
        return {"metrics": {**metrics, "combined_score": scalar}, "reason": score["reason"]}

    def _settle(self) -> None:
        """Books an open call as one without an answer."""
        if self._open_call is not None:
            self.search.failures["missing"] += 1
            self._book(self._open_call, [])

    def _book(self, costs: Spent, answers: Sequence[Answer]) -> None:
        self._open_call = None
        self.search.spent.add(costs)
        self.search.curve.add(self.search.spent, answers)

    def _once(self, kind: str, body: bytes, make: Callable[[], Any]) -> Any:
        """What was told to this question before an interruption, else a new reply, logged."""
        key = f"{kind}:{hashlib.sha256(body).hexdigest()}"
        if self._told[key]:
            return self._told[key].popleft()
        reply = make()
        self._loop.log.append({"id": self.row.id, "key": key, "reply": reply})
        return reply


class _NoSearcher:
    """OpenEvolve proposes by itself."""

    def propose(self) -> Sequence[Any]:
        return []

    def learn(self, replies: Sequence[Any]) -> None:
        del replies


def _chat_body(sample: Mapping[str, Any]) -> dict[str, Any]:
    read, written = sample["prompt_tokens"], sample["completion_tokens"]
    message = {"role": "assistant", "content": sample["text"]}
    reason = "length" if sample["finish"] == "length" else "stop"
    return chat_reply("policy", [{"message": message, "finish_reason": reason}], read, written)
