"""The policy as a search sees it: prompts and begun chains in, completions and their costs out."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from vpo_lightning.parsing import StopRule
from vpo_lightning.prompting import Message
from vpo_lightning.rollout.engine import GenerationRequest, RolloutEngine, SamplingSettings


@dataclass(frozen=True)
class Ask:
    """One completion that is wanted.

    Attributes:
        id: Names the prompt.
        messages: The prompt.
        prefix_ids: Tokens that the completion begins with.
        seed: Of the sampling.
        stop: Where it ends beside the end-of-sequence token.
    """

    id: str
    messages: list[Message]
    prefix_ids: tuple[int, ...]
    seed: int
    stop: StopRule | None


@dataclass(frozen=True)
class Sample:
    """One completion.

    Attributes:
        ids: The sampled tokens; empty where the policy does not tell.
        text: The text of prefix and sampled tokens.
        finish: ``eos``, ``stop`` or ``length``.
        prompt_tokens: Tokens read for it; 0 where another sample of the same request counts them.
        completion_tokens: Tokens sampled.
        seconds: Its share of the wall time.
    """

    ids: tuple[int, ...]
    text: str
    finish: str
    prompt_tokens: int
    completion_tokens: int
    seconds: float


class Policy(Protocol):
    """Where completions come from.

    Attributes:
        continues_chains: Whether a completion can begin with given tokens.
    """

    continues_chains: bool

    def sample(self, asks: Sequence[Ask]) -> list[Sample]:
        """One completion for each ask, in order."""
        ...

    def num_tokens(self, messages: list[Message]) -> int:
        """Tokens of a prompt; 0 where the policy does not tell."""
        ...

    def encode_text(self, text: str, /) -> tuple[int, ...]:
        """The tokens of a text that a completion is to begin with."""
        ...

    @property
    def max_tokens(self) -> int:
        """Most tokens of a completion."""
        ...

    def close(self) -> None:
        """Frees memory and connections."""
        ...


@dataclass
class LocalPolicy:
    """A rollout engine and its tokenizer.

    Attributes:
        engine: Samples.
        encode: Chat messages to token ids.
        encode_text: Text to token ids, without special tokens.
        decode: Token ids to text, without special tokens.
        sampling: Temperature, top-p and the longest completion.
    """

    engine: RolloutEngine
    encode: Callable[[list[Message]], list[int]]
    encode_text: Callable[[str], tuple[int, ...]]
    decode: Callable[[Sequence[int]], str]
    sampling: SamplingSettings
    continues_chains: bool = True

    @property
    def max_tokens(self) -> int:
        """Most tokens of a completion."""
        return self.sampling.max_tokens

    def num_tokens(self, messages: list[Message]) -> int:
        """Tokens of a prompt."""
        return len(self.encode(messages))

    def sample(self, asks: Sequence[Ask]) -> list[Sample]:
        """One completion for each ask; asks that follow each other with one prompt share it.

        Raises:
            ConfigError: A prompt and its completion do not fit the model.
        """
        started = time.perf_counter()
        groups: list[list[Ask]] = []
        for ask in asks:
            if groups and _same_prompt(groups[-1][0], ask):
                groups[-1].append(ask)
            else:
                groups.append([ask])
        requests = [
            GenerationRequest(
                id=group[0].id,
                prompt_ids=[*self.encode(group[0].messages), *group[0].prefix_ids],
                seeds=[ask.seed for ask in group],
                stop=group[0].stop,
            )
            for group in groups
        ]
        completions = self.engine.generate(requests, self.sampling)
        samples: list[Sample] = []
        for group, request, row in zip(groups, requests, completions, strict=True):
            for i, (ask, completion) in enumerate(zip(group, row, strict=True)):
                ids = tuple(completion.ids)
                text = self.decode([*ask.prefix_ids, *ids]) if ask.prefix_ids else completion.text
                read = len(request.prompt_ids) if i == 0 else 0
                samples.append(Sample(ids, text, completion.finish_reason, read, len(ids), 0.0))
        return share_seconds(samples, time.perf_counter() - started)

    def close(self) -> None:
        """Frees the engine."""
        self.engine.close()


def share_seconds(samples: Sequence[Sample], seconds: float) -> list[Sample]:
    """The samples of one call of an engine, with its wall time shared by their tokens."""
    total = sum(s.prompt_tokens + s.completion_tokens for s in samples) or 1
    return [
        replace(s, seconds=seconds * (s.prompt_tokens + s.completion_tokens) / total)
        for s in samples
    ]


def _same_prompt(one: Ask, other: Ask) -> bool:
    return (one.id, one.messages, one.prefix_ids, one.stop) == (
        other.id,
        other.messages,
        other.prefix_ids,
        other.stop,
    )
