"""One prompt of a search: how it is asked, where chains break, how completions are read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vpo_lightning.errors import ConfigError
from vpo_lightning.parsing import StopRule
from vpo_lightning.prompting import Message, MultiAnswer, PromptStyle
from vpo_lightning.searching.archive import Archive, Chain, Proposal
from vpo_lightning.searching.policies import Policy, Sample
from vpo_lightning.task import PromptRow, Task

# Cannot be part of an answer: marks the place of the next one in a rendered chain.
_MARK = "\0"


@dataclass(frozen=True)
class Problem:
    """A prompt, and what a search needs to ask for answers to it.

    Attributes:
        task: Scores the answers.
        row: The prompt.
        style: The policy's own way to be asked: chains of m answers, or one answer.
        policy: Is asked.
        seed: Every draw of the search on this prompt is derived from it and the prompt's id.
        archive: All answers so far.
    """

    task: Task
    row: PromptRow
    style: PromptStyle
    policy: Policy
    seed: int
    archive: Archive

    @property
    def chain_length(self) -> int:
        """m, the answers of a complete chain."""
        return self.style.num_answers

    def messages(self, row: PromptRow | None = None) -> list[Message]:
        """The prompt in the policy's style; of `row` where a search words the question anew."""
        total = sum(objective.weight for objective in self.row.objectives)
        weights = [objective.weight / total for objective in self.row.objectives]
        shown = weights if self.style.shows_weights else None
        return self.style.messages(self.task, row or self.row, shown)

    def whole_chain(self, row: PromptRow | None = None) -> Proposal:
        """A proposal for a complete chain."""
        return Proposal(self.messages(row), Chain(), self.chain_length, self.chain_length)

    def next_answer(self, chain: Chain) -> Proposal:
        """A proposal for the answer that follows `chain`."""
        return Proposal(self.messages(), chain, 1, self.chain_length)

    def chain_of(self, answers: Sequence[str]) -> Chain:
        """A chain that begins with given answers, written as the policy would, up to the next one.

        Raises:
            ConfigError: The policy does not continue chains.
        """
        rendered = self.task.answer_format.render_multiple([*answers, _MARK])
        text = rendered.split(_MARK, 1)[0]
        return Chain(self.policy.encode_text(text), text, len(answers))

    def stop_rule(self, proposal: Proposal) -> StopRule | None:
        """Where the completion of a proposal ends: behind its last answer.

        Raises:
            ConfigError: The proposal ends within a chain, and the task's format has no text there.
        """
        end = proposal.chain.num_answers + proposal.num_answers
        if not isinstance(self.style, MultiAnswer):
            return self.style.stop_rule(self.task)
        rule = self.task.answer_format.stop_multiple(end)
        if rule is None:
            if end < proposal.length:
                raise ConfigError(
                    f"{type(self.task.answer_format).__name__} has no text that ends an answer, so "
                    "a chain cannot be continued after one; choose search=best_of_n or evolve"
                )
            return None
        return StopRule(rule.text, max(1, rule.count - proposal.chain.text.count(rule.text)))

    def read(self, proposal: Proposal, sample: Sample) -> tuple[Chain, list[str | None]]:
        """The chain with its completion, and the texts of the new slots (None where missing)."""
        first, more = proposal.chain.num_answers, proposal.num_answers
        slots = self.style.parse(self.task, sample.text)
        texts = [*slots, *[None] * (first + more - len(slots))][first : first + more]
        is_open = sample.finish == "stop" and first + more < proposal.length
        ids = (*proposal.chain.ids, *sample.ids)
        return Chain(ids, sample.text, first + more, is_open), texts
