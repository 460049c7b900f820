"""How several answers are asked for when the form of one answer is long."""

from __future__ import annotations

from dataclasses import dataclass

from vpo_lightning.parsing import NumberedTags


@dataclass(frozen=True)
class ResponseTags(NumberedTags):
    """One answer is the completion; several lie in ``<response_1>..</response_1>`` and so on.

    The form of an answer is shown once, whatever m is.
    """

    tag: str = "response"
    example: str = "your answer"

    def ask_multiple(self, m: int) -> str:
        """The sentence in a prompt that asks for m different answers."""
        return (
            f"Give {m} different answers, each of which could be the best one under other "
            f"priorities. Number them from <{self.tag}_1> to <{self.tag}_{m}>, each in this form:\n"
            f"<{self.tag}_1>\n{self.example}\n</{self.tag}_1>"
        )
