"""Token tensors that rollout and policy exchange."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor


@dataclass(frozen=True)
class TokenBatch:
    """Completions that share prompts: each prompt is stored, and can be computed, once.

    P prompts and R completions; everything is padded on the right, lengths say what is real.

    Attributes:
        prompt_ids: Token ids of the prompts.
        prompt_lengths: Tokens of each prompt, at least 1.
        completion_ids: Token ids of the completions, the end-of-sequence token included.
        completion_lengths: Tokens of each completion.
        prompt_index: The prompt (row of `prompt_ids`) of each completion.
    """

    prompt_ids: Int[Tensor, "P Tp"]
    prompt_lengths: Int[Tensor, " P"]
    completion_ids: Int[Tensor, "R T"]
    completion_lengths: Int[Tensor, " R"]
    prompt_index: Int[Tensor, " R"]

    def completion_mask(self) -> Bool[Tensor, "R T"]:
        """True where a completion has a token."""
        positions = torch.arange(self.completion_ids.shape[1], device=self.completion_ids.device)
        return positions[None, :] < self.completion_lengths[:, None]
