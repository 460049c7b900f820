"""What every rollout engine does: token ids in, token ids and their log-probabilities out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from torch import Tensor

from vpo_lightning.errors import ConfigError
from vpo_lightning.parsing import StopRule


@dataclass(frozen=True)
class SamplingSettings:
    """How tokens are drawn.

    Attributes:
        max_tokens: Longest completion in tokens.
        temperature: Divides the logits; 0 takes the most probable token.
        top_p: Keep the smallest set of tokens with this probability mass; 1 keeps all.
        top_k: Keep this many tokens; 0 keeps all.
        min_p: Keep tokens at least this fraction as probable as the best one; 0 keeps all.

    Raises:
        ConfigError: A value outside its range.
    """

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0

    def __post_init__(self) -> None:
        """Checks the ranges."""
        for name, ok, expected in (
            ("max_tokens", self.max_tokens >= 1, "at least 1"),
            ("temperature", self.temperature >= 0, "at least 0"),
            ("top_p", 0 < self.top_p <= 1, "in (0, 1]"),
            ("top_k", self.top_k >= 0, "at least 0"),
            ("min_p", 0 <= self.min_p <= 1, "in [0, 1]"),
        ):
            if not ok:
                raise ConfigError(f"{name}={getattr(self, name)}: it must be {expected}")


@dataclass(frozen=True)
class GenerationRequest:
    """One prompt and the completions wanted for it.

    Attributes:
        id: Names the prompt in errors and joins completions to prompts.
        prompt_ids: Token ids, a beginning-of-sequence token included where the model wants one.
        seeds: One 63-bit seed for each completion; equal seeds and weights give equal completions.
        stop: Where a completion ends beside the end-of-sequence token; the stop text is kept.
    """

    id: str
    prompt_ids: Sequence[int]
    seeds: Sequence[int]
    stop: StopRule | None = None


@dataclass(frozen=True)
class Completion:
    """One sampled completion.

    Attributes:
        ids: Sampled token ids, end-of-sequence and stop text included.
        logprobs: Log-probability in nats of each id under the distribution it was drawn from
            (after temperature and support restriction).
        text: The ids decoded without special tokens; derived, never encoded again.
        finish_reason: "eos", "stop" (the stop rule) or "length" (truncated).
    """

    ids: list[int]
    logprobs: list[float]
    text: str
    finish_reason: Literal["eos", "stop", "length"]


@runtime_checkable
class RolloutEngine(Protocol):
    """Generates rollouts from a copy of the policy's weights."""

    version: int
    """Policy version of the weights in use; 0 for the start policy."""
    positions: int
    """Longest prompt and completion together that it takes, in tokens."""

    def generate(
        self, requests: Sequence[GenerationRequest], sampling: SamplingSettings
    ) -> list[list[Completion]]:
        """The completions of each request, in the order of its seeds."""
        ...

    def load_weights(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Takes new weights by state-dict name; later requests use only these."""
        ...

    def close(self) -> None:
        """Frees memory and processes."""
        ...


def check_lengths(
    requests: Sequence[GenerationRequest], max_tokens: int, positions: int, remedy: str
) -> None:
    """Refuses prompts that an engine cannot continue.

    Args:
        requests: What the engine is asked for.
        max_tokens: Longest completion.
        positions: Longest prompt and completion together, in tokens.
        remedy: What raises that limit, beside shorter prompts and completions.

    Raises:
        ConfigError: A prompt and its completion do not fit.
        ValueError: An empty prompt.
    """
    for request in requests:
        length = len(request.prompt_ids)
        if length == 0:
            raise ValueError(f"request {request.id}: the prompt has no tokens")
        if length + max_tokens > positions:
            raise ConfigError(
                f"request {request.id}: a prompt of {length} tokens and a completion of up to "
                f"{max_tokens} exceed {positions} positions; lower rollout.sampling.max_tokens or "
                f"rollout.max_prompt_tokens, or {remedy}"
            )
