"""The endless stream of training prompts: each once an epoch, in an order derived from the seed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from vpo_lightning.core.seeding import derive_seed
from vpo_lightning.errors import ConfigError
from vpo_lightning.task import PromptRow


class PromptStream:
    """Yields prompts for ever; over-long ones are dropped and counted, or refused.

    Args:
        rows: The training prompts.
        seed: Of the order.
        num_tokens: Tokens of a row's prompt as the policy will see it.
        max_tokens: Longest prompt in tokens.
        overlong: "drop" leaves longer prompts out and counts them, "error" refuses the run.

    Attributes:
        dropped: Over-long prompts met so far.
    """

    def __init__(
        self,
        rows: Sequence[PromptRow],
        seed: int,
        num_tokens: Callable[[PromptRow], int],
        max_tokens: int,
        overlong: str = "drop",
    ) -> None:
        if overlong not in ("drop", "error"):
            raise ConfigError(f"rollout.overlong_prompts={overlong}: it must be drop or error")
        if not rows:
            raise ConfigError("the task's train split has no rows; check the task.* paths")
        self._rows = rows
        self._seed = seed
        self._num_tokens = num_tokens
        self._max_tokens = max_tokens
        self._overlong = overlong
        self._cursor = 0
        self._order: tuple[int, list[int]] = (-1, [])
        self.dropped = 0

    def take(self, count: int) -> list[PromptRow]:
        """The next `count` prompts.

        Raises:
            ConfigError: No prompt of a whole epoch is short enough, or one is too long and
                `overlong` is "error".
        """
        taken: list[PromptRow] = []
        skipped_in_a_row = 0
        while len(taken) < count:
            row = self._next()
            length = self._num_tokens(row)
            if length <= self._max_tokens:
                taken.append(row)
                skipped_in_a_row = 0
                continue
            if self._overlong == "error":
                raise ConfigError(
                    f"prompt {row.id} has {length} tokens; rollout.max_prompt_tokens="
                    f"{self._max_tokens} (raise it, or set rollout.overlong_prompts=drop)"
                )
            self.dropped += 1
            skipped_in_a_row += 1
            if skipped_in_a_row >= len(self._rows):
                raise ConfigError(
                    f"every training prompt is longer than rollout.max_prompt_tokens="
                    f"{self._max_tokens} tokens (the last one has {length}); raise it"
                )
        return taken

    def _next(self) -> PromptRow:
        epoch, position = divmod(self._cursor, len(self._rows))
        if self._order[0] != epoch:
            generator = torch.Generator().manual_seed(derive_seed(self._seed, "order", epoch))
            order = torch.randperm(len(self._rows), generator=generator)
            self._order = (epoch, order.tolist())
        self._cursor += 1
        return self._rows[self._order[1][position]]

    def state_dict(self) -> dict[str, Any]:
        """The position in the stream."""
        return {"cursor": self._cursor, "dropped": self.dropped}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continues from a position."""
        self._cursor = state_dict["cursor"]
        self.dropped = state_dict["dropped"]
