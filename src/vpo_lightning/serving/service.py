"""From a valid request to the body of a chat completion."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from vpo_lightning.core.seeding import derive_seed
from vpo_lightning.errors import ConfigError
from vpo_lightning.parsing import AnswerFormat, StopRule
from vpo_lightning.prompting import Message, with_instruction
from vpo_lightning.rollout.engine import Completion, GenerationRequest, SamplingSettings
from vpo_lightning.serving.api_error import ApiError
from vpo_lightning.serving.batcher import Batcher
from vpo_lightning.serving.chat_reply import chat_reply
from vpo_lightning.serving.chat_request import ChatRequest, Limits


@dataclass(frozen=True)
class ChatService:
    """A policy behind an engine.

    Attributes:
        model: Its name.
        batcher: Samples.
        encode: Chat messages to token ids.
        decode: Token ids to text.
        answer_format: How chains of answers are asked for and read.
        positions: Most tokens of a prompt and its completion.
        default_tokens: Longest completion where a request does not say.
        limits: Of requests.
    """

    model: str
    batcher: Batcher
    encode: Callable[[list[Message]], list[int]]
    decode: Callable[[Sequence[int]], str]
    answer_format: AnswerFormat
    positions: int
    default_tokens: int
    limits: Limits

    async def complete(self, request: ChatRequest) -> dict[str, Any]:
        """The body of the answer.

        Raises:
            ApiError: The prompt cannot be read or is too long, the server is busy or stopping, or
                generation failed.
        """
        prompt_ids = self._encode(request)
        sampling = SamplingSettings(
            self._most_tokens(request, len(prompt_ids)), request.temperature, request.top_p
        )
        seed = secrets.randbits(63) if request.seed is None else request.seed
        generation = GenerationRequest(
            id="request",
            prompt_ids=prompt_ids,
            seeds=[derive_seed(seed, "choice", i) for i in range(request.n)],
            stop=self._stop_rule(request),
        )
        future = self.batcher.submit(generation, sampling)
        sampled = await asyncio.wrap_future(future)
        completions = [self._cut(completion, sampling.max_tokens) for completion in sampled]
        return self._body(request, len(prompt_ids), completions)

    def _cut(self, completion: Completion, most: int) -> Completion:
        """The completion, ended after so many tokens."""
        if len(completion.ids) <= most:
            return completion
        ids = completion.ids[:most]
        return Completion(ids, completion.logprobs[:most], self.decode(ids), "length")

    def _encode(self, request: ChatRequest) -> list[int]:
        messages = [*request.messages]
        if request.answers is not None:
            last = messages[-1]
            if last["role"] != "user":
                raise ApiError(400, "answers: the last message must be the user's", "messages")
            asked = self._instruction(request.answers)
            messages[-1] = {**last, "content": with_instruction(last["content"], asked)}
        try:
            ids = self.encode(messages)
        except ConfigError as error:
            raise ApiError(400, str(error), "messages", "invalid_prompt") from error
        except Exception as error:  # a chat template may raise anything for roles it does not know
            reason = f"the chat template refuses the messages: {error}"[:300]
            raise ApiError(400, reason, "messages", "invalid_prompt") from error
        if not ids:
            raise ApiError(400, "messages: the prompt has no tokens", "messages", "invalid_prompt")
        return ids

    def _instruction(self, answers: int) -> str:
        form = self.answer_format
        return form.ask_single() if answers == 1 else form.ask_multiple(answers)

    def _most_tokens(self, request: ChatRequest, prompt: int) -> int:
        room = self.positions - prompt
        wanted = request.max_tokens
        if room < 1 or (wanted is not None and wanted > room):
            raise ApiError(
                400,
                f"the prompt has {prompt} tokens and up to {wanted or 1} are to follow; the model "
                f"holds {self.positions}",
                "messages",
                "context_length_exceeded",
            )
        return min(room, self.default_tokens) if wanted is None else wanted

    def _stop_rule(self, request: ChatRequest) -> StopRule | None:
        if request.answers == 1:
            return self.answer_format.stop_single()
        if request.answers is not None:
            return self.answer_format.stop_multiple(request.answers)
        return StopRule(request.stop[0]) if len(request.stop) == 1 else None

    def _body(
        self, request: ChatRequest, prompt: int, completions: Sequence[Completion]
    ) -> dict[str, Any]:
        if request.answers is None:
            choices = [self._choice(request, completion) for completion in completions]
        else:
            choices = [
                choice
                for chain, completion in enumerate(completions)
                for choice in self._answers(request.answers, chain, completion)
            ]
        written = sum(len(completion.ids) for completion in completions)
        return chat_reply(self.model, choices, prompt, written)

    def _choice(self, request: ChatRequest, completion: Completion) -> dict[str, Any]:
        ends = [at for stop in request.stop if (at := completion.text.find(stop)) >= 0]
        text = completion.text[: min(ends)] if ends else completion.text
        reason = "stop" if ends or completion.finish_reason != "length" else "length"
        logprobs = {"content": self._token_records(completion)} if request.logprobs else None
        return {
            "message": {"role": "assistant", "content": text},
            "finish_reason": reason,
            "logprobs": logprobs,
        }

    def _token_records(self, completion: Completion) -> list[dict[str, Any]]:
        texts = [self.decode([token]) for token in completion.ids]
        return [
            {"token": text, "logprob": chance, "bytes": list(text.encode()), "top_logprobs": []}
            for text, chance in zip(texts, completion.logprobs, strict=True)
        ]

    def _answers(self, m: int, chain: int, completion: Completion) -> list[dict[str, Any]]:
        """One choice for each slot of a chain; a missing one has an empty text and says so."""
        form = self.answer_format
        texts = (
            [form.parse_single(completion.text)]
            if m == 1
            else form.parse_multiple(completion.text, m)
        )
        reason = "length" if completion.finish_reason == "length" else "stop"
        return [
            {
                "message": {"role": "assistant", "content": text or ""},
                "finish_reason": reason,
                "logprobs": None,
                "vpo": {"chain": chain, "slot": slot, "answers": m, "is_missing": text is None},
            }
            for slot, text in enumerate(texts)
        ]
