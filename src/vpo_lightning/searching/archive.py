"""What a search has found for one prompt, and the chains it can go on from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from vpo_lightning.prompting import Message

Flag = Literal["ok", "unparsed", "missing", "timeout", "failed"]
"""How scoring ended: missing: there was no text; unparsed: the task cannot read it; timeout: no
result in time; failed: the scorer crashed, raised, or returned no K numbers. All but ok have a zero
vector."""


@dataclass(frozen=True)
class Answer:
    """One answer of a search.

    Attributes:
        index: Its place in the archive.
        call: The call that made it, counted for each prompt from 0.
        slot: Its place in the chain.
        text: None if the slot is missing.
        rewards: Its reward vector (K), zeros unless the flag is ``ok``.
        flag: How scoring ended.
        key: Equal for answers that the task takes for the same.
        rating: What a judge said, from 0 to 10; None where none was asked.
    """

    index: int
    call: int
    slot: int
    text: str | None
    rewards: tuple[float, ...]
    flag: Flag
    key: str
    rating: float | None = None


@dataclass(frozen=True)
class Chain:
    """The beginning of a completion, ending where an answer ends.

    Attributes:
        ids: Its tokens, as they were sampled.
        text: Its text.
        num_answers: Answers in it.
        is_open: Whether another answer can follow.
    """

    ids: tuple[int, ...] = ()
    text: str = ""
    num_answers: int = 0
    is_open: bool = True


@dataclass(frozen=True)
class Proposal:
    """One completion that a search asks for.

    Attributes:
        messages: The prompt.
        chain: What stands at the beginning of the completion already.
        num_answers: Answers that are asked for beyond those of `chain`.
        length: Answers of the chain when it is complete, m.
    """

    messages: list[Message]
    chain: Chain
    num_answers: int
    length: int


@dataclass(frozen=True)
class Reply:
    """What came of a proposal.

    Attributes:
        proposal: What was asked.
        chain: The proposal's chain with the completion.
        answers: The new answers, one for each slot that was asked for.
    """

    proposal: Proposal
    chain: Chain
    answers: Sequence[Answer]


@dataclass
class Archive:
    """Every answer to one prompt, in the order it was made."""

    answers: list[Answer] = field(default_factory=list)

    def scored(self) -> list[Answer]:
        """The answers that have a reward vector."""
        return [answer for answer in self.answers if answer.flag == "ok"]


def pareto_front(answers: Sequence[Answer]) -> list[Answer]:
    """The answers that no other dominates; of equal vectors the first."""
    front: list[Answer] = []
    for answer in answers:
        mine = answer.rewards
        beaten = any(
            all(o >= v for o, v in zip(other.rewards, mine, strict=True))
            and (other.rewards != mine or other.index < answer.index)
            for other in answers
            if other is not answer
        )
        if not beaten:
            front.append(answer)
    return front
