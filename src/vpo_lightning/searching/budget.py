"""What a search may spend on a prompt, and what it has spent: the same rule for every search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from vpo_lightning.errors import ConfigError


@dataclass
class Spent:
    """The costs of a search.

    Attributes:
        calls: Completions that were sampled.
        answers: Slots that were asked for, missing ones included.
        prompt_tokens: Tokens read. Completions of one request share its prompt, which counts once.
        completion_tokens: Tokens sampled.
        generation_seconds: Wall time of sampling; completions sampled together share it by tokens.
        scorer_seconds: Wall time of scoring.
        judge_calls: Questions to a judge.
        judge_tokens: Tokens the judge read and wrote.
    """

    calls: int = 0
    answers: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    generation_seconds: float = 0.0
    scorer_seconds: float = 0.0
    judge_calls: int = 0
    judge_tokens: int = 0

    @property
    def tokens(self) -> int:
        """Tokens read and sampled, those of a judge included."""
        return self.prompt_tokens + self.completion_tokens + self.judge_tokens

    @property
    def seconds(self) -> float:
        """Wall time."""
        return self.generation_seconds + self.scorer_seconds

    def add(self, other: Spent) -> None:
        """Adds the costs of `other`."""
        for name, value in asdict(other).items():
            setattr(self, name, getattr(self, name) + value)


@dataclass(frozen=True)
class Budget:
    """The most that one prompt may cost; a limit that is None does not bind.

    A search goes on while every limit has something left. Answers and calls are known before a call
    is made and are never exceeded. Tokens and seconds show afterwards: as many calls are made at
    one time as surely fit, but at least one, so the last call may end beyond the limit; the curves
    leave it out then.

    Attributes:
        answers: Slots that are asked for.
        tokens: Tokens read and sampled.
        calls: Completions.
        seconds: Wall time.

    Raises:
        ConfigError: No limit, or one that is not positive.
    """

    answers: int | None = None
    tokens: int | None = None
    calls: int | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        """Checks the limits."""
        limits = self.limits()
        if not limits:
            raise ConfigError(
                "budget: a search needs a limit; set at least one of budget.answers, "
                "budget.tokens, budget.calls, budget.seconds"
            )
        for name, value in limits.items():
            kinds = (int, float) if name == "seconds" else (int,)
            if isinstance(value, bool) or not isinstance(value, kinds) or value <= 0:
                expected = "number" if name == "seconds" else "whole number"
                raise ConfigError(f"budget.{name}={value}: expected a positive {expected}, or null")

    @classmethod
    def of(cls, limits: Mapping[str, Any]) -> Budget:
        """The budget of a config node.

        Raises:
            ConfigError: A limit that does not exist or cannot hold.
        """
        unknown = sorted(set(limits) - set(cls.__dataclass_fields__))
        if unknown:
            raise ConfigError(
                f"budget.{unknown[0]}: no such limit; limits: answers, tokens, calls, seconds"
            )
        return cls(**limits)

    def limits(self) -> dict[str, float]:
        """The limits that bind, by name."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def is_left(self, spent: Spent) -> bool:
        """Whether every limit has something left."""
        return all(getattr(spent, name) < limit for name, limit in self.limits().items())

    def affordable(self, spent: Spent, calls: Sequence[tuple[int, int]]) -> int:
        """How many of the next calls may be made at one time.

        Args:
            spent: What the prompt has cost so far.
            calls: Answers and most tokens (read and sampled) of each call, in order.
        """
        if not self.is_left(spent):
            return 0
        answers, tokens, count = spent.answers, spent.tokens, 0
        for more_answers, more_tokens in calls:
            answers, tokens = answers + more_answers, tokens + more_tokens
            if self.calls is not None and spent.calls + count + 1 > self.calls:
                break
            if self.answers is not None and answers > self.answers:
                break
            if self.tokens is not None and tokens > self.tokens and count > 0:
                break
            count += 1
        return count
